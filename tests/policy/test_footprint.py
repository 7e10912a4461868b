"""What is recorded on tensors without memory against the tensors of a real update."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig

from rlvr.batch import Batch
from rlvr.config import LoraConfig, ModelConfig, OptimizerConfig, PolicyConfig
from rlvr.lora import add_adapters
from rlvr.policy.footprint import computed_tokens, largest_microbatch, skeleton, update_bytes
from rlvr.policy.logprobs import token_logprobs
from rlvr.policy.model import load_model, trained_parameters
from rlvr.policy.optimizer import MasterAdamW

from .examples import write_tiny_llama

LENGTHS = [40, 52, 33]


class Real(TorchDispatchMode):
    """Counts the memory of real floating-point tensors made under it."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._pieces: dict[int, int] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        results = operation(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.is_floating_point():
                storage = result.untyped_storage()
                piece = storage._cdata
                if piece not in self._pieces and storage.data_ptr() not in given:
                    self._pieces[piece] = storage.nbytes()
                    self.alive += storage.nbytes()
                    self.peak = max(self.peak, self.alive)
                    weakref.finalize(storage, self._forget, piece)
        return results

    def _forget(self, piece: int) -> None:
        self.alive -= self._pieces.pop(piece)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(Path(tmp_path_factory.mktemp("model")))


def measured(path: str, options: PolicyConfig, microbatch: Batch, lora: LoraConfig) -> tuple[int, int, int]:
    """Activations, head and temporaries of the second of two updates with real weights."""
    dtype = getattr(torch, options.dtype)
    model = load_model(ModelConfig(path=path), dtype, "cpu", checkpointing=options.gradient_checkpointing)
    add_adapters(model.module, lora)
    trained = trained_parameters(model.module)
    optimizer = MasterAdamW(trained, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=1.0, state=options.optimizer)
    for parameter in trained:
        optimizer.gradient(parameter)
    with Real() as real:
        weight_grad = None if lora.rank else optimizer.gradient(model.head_weight)
        head = model.head(1.0, options.logprob_chunk_tokens, weight_grad)
        hidden = model.hidden_states(microbatch)
        activations = real.alive
        logprobs, entropy = token_logprobs(hidden, head, microbatch.token_ids, microbatch.loss_mask)
        loss = logprobs.sum()
        kept = real.alive - activations
        del hidden, logprobs, entropy
        loss.backward()
    return activations, kept, real.peak - activations - kept


@pytest.mark.parametrize(
    "options",
    [
        PolicyConfig(tokens_per_microbatch=400, logprob_chunk_tokens=64, **form)
        for form in (
            {},
            {"dtype": "float32"},
            {"share_prompts": False},
            {"gradient_checkpointing": "full"},
            {"gradient_checkpointing": "selective"},
            {"optimizer": OptimizerConfig(moments="int8", master_weights="stochastic_rounding")},
        )
    ],
    ids=str,
)
@pytest.mark.parametrize("rank", [0, 4])
def test_the_recorded_bytes_are_those_of_real_tensors(path: str, options: PolicyConfig, rank: int) -> None:
    microbatch, lora = largest_microbatch(LENGTHS, 4, 30, options), LoraConfig(rank=rank)
    said = update_bytes(AutoConfig.from_pretrained(path), options, microbatch, lora=lora)
    real = measured(path, options, microbatch, lora)
    assert (said.activations, said.head, said.total) == pytest.approx((*real[:2], sum(real)), rel=0.01)


def test_the_largest_microbatch_fills_its_tokens_with_each_prompt_once() -> None:
    shared = largest_microbatch(LENGTHS, 4, 30, PolicyConfig(tokens_per_microbatch=400))
    assert computed_tokens(shared) < 400 < shared.num_tokens
    alone = largest_microbatch(LENGTHS, 4, 30, PolicyConfig(tokens_per_microbatch=400, share_prompts=False))
    assert computed_tokens(alone) == alone.num_tokens <= 400


def test_checkpointing_and_chunks_save_what_they_should(path: str) -> None:
    def bytes_of(**form: Any) -> Any:
        options = PolicyConfig(**({"tokens_per_microbatch": 400, "logprob_chunk_tokens": 64} | form))
        return update_bytes(AutoConfig.from_pretrained(path), options, largest_microbatch(LENGTHS, 4, 30, options))

    plain = bytes_of()
    full, selective = (bytes_of(gradient_checkpointing=kind) for kind in ("full", "selective"))
    assert full.activations < selective.activations < plain.activations
    assert bytes_of(logprob_chunk_tokens=32).head < plain.head
    assert bytes_of(tokens_per_microbatch=200).activations < 0.7 * plain.activations


def test_no_weight_is_made() -> None:
    """Seven billion parameters, of which no machine of the tests has the memory."""
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=2, vocab_size=128_000)
    model = skeleton(config, PolicyConfig())
    assert sum(parameter.numel() for parameter in model.module.parameters()) > 1.4e9
