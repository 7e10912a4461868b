"""Causal language models from Hugging Face folders: loading, checks, and log-probs of packed batches.

Shape legend: N rows, T tokens of all rows end to end, D hidden size, V vocabulary.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlvr.batch import Batch, pack
from rlvr.config import ModelConfig
from rlvr.errors import ModelError
from rlvr.lora import without_adapters
from rlvr.policy import attention
from rlvr.policy.activations import ActivationOffload, Checkpointing, enable_checkpointing
from rlvr.policy.layers import keep_inputs_only
from rlvr.policy.layout import layout
from rlvr.policy.logprobs import Head, token_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Mean absolute difference of log-probs between the packed and the model's own forward: rounding, not another formula.
AGREEMENT = {torch.float32: 1e-3, torch.bfloat16: 0.1}


@dataclass
class CausalModel:
    """A transformers model that reads packed batches."""

    module: PreTrainedModel
    softcap: float | None
    """Final logit soft-cap from the model's configuration."""
    offload: ActivationOffload | None = None
    """Where activations wait for backward; None: where they are."""

    @property
    def head_weight(self) -> nn.Parameter:
        """[V, D]; the embedding's own tensor where the two are tied."""
        weight = self.module.get_output_embeddings().weight
        assert isinstance(weight, nn.Parameter)
        return weight

    @property
    def device(self) -> torch.device:
        return self.head_weight.device

    def head(self, temperature: float, chunk_tokens: int, weight_grad: Tensor | None = None) -> Head:
        """The output head; see `Head` for the arguments."""
        return Head(self.head_weight, temperature, self.softcap, chunk_tokens, weight_grad)

    def hidden_states(self, batch: Batch) -> Tensor:
        """[T, D]: see `hidden_states`."""
        return hidden_states(self.module.base_model, batch, self.offload)

    def logprobs(self, batch: Batch, temperature: float, chunk_tokens: int) -> tuple[Tensor, Tensor]:
        """Log-probs [T] and entropies [T] of the loss tokens, 0 elsewhere; see `token_logprobs`."""
        head = self.head(temperature, chunk_tokens)
        return token_logprobs(self.hidden_states(batch), head, batch.token_ids, batch.loss_mask)


class WithoutAdapters(CausalModel):
    """A model as it was before it got its adapters; shares all weights with it."""

    def hidden_states(self, batch: Batch) -> Tensor:
        """[T, D]: see `hidden_states`."""
        with without_adapters(self.module):
            return super().hidden_states(batch)


def hidden_states(backbone: nn.Module, batch: Batch, offload: ActivationOffload | None = None) -> Tensor:
    """[T, D]: the last hidden states of a transformer without its head, after the final norm.

    Args:
        backbone: with packed attention, see `prepare`.
        batch: on its device.
        offload: where activations wait for backward; None: where they are.
    """
    segments = layout(batch)
    with nullcontext() if offload is None else offload.saving():
        output = backbone(
            input_ids=batch.token_ids[segments.tokens][None],
            position_ids=batch.position_ids[segments.tokens][None],
            use_cache=False,
            layout=segments,
        )
    hidden = output.last_hidden_state[0][segments.places]
    assert isinstance(hidden, Tensor)
    return hidden


def load_model(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    checkpointing: Checkpointing = "none",
    offload_activations: bool = False,
    key: str = "model.path",
) -> CausalModel:
    """Loads a causal language model and checks that packed log-probs are the ones it gives itself.

    Args:
        config: Hugging Face folder or hub id, and the revision on the hub.
        checkpointing, offload_activations: see `rlvr.policy.activations`.
        key: the option that names the model, for errors.

    Raises:
        ModelError: no such folder, no or incomplete weights, or an architecture whose log-probs would be wrong.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    check_folder(config.path, key)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            config.path,
            revision=config.revision or "main",
            dtype=dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{key}={config.path!r} cannot be loaded: {_first_line(error)}") from error
    module, report = loaded
    if report["missing_keys"]:
        some = ", ".join(sorted(report["missing_keys"])[:5])
        raise ModelError(f"{key}={config.path!r} lacks weights ({some}): take a complete copy of the model")
    module.to(device).eval()
    return prepare(module, checkpointing=checkpointing, offload_activations=offload_activations)


def prepare(
    module: PreTrainedModel, *, checkpointing: Checkpointing = "none", offload_activations: bool = False
) -> CausalModel:
    """Switches a loaded model, in place, to packed attention without dropout.

    Raises:
        ModelError: the packed log-probs are not the model's own.
    """
    head = module.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelError(f"{type(module).__name__} has no plain output head (hidden states times one matrix)")
    model = CausalModel(module, getattr(module.config, "final_logit_softcapping", None))
    rows = [torch.arange(n) * 7 % module.config.vocab_size for n in (5, 9)]
    with torch.no_grad():
        own = torch.cat([_own_logprobs(module, row.to(module.device)) for row in rows])
        attend_packed(module)
        batch = pack([(row[:1].tolist(), row[1:].tolist()) for row in rows]).to(module.device)
        packed = model.logprobs(batch, 1.0, 1024)[0][batch.loss_mask]
    difference = float((own - packed).abs().mean())
    if not difference < AGREEMENT.get(module.dtype, 1e-3):
        raise ModelError(
            f"{type(module).__name__}: log-probs of packed rows differ from the model's own by {difference:.3g} each; "
            "its attention or its head has a form that is not supported"
        )
    enable_checkpointing(module, checkpointing)
    if offload_activations:
        model.offload = ActivationOffload(module.parameters())
    return model


def attend_packed(module: PreTrainedModel) -> None:
    """Gives the module `packed_attention` and layers that keep less for backward; takes its dropout away."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    attention.register()
    module.set_attn_implementation(attention.NAME)
    keep_inputs_only(module)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Loads the tokenizer that lies beside the model.

    Raises:
        ModelError: there is none, or it has no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    check_folder(config.path)
    if Path(config.path).is_dir() and not any(Path(config.path).glob("token*")):
        raise ModelError(
            f"model.path={config.path!r} has no tokenizer: copy tokenizer.json and tokenizer_config.json in"
        )
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(config.path, revision=config.revision or "main")
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path={config.path!r}: the tokenizer cannot be loaded: {_first_line(error)}") from error
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.path={config.path!r}: the tokenizer has no eos_token: set it in tokenizer_config.json")
    return tokenizer  # type: ignore[no-any-return]


def _own_logprobs(module: PreTrainedModel, token_ids: Tensor) -> Tensor:
    """[t] -> [t - 1]: log-probs as the plain model gives them."""
    logits = module(input_ids=token_ids[None], use_cache=False).logits[0, :-1]
    logprobs: Tensor = logits.float().log_softmax(-1).gather(-1, token_ids[1:, None]).squeeze(-1)
    return logprobs


def check_folder(path: str, key: str = "model.path") -> None:
    """Refuses a path that can be no model folder; a hub id passes.

    Raises:
        ModelError: naming `key`.
    """
    folder = Path(path)
    if not folder.exists():
        # A hub id is NAME or OWNER/NAME; anything else was meant as a folder.
        if path.count("/") > 1 or path.startswith((".", "/", "~")):
            raise ModelError(f"{key}={path!r}: there is no such folder")
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"{key}={path!r} has no config.json: name a Hugging Face model folder")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ModelError(f"{key}={path!r} has no weights (*.safetensors): copy them in")


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """All, or those of the adapters where the model has some."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copies all parameters between two models of one architecture."""
    for own, other in zip(target.parameters(), source.parameters(), strict=True):
        own.copy_(other)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
