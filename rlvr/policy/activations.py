"""What backward needs of the forward: kept, computed again, or moved to CPU memory meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Checkpointing = Literal["none", "full", "selective"]

# What selective checkpointing keeps: results whose arithmetic grows faster than their size.
COSTLY = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "torch_attn::_varlen_attn",
}
MIN_MOVED = 2**20  # bytes: copies of small tensors cost more than they free


def enable_checkpointing(module: PreTrainedModel, kind: Checkpointing) -> None:
    """Makes each layer keep its inputs alone (`full`), or those and the results of matrix products and attention
    (`selective`), and compute the rest again in backward (Chen et al. 2016)."""
    if kind == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_costly)
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    module.train()  # transformers checkpoints in training mode only


def _keep_costly(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    costly = operation.name().partition(".")[0] in COSTLY
    return CheckpointPolicy.MUST_SAVE if costly else CheckpointPolicy.PREFER_RECOMPUTE


@dataclass(eq=False)
class _Moved:
    copy: Tensor
    device: torch.device


class ActivationOffload:
    """Keeps what autograd saves in CPU memory, pinned for a GPU's tensors, until backward asks for it.

    Parameters and small tensors stay where they are; a tensor that several operations save is moved once. All copies
    are on the stream that computes: in its order the memory of the original is free after the copy, and the copy is
    back before it is read, so nothing has to wait. Other than `torch.autograd.graph.save_on_cpu`, which also moves
    every weight, and each tensor once for each operation that saves it.

    Args:
        parameters: those that stay.
        min_bytes: of a tensor that is moved.
    """

    def __init__(self, parameters: Iterable[Tensor], min_bytes: int = MIN_MOVED) -> None:
        self._parameters, self._min_bytes = list(parameters), min_bytes
        self._moved: WeakValueDictionary[tuple[Any, ...], _Moved] = WeakValueDictionary()

    def saving(self) -> AbstractContextManager[None]:
        """Holds for the forward inside of it; its backward may be anywhere."""
        stay = {parameter.untyped_storage().data_ptr() for parameter in self._parameters}
        return saved_tensors_hooks(partial(self._pack, stay), _unpack)

    def _pack(self, stay: set[int], tensor: Tensor) -> Tensor | _Moved:
        storage = tensor.untyped_storage()
        if tensor.nbytes < self._min_bytes or storage.data_ptr() in stay:
            return tensor
        # As long as the weak reference lives no other storage has its address; the version counts writes.
        which = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        key = (StorageWeakRef(storage), *which)
        moved = self._moved.get(key)
        if moved is None:
            copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            moved = self._moved[key] = _Moved(copy.copy_(tensor, non_blocking=True), tensor.device)
        return moved


def _unpack(packed: Tensor | _Moved) -> Tensor:
    return packed if isinstance(packed, Tensor) else packed.copy.to(packed.device, non_blocking=True)
