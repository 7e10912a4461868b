"""Shared beginnings: what is computed once, and that nothing but rounding changes."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.batch import Batch, pack
from rlvr.policy.layout import layout
from rlvr.policy.model import prepare

from .examples import tiny_llama

tokens = st.lists(st.integers(2, 4), min_size=1, max_size=6)  # few different ones: completions begin alike by chance
groups = st.lists(st.tuples(tokens, st.lists(tokens, min_size=1, max_size=4)), min_size=1, max_size=4)


def batch_of(groups: list[tuple[list[int], list[list[int]]]], order: list[int] | None = None) -> Batch:
    rows = [(number, prompt, row) for number, (prompt, rows) in enumerate(groups) for row in rows]
    rows = rows if order is None else [rows[i] for i in order]
    batch = pack([(prompt, row) for _, prompt, row in rows])
    batch.group_ids = torch.tensor([number + 5 for number, _, _ in rows])
    return batch


def test_a_group_computes_what_all_its_rows_begin_with_once() -> None:
    batch = batch_of([([7, 8], [[1, 2, 3], [1, 4]]), ([9], [[5, 6]]), ([3, 3], [[2], [2, 2]])]).sharing()
    assert batch.shared_lengths is not None
    assert batch.shared_lengths.tolist() == [3, 3, 0, 2, 2]  # 7 8 1; a group of one; 3 3, for a row must keep a token
    found = layout(batch)
    assert batch.token_ids[found.tokens].tolist() == [7, 8, 1, 3, 3, 2, 3, 4, 9, 5, 6, 2, 2, 2]
    assert found.query_starts.tolist() == [0, 3, 5, 7, 8, 11, 12, 14]
    assert found.key_starts.diff().tolist() == [3, 2, 5, 4, 3, 3, 4]
    keys = batch.token_ids[found.tokens][found.key_index]
    assert keys[5:].tolist() == batch.token_ids.tolist()


@given(groups, st.randoms())
def test_a_computed_token_stands_for_equal_tokens_after_equal_beginnings(groups, random) -> None:
    order = list(range(sum(len(rows) for _, rows in groups)))
    random.shuffle(order)
    batch = batch_of(groups, order).sharing()
    found = layout(batch)
    chosen = found.tokens[found.places]
    assert sorted(set(found.places.tolist())) == list(range(len(found.tokens)))
    for place, source in enumerate(chosen.tolist()):
        assert batch.position_ids[place] == batch.position_ids[source]
        length = int(batch.position_ids[place]) + 1
        assert batch.token_ids[place + 1 - length : place + 1].equal(batch.token_ids[source + 1 - length : source + 1])
    num_saved = batch.num_tokens - len(found.tokens)
    assert batch.shared_lengths is not None
    expected = 0
    for group in set(batch.group_ids.tolist()):
        of = batch.shared_lengths[batch.group_ids == group]
        expected += int(of[0]) * (len(of) - 1)
    assert num_saved == expected


@given(groups, st.integers(1, 4), st.integers(1, 60), st.randoms())
def test_stacks_have_each_query_once_with_all_its_keys(groups, block, num_scores, random) -> None:
    order = list(range(sum(len(rows) for _, rows in groups)))
    random.shuffle(order)
    found = layout(batch_of(groups, order).sharing())
    wanted: dict[int, list[int]] = {}
    for number, (start, end) in enumerate(pairwise(found.query_starts.tolist())):
        keys = found.key_index[found.key_starts[number] : found.key_starts[number + 1]].tolist()
        for query in range(start, end):
            wanted[query] = keys[: len(keys) - (end - 1 - query)]
    seen: dict[int, list[int]] = {}
    with patch("rlvr.policy.layout.BLOCK", block):
        stacks = found.stacks
    for stack in stacks:
        for part in stack.split(num_scores):
            (rows, queries), (_, keys) = part.queries.shape, part.keys.shape
            assert queries <= block
            assert rows == 1 or rows * queries * keys <= num_scores
            for some, others in zip(part.queries.tolist(), part.keys.tolist(), strict=True):
                for number, query in enumerate(some, start=1):
                    assert query not in seen
                    seen[query] = others[: keys - queries + number]
    assert seen == wanted


@settings(max_examples=25)
@given(groups, st.integers(5, 40), st.randoms())
def test_microbatches_keep_sharing_rows_together_within_the_budget(groups, budget, random) -> None:
    order = list(range(sum(len(rows) for _, rows in groups)))
    random.shuffle(order)
    batch = batch_of(groups, order).sharing()
    parts = batch.microbatch_rows(budget)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(batch.num_rows))
    for part in parts:
        num_tokens = len(layout(batch.select(part)).tokens)
        assert num_tokens <= budget or len(part) == 1


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_hidden_states_and_gradients_are_those_of_rows_computed_alone(kv_heads: int) -> None:
    rng = torch.Generator().manual_seed(3)

    def some(count: int) -> list[int]:
        return torch.randint(2, 97, (count,), generator=rng).tolist()

    batch = batch_of([(some(9), [some(4), some(4), some(1)]), (some(3), [some(7)]), (some(5), [some(2), some(6)])])
    up = torch.randn(batch.num_tokens, 32, generator=rng)
    alone, together = (prepare(tiny_llama(kv_heads=kv_heads)) for _ in range(2))
    expected, actual = alone.hidden_states(batch), together.hidden_states(batch.sharing())
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    (expected * up).sum().backward()
    (actual * up).sum().backward()
    theirs = dict(alone.module.named_parameters())
    for name, parameter in together.module.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-4, msg=name)
