from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.batch import ROW_FIELDS, Batch, collate, pack
from rlvr.objectives.experience import Experience
from rlvr.records import Completion, Group, Prompt, Rollout, Verdict
from rlvr.validation import field_docs


def group(prompt: list[int], *completions: tuple[list[int], float]) -> Group:
    rollouts = [
        Rollout(
            Completion(ids, [-0.5 * i for i in ids], "", "length" if len(ids) > 2 else "stop", 3), Verdict(r, status)
        )
        for ids, r in completions
        for status in ["correct" if r > 0 else "wrong"]
    ]
    return Group(Prompt("p", "", prompt, None, "s"), rollouts)


def letters(token_ids: Sequence[int]) -> str:
    """Token n is n letters."""
    return "".join("x" * n for n in token_ids)


def sized_batch(lengths: list[int]) -> Batch:
    """Rows of these lengths; each token's id and log-prob are numbers that occur once."""
    numbers = iter(range(10_000))
    batch = pack([([next(numbers)], [next(numbers) for _ in range(length - 1)]) for length in lengths])
    values = batch.token_ids.float()
    return replace(batch, rollout_logprobs=values, old_logprobs=values + 0.5, advantages=-values)


row_lengths = st.lists(st.integers(1, 30), min_size=1, max_size=20)


def test_collate_packs_prompts_and_completions_end_to_end() -> None:
    batch = collate([group([7, 8], ([1, 2, 3], 1.0), ([4], -0.5)), group([9], ([5, 6], 0.0))], letters)

    assert batch.token_ids.tolist() == [7, 8, 1, 2, 3, 7, 8, 4, 9, 5, 6]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]
    assert batch.row_starts.tolist() == [0, 5, 8, 11]
    assert batch.row_ids.tolist() == [0] * 5 + [1] * 3 + [2] * 3
    assert batch.loss_mask.tolist() == [i in (2, 3, 4, 7, 9, 10) for i in range(11)]
    assert batch.rollout_logprobs.tolist() == [0, 0, -0.5, -1, -1.5, 0, 0, -2, 0, -2.5, -3]
    assert batch.group_ids.tolist() == [0, 0, 1]
    assert batch.rewards.tolist() == [1.0, -0.5, 0.0]
    assert batch.rewards.dtype == torch.float64
    assert batch.correct.tolist() == [True, False, False]
    assert batch.truncated.tolist() == [True, False, False]


def test_collate_of_nothing_is_an_empty_batch() -> None:
    batch = collate([], letters)
    assert (batch.num_rows, batch.num_tokens) == (0, 0)
    assert list(batch.minibatches(2)) == []
    assert batch.microbatch_rows(8) == []


def test_collate_takes_a_completion_without_tokens() -> None:
    batch = collate([group([7, 8], ([], 0.0), ([4], 1.0))], letters)
    assert batch.row_lengths.tolist() == [2, 3]
    assert batch.loss_mask.sum() == 1


def test_step_rewards_stand_at_the_token_that_completes_the_step() -> None:
    scored = group([7, 8], ([3, 2, 4], 1.0), ([1], 0.0))
    # After its tokens the text is 3, 5 and 9 long: 1..3 end in the first, 4 and 5 in the second, all else in the last.
    rewards = [(2, 0.5), (3, 0.25), (5, -1.0), (9, 2.0), (99, 1.0)]
    scored.rollouts[0] = replace(scored.rollouts[0], verdict=Verdict(1.0, "correct", step_rewards=rewards))
    batch = collate([scored], letters)
    assert batch.step_rewards is not None
    assert batch.step_ends is not None
    assert batch.step_rewards.tolist() == [0, 0, 0.75, -1.0, 3.0, 0, 0, 0]
    assert batch.step_ends.tolist() == [False, False, True, True, True, False, False, False]


