from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from rlvr.batch import pack
from rlvr.errors import ModelError
from rlvr.policy import cpu_attention
from rlvr.policy.attention import _by_shape, _flash, packed_attention
from rlvr.policy.layout import Layout, layout
from rlvr.policy.model import prepare

from .examples import VOCABULARY, tiny_llama

Attention = Callable[[Tensor, Tensor, Tensor, Layout, float | None], Tensor]
LENGTHS = (5, 1, 12, 12, 30, 2)


def rows() -> list[list[int]]:
    rng = torch.Generator().manual_seed(5)
    return [torch.randint(VOCABULARY, (length,), generator=rng).tolist() for length in LENGTHS]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_packed_forward_and_gradients_are_those_of_single_rows(kv_heads: int) -> None:
    plain, packed = tiny_llama(kv_heads=kv_heads), prepare(tiny_llama(kv_heads=kv_heads))
    up = torch.randn(sum(LENGTHS), 32, generator=torch.Generator().manual_seed(1))
    expected = torch.cat([plain.base_model(input_ids=torch.tensor([row])).last_hidden_state[0] for row in rows()])
    actual = packed.hidden_states(pack([(row[:1], row[1:]) for row in rows()]))

    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    (expected * up).sum().backward()
    (actual * up).sum().backward()
    theirs = dict(plain.base_model.named_parameters())
    for name, parameter in packed.module.base_model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-4, msg=name)


def test_rows_never_see_each_other() -> None:
    model = prepare(tiny_llama())
    before, changed = rows(), rows()
    changed[2] = [(token + 1) % VOCABULARY for token in changed[2]]
    with torch.no_grad():
        one, other = (model.hidden_states(pack([(r[:1], r[1:]) for r in all_rows])) for all_rows in (before, changed))
    start = sum(LENGTHS[:2])
    inside = slice(start, start + LENGTHS[2])
    assert one[:start].equal(other[:start])
    assert one[inside.stop :].equal(other[inside.stop :])
    assert not one[inside].isclose(other[inside]).any()


def test_tokens_never_see_later_ones() -> None:
    model = prepare(tiny_llama())
    row = rows()[4]
    with torch.no_grad():
        one, other = (model.hidden_states(pack([(r[:1], r[1:])])) for r in (row, [*row[:-1], 3]))
    torch.testing.assert_close(one[:-1], other[:-1], rtol=0, atol=0)
    assert not one[-1].isclose(other[-1]).any()


@pytest.mark.parametrize("form", [{"softcap": 50.0}, {"s_aux": torch.zeros(2)}])
def test_attention_of_another_form_is_refused(form: dict[str, object]) -> None:
    heads: list[Tensor] = [torch.zeros(1, 2, 9, 4)] * 3
    one_row = layout(pack([([1], [1] * 8)]))
    with pytest.raises(ModelError, match="soft-caps or sinks"):
        packed_attention(torch.nn.Identity(), *heads, None, layout=one_row, **form)


def test_rows_longer_than_a_sliding_window_are_refused() -> None:
    heads: list[Tensor] = [torch.zeros(1, 2, 9, 4)] * 3
    one_row = layout(pack([([1], [1] * 8)]))
    packed_attention(torch.nn.Identity(), *heads, None, layout=one_row, sliding_window=9)
    with pytest.raises(ModelError, match="sliding window of 8"):
        packed_attention(torch.nn.Identity(), *heads, None, layout=one_row, sliding_window=8)


HEAD_COUNTS = pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])


def shared_layout(device: str = "cpu", order: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Layout:
    """Two groups with shared beginnings, which have fewer queries than keys after them, and a row of its own."""
    rows = [([1] * 5, [2] * length) for length in (1, 4, 9)] + [([3, 4], [5] * 7)] * 2 + [([6] * 8, [7])]
    batch = pack([rows[number] for number in order])
    batch.group_ids = torch.tensor([0, 0, 0, 1, 1, 2])[list(order)]
    found = layout(batch.sharing().to(device))
    assert not found.query_starts.equal(found.key_starts)
    return found


def drawn(segments: Layout, heads: int, kv_heads: int, size: int) -> list[Tensor]:
    """Query, key and value as models make them: views of [1, S, heads, size]."""
    rng = torch.Generator().manual_seed(2)
    shapes = [(1, len(segments.tokens), count, size) for count in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=rng).transpose(1, 2) for shape in shapes]


