from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.data.sampler import PromptSampler
from rlvr.errors import CheckpointError
from rlvr.records import Prompt

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=30)


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=f"p{i}", text="", token_ids=[1], reference="1", source="test") for i in range(count)]


def ids(batch: list[Prompt]) -> list[str]:
    return [prompt.id for prompt in batch]


@given(count=st.integers(1, 20), batches=sizes, seed=st.integers(0, 3))
def test_a_batch_repeats_nothing_unless_it_is_larger_than_the_data(count: int, batches: list[int], seed: int) -> None:
    sampler = PromptSampler(prompts(count), seed)
    for size in batches:
        batch = ids(sampler.next(size))
        assert len(batch) == size
        assert max(Counter(batch).values()) == -(-size // count)


@given(count=st.integers(1, 20), batches=sizes, seed=st.integers(0, 3))
def test_what_a_batch_postpones_is_visited_all_the_same(count: int, batches: list[int], seed: int) -> None:
    sampler = PromptSampler(prompts(count), seed)
    visits: Counter[str] = Counter({prompt.id: 0 for prompt in prompts(count)})
    for size in batches:
        visits.update(ids(sampler.next(min(size, count))))
        assert max(visits.values()) - min(visits.values()) <= 2
    drawn = sum(visits.values())
    while drawn % count:
        visits.update(ids(sampler.next(1)))
        drawn += 1
    assert set(visits.values()) == {drawn // count}


@given(count=st.integers(1, 20), before=sizes, after=sizes, seed=st.integers(0, 3), shuffle=st.booleans())
def test_a_resumed_sampler_goes_on_as_the_uninterrupted_one(
    count: int, before: list[int], after: list[int], seed: int, shuffle: bool
) -> None:
    whole = PromptSampler(prompts(count), seed, shuffle)
    for size in before:
        whole.next(size)
    resumed = PromptSampler(prompts(count), seed, shuffle)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for size in after:
        assert ids(whole.next(size)) == ids(resumed.next(size))
    assert whole.state_dict() == resumed.state_dict()


@given(count=st.integers(1, 20), held=st.integers(1, 20), size=st.integers(1, 30), seed=st.integers(0, 3))
def test_what_a_batch_holds_already_does_not_come_again(count: int, held: int, size: int, seed: int) -> None:
    sampler = PromptSampler(prompts(count), seed)
    first = sampler.next(min(held, count))
    more = sampler.next(size, besides=first)
    assert not set(ids(first)) & set(ids(more))
    assert len(more) == min(size, count - len(first))
    assert len(set(ids(more))) == len(more)


def test_retired_prompts_stay_away_and_postponed_ones_come_first() -> None:
    data = prompts(6)
    sampler = PromptSampler(data, seed=0, shuffle=False)
    sampler.next(6)
    sampler.retire([data[0], data[3]])
    sampler.postpone([data[5], data[2]])
    assert ids(sampler.next(2)) == ["p5", "p2"]
    assert ids(sampler.next(4)) == ["p1", "p2", "p4", "p5"]
    assert sampler.num_retired == 2
    assert sorted(ids(sampler.next(6))) == sorted(ids(data))
    assert sampler.num_retired == 0


def test_epochs_and_seeds_differ_and_without_shuffle_the_order_is_the_datas() -> None:
    data = prompts(50)
    sampler = PromptSampler(data, seed=0)
    first, second = ids(sampler.next(50)), ids(sampler.next(50))
    assert sorted(first) == sorted(second) == sorted(ids(data))
    assert first != second
    assert first != ids(PromptSampler(data, seed=1).next(50))
    assert first == ids(PromptSampler(data, seed=0).next(50))
    assert ids(PromptSampler(data, 0, shuffle=False).next(50)) == ids(data)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (PromptSampler(prompts(4), 0), "prompts is 5 prompts, .* in the checkpoint, 4 prompts, .* here"),
        (PromptSampler(prompts(5)[::-1], 0), "resume with the data"),
        (PromptSampler(prompts(5), 1), "seed is 0 in the checkpoint, 1 here"),
        (PromptSampler(prompts(5), 0, shuffle=False), "shuffle is True in the checkpoint, False here"),
    ],
)
def test_resuming_with_other_data_is_refused(other: PromptSampler, told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        other.load_state_dict(PromptSampler(prompts(5), 0).state_dict())
