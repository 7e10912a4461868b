import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlvr.batch import Batch, pack
from rlvr.config import ModelConfig
from rlvr.policy.activations import COSTLY, ActivationOffload
from rlvr.policy.model import CausalModel, load_model

from .examples import write_tiny_llama

ROWS = [[(7 * i + 3 * j) % 90 + 2 for j in range(40 + i)] for i in range(6)]


class Watch(TorchDispatchMode):
    """Counts the costly operations and knows what they and all others have made."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operation(*args, **(kwargs or {}))
        name = operation.name().partition(".")[0]
        if name in COSTLY:
            self.counts[name] += 1
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                storage = result.untyped_storage()
                self._made[StorageWeakRef(storage)] = storage.nbytes()
        return results

    def alive_bytes(self) -> int:
        return sum(nbytes for storage, nbytes in self._made.items() if not storage.expired())


def batch() -> Batch:
    return pack([(row[:1], row[1:]) for row in ROWS])


def load(path: str, dtype: torch.dtype, **options: Any) -> CausalModel:
    return load_model(ModelConfig(path=path), dtype, "cpu", **options)


def gradients(model: CausalModel) -> list[Tensor]:
    model.logprobs(batch(), 1.0, 8)[0].sum().backward()
    return [parameter.grad for parameter in model.module.parameters()]


def watched(model: CausalModel) -> tuple[int, Counter[str]]:
    """Bytes that the forward leaves for backward, and the costly operations of both."""
    rows = batch()
    model.hidden_states(rows)  # fills caches that are no activations
    with Watch() as watch:
        hidden = model.hidden_states(rows)
        kept = watch.alive_bytes()
        hidden.sum().backward()
    return kept, watch.counts


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write_tiny_llama(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_choice_changes_a_bit_of_the_gradients(path: str, dtype: torch.dtype) -> None:
    plain = gradients(load(path, dtype))
    for options in (
        {"checkpointing": "full"},
        {"checkpointing": "selective"},
        {"offload_activations": True},
        {"checkpointing": "full", "offload_activations": True},
    ):
        model = load(path, dtype, **options)
        assert model.module.training == ("checkpointing" in options)
        if model.offload is not None:
            model.offload._min_bytes = 0
        for ours, theirs in zip(gradients(model), plain, strict=True):
            assert ours.equal(theirs), options


def test_checkpointing_keeps_less_and_selective_repeats_no_costly_operation(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, counts = {}, {}
    for kind in ("none", "selective", "full"):
        kept[kind], counts[kind] = watched(load(path, torch.float32, checkpointing=kind))
    assert kept["full"] < 0.3 * kept["none"]
    assert kept["full"] < kept["selective"] < 0.85 * kept["none"]
    with monkeypatch.context() as patch:
        patch.setattr("rlvr.policy.model.keep_inputs_only", lambda module: None)
        of_plain_layers, _ = watched(load(path, torch.float32))
    assert kept["selective"] < 0.7 * of_plain_layers
    assert counts["none"].keys() > {"aten::mm"}  # and a kind of attention
    assert counts["selective"] == counts["none"]
    assert all(counts["full"][name] > number for name, number in counts["none"].items())


def test_the_costly_operations_exist() -> None:
    importlib.import_module("torch.nn.attention.varlen")  # registers its own
    for name in COSTLY:
        library, operation = name.split("::")
        assert getattr(getattr(torch.ops, library), operation).overloads()


def test_offload_leaves_parameters_and_small_tensors(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU what is moved is not there; here the copies lie in the same memory and are told apart."""
    monkeypatch.setattr("rlvr.policy.cpu_attention.KEPT_KEYS", 0)  # what is kept besides is saved by one operation only
    model = load(path, torch.float32)
    offload = ActivationOffload(model.module.parameters(), min_bytes=2000)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.module.parameters()}
    stayed, moved, asked = [], [], 0
    pack_one = offload._pack

    def spy(stay: set[int], tensor: Tensor) -> object:
        nonlocal asked
        packed = pack_one(stay, tensor)
        if isinstance(packed, Tensor):
            stayed.append(packed)
        else:
            asked += tensor.nbytes
            moved.append(packed)
        return packed

    offload._pack = spy
    model.offload = offload
    model.hidden_states(batch())
    assert any(tensor.untyped_storage().data_ptr() in parameters for tensor in stayed)
    for tensor in stayed:
        assert tensor.untyped_storage().data_ptr() in parameters or tensor.nbytes < 2000
    copies = {id(packed): packed.copy.nbytes for packed in moved}
    assert 0 < sum(copies.values()) < 0.8 * asked  # a tensor that several operations save is moved once
    assert not {packed.copy.untyped_storage().data_ptr() for packed in moved} & parameters


def test_offload_forgets_what_backward_has_used(path: str) -> None:
    model = load(path, torch.float32, offload_activations=True)
    model.offload._min_bytes = 0
    hidden = model.hidden_states(batch())
    assert len(model.offload._moved) > 0
    hidden.sum().backward()
    del hidden
    assert len(model.offload._moved) == 0


def test_offload_keeps_the_value_that_was_saved() -> None:
    """The same memory, written between two operations that save it, is moved twice."""
    offload = ActivationOffload([], min_bytes=0)
    values, weight = torch.ones(4), torch.full((4,), 2.0, requires_grad=True)
    with offload.saving():
        first = (weight * values).sum()
        values.mul_(10)  # refused without offload: the saved tensor is the memory itself
        second = (weight * values).sum()
    (first + second).backward()
    assert weight.grad.equal(torch.full((4,), 11.0))