def documented_varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """`varlen_attn` as its docstring and the checks of its kernel have it, causal masks aligned at the ends."""
    assert window_size == (-1, 0)
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    assert int(cu_seq_q[-1]) == len(query)
    assert int(cu_seq_k[-1]) == len(key) == len(value)
    assert enable_gqa or query.shape[1] == key.shape[1]
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    outputs = []
    for q_from, q_to, k_from, k_to in zip(cu_seq_q, cu_seq_q[1:], cu_seq_k, cu_seq_k[1:], strict=False):
        scores = torch.einsum("qhd,khd->hqk", query[q_from:q_to], key[k_from:k_to])
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(int(k_to - k_from) - int(q_to - q_from))
        scores = scores.masked_fill(~seen, -torch.inf)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[k_from:k_to]))
    return torch.cat(outputs)


def assert_is_by_shape(
    attention: Attention, segments: Layout, inputs: list[Tensor], scaling: float | None, tolerance: float
) -> None:
    """Forward and backward."""
    results = []
    for attend in (attention, _by_shape):
        leaves = [x.detach().requires_grad_() for x in inputs]
        output = attend(*leaves, segments, scaling)
        up = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).to(output)
        results.append([output, *torch.autograd.grad((output * up).sum(), leaves)])
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance)


@HEAD_COUNTS
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_flash_asks_for_the_same_attention(
    heads: int, kv_heads: int, scaling: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", documented_varlen_attn)
    segments = shared_layout()
    assert_is_by_shape(_flash, segments, drawn(segments, heads, kv_heads, 8), scaling, 1e-5)


@HEAD_COUNTS
@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (3, 0, 5, 1, 4, 2)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kept_keys", [0, 8, 100])
def test_on_the_cpu_it_is_attention_by_shape(
    heads: int,
    kv_heads: int,
    scaling: float | None,
    order: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
    kept_keys: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_attention, "KEPT_KEYS", kept_keys)

    def attend(query: Tensor, key: Tensor, value: Tensor, segments: Layout, scaling: float | None) -> Tensor:
        return packed_attention(torch.nn.Identity(), query, key, value, None, layout=segments, scaling=scaling)[0]

    segments = shared_layout(order=order)
    inputs = [x.to(dtype) for x in drawn(segments, heads, kv_heads, 8)]
    assert_is_by_shape(attend, segments, inputs, scaling, tolerance)


def test_values_narrower_than_keys_are_attended_to() -> None:
    segments = shared_layout()
    query, key, value = drawn(segments, 4, 4, 8)
    narrow, whole = (
        packed_attention(torch.nn.Identity(), query, key, x, None, layout=segments)[0] for x in (value[..., :4], value)
    )
    torch.testing.assert_close(narrow, whole[..., :4], rtol=1e-5, atol=1e-5)


@HEAD_COUNTS
def test_the_installed_torch_takes_flashs_arguments_and_has_a_backward(heads: int, kv_heads: int) -> None:
    """On tensors without data: nothing is computed, but every argument is looked at."""
    segments = shared_layout()
    empty = {name: value.to("meta") for name, value in vars(segments).items()}
    vars(segments).update(empty | {"longest": (9, 14)})
    leaves = [x.to("meta", torch.bfloat16).requires_grad_() for x in drawn(segments, heads, kv_heads, 64)]
    output = _flash(*leaves, segments, 0.125)
    assert output.shape == (1, len(segments.tokens), heads, 64)
    for gradient, leaf in zip(torch.autograd.grad(output.sum(), leaves), leaves, strict=True):
        assert gradient.shape == leaf.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@HEAD_COUNTS
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_on_a_gpu_flash_is_attention_by_shape(heads: int, kv_heads: int, scaling: float | None) -> None:
    segments = shared_layout("cuda")
    inputs = [x.to("cuda", torch.bfloat16) for x in drawn(segments, heads, kv_heads, 64)]
    assert_is_by_shape(_flash, segments, inputs, scaling, 3e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("size", "dtype"), [(20, torch.bfloat16), (264, torch.bfloat16), (64, torch.float64)])
def test_on_a_gpu_what_flash_refuses_goes_by_shape(size: int, dtype: torch.dtype) -> None:
    one_row = layout(pack([([1], [1] * 8)]).to("cuda"))
    heads = [torch.randn(1, 2, 9, size, dtype=dtype, device="cuda")] * 3
    output, _ = packed_attention(torch.nn.Identity(), *heads, None, layout=one_row)
    torch.testing.assert_close(output, _by_shape(*heads, one_row, None))
