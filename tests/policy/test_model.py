from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlvr.batch import pack
from rlvr.config import ModelConfig
from rlvr.errors import ModelError
from rlvr.policy.model import CausalModel, load_model, load_tokenizer, prepare
from rlvr.policy.tiny import write_tiny_model

from .examples import VOCABULARY, tiny_llama, write_tiny_llama

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
ROWS = [[5, 8, 13, 21], [34, 55], [3, 1, 4, 1, 5, 9, 2, 6]]


def load(path: str, dtype: torch.dtype = torch.float32) -> CausalModel:
    return load_model(ModelConfig(path=path), dtype, "cpu")


def assert_logprobs_are_the_models_own(model: CausalModel, plain: torch.nn.Module, temperature: float) -> None:
    batch = pack([(row[:1], row[1:]) for row in ROWS])
    logprobs, entropy = model.logprobs(batch, temperature, 4)
    for i, row in enumerate(ROWS):
        logits = plain(input_ids=torch.tensor([row])).logits[0, :-1]
        expected = (logits / temperature).log_softmax(-1)
        inside = (batch.row_ids == i) & batch.loss_mask
        torch.testing.assert_close(
            logprobs[inside], expected.gather(-1, torch.tensor(row[1:])[:, None])[:, 0], rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(entropy[inside], -(expected.exp() * expected).sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_logprobs_are_the_models_own(tmp_path: Path, tied: bool) -> None:
    model = load(write_tiny_llama(tmp_path, tied=tied))
    assert (model.head_weight is model.module.get_input_embeddings().weight) == tied
    assert_logprobs_are_the_models_own(model, tiny_llama(tied=tied), 0.7)


def test_another_family_works_without_code_of_its_own() -> None:
    torch.manual_seed(0)
    plain = Qwen3ForCausalLM(Qwen3Config(**SMALL)).eval()
    copy = Qwen3ForCausalLM(Qwen3Config(**SMALL)).eval()
    copy.load_state_dict(plain.state_dict())
    assert_logprobs_are_the_models_own(prepare(copy), plain, 1.0)


def test_final_softcap_comes_from_the_models_configuration() -> None:
    config = {**SMALL, "attn_logit_softcapping": None, "final_logit_softcapping": 2.0}
    torch.manual_seed(0)
    plain = Gemma2ForCausalLM(Gemma2Config(**config)).eval()
    copy = Gemma2ForCausalLM(Gemma2Config(**config)).eval()
    copy.load_state_dict(plain.state_dict())
    model = prepare(copy)
    assert model.softcap == 2.0
    assert_logprobs_are_the_models_own(model, plain, 1.0)


def test_a_head_of_another_form_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelError, match=r"GraniteForCausalLM: log-probs of packed rows differ"):
        prepare(GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=8.0)).eval())


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path)
    batch = pack([(row[:1], row[1:]) for row in ROWS])
    exact, rounded = (load(path, dtype).logprobs(batch, 1.0, 8)[0] for dtype in (torch.float32, torch.bfloat16))
    assert 0 < (exact - rounded).abs().mean() < 0.05


def test_missing_folder(tmp_path: Path) -> None:
    for read in (load, lambda path: load_tokenizer(ModelConfig(path=path))):
        with pytest.raises(ModelError, match=r"nowhere/at/all.*no such folder"):
            read(str(tmp_path / "nowhere/at/all"))


def test_folder_without_configuration_or_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(str(tmp_path))
    write_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        load(str(tmp_path))


def test_cut_off_weights(tmp_path: Path) -> None:
    file = Path(write_tiny_llama(tmp_path)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(str(tmp_path))


def test_weights_of_fewer_layers_than_configured(tmp_path: Path) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path)
    model.config.num_hidden_layers = 3
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"lacks weights .*layers\.2\."):
        load(str(tmp_path))


def test_tokenizer(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "whole", seed=0)
    assert load_tokenizer(ModelConfig(path=str(tmp_path / "whole"))).eos_token_id is not None
    write_tiny_llama(tmp_path / "without")
    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(ModelConfig(path=str(tmp_path / "without")))
