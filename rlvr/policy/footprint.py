"""What an update of the policy allocates, known without weights and arithmetic: its own code on tensors without memory.

Shape legend: V vocabulary, C tokens of a log-prob chunk.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlvr.batch import Batch, pack
from rlvr.config import LoraConfig, PolicyConfig
from rlvr.errors import ModelError
from rlvr.lora import add_adapters
from rlvr.policy.activations import enable_checkpointing
from rlvr.policy.exact_kl import exact_kl
from rlvr.policy.layout import layout
from rlvr.policy.logprobs import token_logprobs
from rlvr.policy.microbatches import Microbatches
from rlvr.policy.model import CausalModel, attend_packed, trained_parameters
from rlvr.policy.optimizer import MasterAdamW

if TYPE_CHECKING:
    from transformers import PretrainedConfig

INDICES = frozenset({torch.int64, torch.int32, torch.bool})


class Recorder(TorchDispatchMode):
    """Knows how much memory of the tensors made under it is alive.

    Numbers are fake, for only their sizes matter; indices are real, for the sizes of other tensors follow from their
    values, and too small to count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.alive = 0
        """Bytes."""
        self.peak = 0
        self._pieces: dict[int, int] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(isinstance(tensor, FakeTensor) for tensor in given) or (not given and _makes_numbers(operation, kwargs)):
            with self.fake:
                results = operation(*args, **kwargs)
        else:
            results = operation(*args, **kwargs)
        old = {tensor.untyped_storage()._cdata for tensor in given}
        for result in tree_leaves(results):
            if isinstance(result, FakeTensor) and result.is_floating_point():
                storage = result.untyped_storage()
                if storage._cdata not in old:  # else a view
                    self._watch(storage)
        return results

    def _watch(self, storage: torch.UntypedStorage) -> None:
        piece = storage._cdata
        if piece in self._pieces:
            return
        self._pieces[piece] = storage.nbytes()
        self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, piece).atexit = False

    def _forget(self, piece: int) -> None:
        self.alive -= self._pieces.pop(piece)


def _makes_numbers(operation: Any, kwargs: dict[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    return bool(operation.name() != "aten::arange") if dtype is None else dtype not in INDICES


@dataclass(frozen=True)
class UpdateBytes:
    """Of one microbatch, beside weights, optimizer state and summed gradients."""

    activations: int
    """That the model's forward leaves for backward."""
    head: int
    """[C, V] log-probs, from forward to backward."""
    temporaries: int
    """The most that is alive beyond these at any time."""

    @property
    def total(self) -> int:
        return self.activations + self.head + self.temporaries


def skeleton(
    config: PretrainedConfig,
    options: PolicyConfig,
    fake: FakeTensorMode | None = None,
    lora: LoraConfig | None = None,
) -> CausalModel:
    """The policy as `Policy` makes it, but on fake tensors; its weights are no memory that a recorder counts.

    Raises:
        ConfigError: it has no such layer as `lora.targets` names.
    """
    from transformers import AutoModelForCausalLM

    fake = fake or FakeTensorMode()
    with fake:
        dtype = getattr(torch, options.dtype)
        module = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    if lora is not None and lora.rank:
        add_adapters(module, lora)  # makes real ones: peft moves modules about, which fake ones do not allow
        with fake:
            for layer in module.modules():
                for name, parameter in layer.named_parameters(recurse=False):
                    if parameter.requires_grad:
                        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
    attend_packed(module)
    enable_checkpointing(module, options.gradient_checkpointing)
    return CausalModel(module, getattr(config, "final_logit_softcapping", None))


def largest_microbatch(
    prompt_lengths: Sequence[int], group_size: int, new_tokens: int, options: PolicyConfig, minibatches: int = 1
) -> Batch:
    """That of a batch whose completions all have full length.

    Args:
        prompt_lengths: of each prompt, in tokens.
    """
    groups = torch.arange(len(prompt_lengths)).repeat_interleave(group_size)
    # Each completion has tokens of its own: no group shares more than its prompt.
    batch = pack([([0] * prompt_lengths[group], [row + 1] * new_tokens) for row, group in enumerate(groups.tolist())])
    batch.group_ids = groups
    microbatches = Microbatches(options.tokens_per_microbatch, share_prompts=options.share_prompts)
    minibatch = next(batch.minibatches(minibatches))
    return max((part for _, part in microbatches.cut(minibatch, options.tokens_per_microbatch)), key=computed_tokens)


def computed_tokens(batch: Batch) -> int:
    """Tokens that a forward computes: shared beginnings once."""
    return len(layout(batch).tokens)


def update_bytes(
    config: PretrainedConfig,
    options: PolicyConfig,
    microbatch: Batch,
    *,
    entropy_grad: bool = False,
    exact: bool = False,
    lora: LoraConfig | None = None,
) -> UpdateBytes:
    """Forward and backward of one microbatch after the first, when the sums of the gradients are there.

    Args:
        exact: with the exact KL to a reference of the policy's architecture.
    """
    recorder = Recorder()
    model = skeleton(config, options, recorder.fake, lora)
    trained = trained_parameters(model.module)
    with recorder:
        optimizer = MasterAdamW(
            trained, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=1.0, state=options.optimizer
        )
        for parameter in trained:
            optimizer.gradient(parameter)
        before = recorder.alive
        weight = model.head_weight
        weight_grad = optimizer.gradient(weight) if weight.requires_grad else None
        head = model.head(1.0, options.logprob_chunk_tokens, weight_grad)
        try:
            hidden = model.hidden_states(microbatch)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            name = type(model.module).__name__
            raise ModelError(f"{name}: its memory depends on the values of its activations ({error})") from error
        activations = recorder.alive - before
        arguments = (microbatch.token_ids, microbatch.loss_mask)
        logprobs, entropy = token_logprobs(hidden, head, *arguments, entropy_grad=entropy_grad)
        loss = logprobs.sum() + entropy.sum() if entropy_grad else logprobs.sum()
        if exact:
            reference = head.weight.detach()
            loss = loss + exact_kl(hidden, head, hidden.detach(), replace(head, weight=reference), arguments[1]).sum()
        kept = recorder.alive - before - activations
        del logprobs, entropy, hidden
        loss.backward()
    return UpdateBytes(activations, kept, recorder.peak - before - activations - kept)
