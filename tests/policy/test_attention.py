import pytest
import torch
from torch import Tensor

from rlvr.batch import pack
from rlvr.errors import ModelError
from rlvr.policy.attention import packed_attention
from rlvr.policy.layout import layout
from rlvr.policy.model import prepare

from .examples import VOCABULARY, tiny_llama

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