def test_likeliest_tokens_stand_at_the_tokens_they_belong_to() -> None:
    scored = group([7, 8], ([1, 2], 1.0), ([5], 0.0))
    for number, rollout in enumerate(scored.rollouts):
        ids = np.array([[token, token + 10] for token in rollout.completion.token_ids], np.int32)
        told = replace(rollout.completion, topk_ids=ids, topk_logprobs=-ids.astype(np.float32))
        scored.rollouts[number] = replace(rollout, completion=told)
    batch = collate([scored], letters)
    assert batch.topk_ids is not None
    assert batch.topk_logprobs is not None
    assert batch.topk_ids[batch.loss_mask].tolist() == [[1, 11], [2, 12], [5, 15]]
    assert batch.topk_logprobs[batch.loss_mask].tolist() == [[-1, -11], [-2, -12], [-5, -15]]
    assert torch.isneginf(batch.topk_logprobs[~batch.loss_mask]).all()


def test_collate_refuses_faulty_rows() -> None:
    bad = group([7], ([1], 0.0))
    bad.rollouts[0] = replace(bad.rollouts[0], verdict=Verdict(0.0, "timeout"))
    with pytest.raises(AssertionError, match="faulty"):
        collate([bad], letters)


@given(row_lengths, st.randoms())
def test_select_keeps_each_row_whole(lengths: list[int], random) -> None:
    batch = sized_batch(lengths)
    chosen = random.sample(range(len(lengths)), random.randint(1, len(lengths)))
    part = batch.select(torch.tensor(chosen))

    assert part.group_ids.tolist() == chosen
    assert part.row_lengths.tolist() == [lengths[row] for row in chosen]
    for place, row in enumerate(chosen):
        old = slice(*batch.row_starts[row : row + 2].tolist())
        new = slice(*part.row_starts[place : place + 2].tolist())
        assert part.row_ids[new].tolist() == [place] * lengths[row]
        for field in ("token_ids", "position_ids", "loss_mask", "rollout_logprobs", "old_logprobs", "advantages"):
            assert getattr(part, field)[new].equal(getattr(batch, field)[old]), field
    assert part.ref_logprobs is None


def test_select_knows_which_tensors_hold_a_value_a_row() -> None:
    shapes = field_docs(Experience) | field_docs(Batch)
    assert {name for name in shapes if shapes[name].startswith("[N]")} == ROW_FIELDS
    assert all(shapes[field.name].startswith(("[N]", "[T", "[N + 1]")) for field in fields(Batch))


@given(row_lengths, st.integers(1, 8), st.booleans())
def test_minibatches_share_out_all_rows_evenly(lengths: list[int], num: int, shuffled: bool) -> None:
    batch = sized_batch(lengths)
    generator = torch.Generator().manual_seed(3) if shuffled else None
    parts = list(batch.minibatches(num, generator))

    rows = [row for part in parts for row in part.group_ids.tolist()]
    assert sorted(rows) == list(range(len(lengths)))
    assert len(parts) == min(num, len(lengths))
    sizes = [part.num_rows for part in parts]
    assert max(sizes) - min(sizes) <= 1
    if not shuffled:
        assert rows == sorted(rows)


def test_minibatches_follow_their_seed() -> None:
    batch = sized_batch([2] * 32)

    def order(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return [row for part in batch.minibatches(4, generator) for row in part.group_ids.tolist()]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0) != list(range(32))


@given(row_lengths, st.integers(1, 60))
def test_microbatches_hold_every_row_within_the_budget(lengths: list[int], budget: int) -> None:
    batch = sized_batch(lengths)
    parts = batch.microbatch_rows(budget)

    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    for part in parts:
        assert part.tolist() == sorted(part.tolist())
        assert sum(lengths[row] for row in part) <= budget or len(part) == 1
    assert [p.tolist() for p in parts] == [p.tolist() for p in batch.microbatch_rows(budget)]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(30, 90))
def test_microbatches_are_even(lengths: list[int], budget: int) -> None:
    loads = [sum(lengths[row] for row in part) for part in sized_batch(lengths).microbatch_rows(budget)]
    # The lightest bin got the last row of the heaviest, so they never differ by more than one row.
    assert max(loads) - min(loads) <= max(lengths)


def test_microbatches_of_chosen_rows_only() -> None:
    batch = sized_batch([5, 6, 7, 8])
    parts = batch.microbatch_rows(9, torch.tensor([0, 3]))
    assert [part.tolist() for part in parts] == [[0], [3]]
    assert [rows.tolist() for rows in batch.microbatch_rows(13)] == [[0, 3], [1, 2]]
