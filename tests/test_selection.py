"""Dynamic sampling and no-positive-resampling on scripted groups: what is sampled, kept, carried over and retired."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.data.sampler import PromptSampler
from rlvr.errors import RlvrError
from rlvr.objectives.spec import FilterSpec
from rlvr.records import Completion, Group, Prompt, Rollout, Verdict
from rlvr.selection import has_signal, select

COMPLETION = Completion([1], [0.0], "", "stop", 0)
MIXED = [True, False]


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=f"p{i}", text="", token_ids=[1], reference="1", source="test") for i in range(count)]


def group(prompt: Prompt, outcomes: list[bool]) -> Group:
    verdicts = [Verdict(float(right), "correct" if right else "wrong") for right in outcomes]
    return Group(prompt, [Rollout(COMPLETION, verdict) for verdict in verdicts])


class World:
    """Answers each prompt by its number; remembers what was asked, round by round."""

    def __init__(self, mixed: set[int], count: int = 40, seed: int = 0) -> None:
        self.mixed = mixed
        self.sampler = PromptSampler(prompts(count), seed, shuffle=False)
        self.rounds: list[list[str]] = []

    def sample(self, asked: list[Prompt]) -> list[Group]:
        self.rounds.append([prompt.id for prompt in asked])
        return [group(prompt, MIXED if int(prompt.id[1:]) in self.mixed else [True, True]) for prompt in asked]


@given(mixed=st.sets(st.integers(0, 39)), wanted=st.integers(1, 12), rounds=st.integers(1, 5), carry_over=st.booleans())
def test_dynamic_sampling_keeps_groups_with_signal_and_asks_for_none_twice(mixed, wanted, rounds, carry_over):
    world = World(mixed)
    filters = FilterSpec(dynamic_sampling=True, max_rounds=rounds, carry_over=carry_over)
    chosen = select(world.sampler, world.sample, wanted, filters)
    asked = [name for names in world.rounds for name in names]
    assert len(asked) == len(set(asked))
    assert [g.prompt.id for g in chosen.sampled] == asked
    useful = [g for g in chosen.sampled if has_signal(g, "outcome")]
    assert chosen.kept == useful[:wanted]
    assert len(world.rounds) <= rounds
    if len(chosen.kept) < wanted:
        assert len(world.rounds) == rounds or len(asked) == 40
    assert chosen.metrics == {
        "sampling/rounds": len(world.rounds),
        "groups/sampled": len(asked),
        "groups/kept": len(chosen.kept),
    }
    surplus = [g.prompt.id for g in useful[wanted:]]
    following = [prompt.id for prompt in world.sampler.next(max(len(surplus), 1))]
    assert (following[: len(surplus)] == surplus) or not carry_over


def test_without_dynamic_sampling_every_group_is_kept_after_one_round():
    world = World(mixed=set())
    chosen = select(world.sampler, world.sample, 8, FilterSpec())
    assert len(world.rounds) == 1
    assert chosen.kept == chosen.sampled
    assert len(chosen.kept) == 8
    assert chosen.metrics == {}


def test_a_further_round_asks_for_what_the_share_of_useful_groups_makes_necessary():
    world = World(mixed={0, *range(8, 40)})
    chosen = select(world.sampler, world.sample, 8, FilterSpec(dynamic_sampling=True))
    assert [len(names) for names in world.rounds] == [8, 8]  # 7 are missing at 1 in 8: as many as were wanted
    assert len(chosen.kept) == 8
    assert chosen.metrics["groups/sampled"] == 16


def test_too_few_groups_with_signal_stop_the_run_when_asked_to():
    world = World(mixed={5})
    filters = FilterSpec(dynamic_sampling=True, max_rounds=2, when_short="fail")
    with pytest.raises(RlvrError, match=r"1 of 4 groups .* 2 rounds, 8 prompts; raise objective.filters.max_rounds=2"):
        select(world.sampler, world.sample, 4, filters)


def test_signal_is_of_the_outcome_or_of_the_reward_and_faults_have_none():
    (prompt,) = prompts(1)
    shaped = Group(prompt, [Rollout(COMPLETION, Verdict(reward, "wrong")) for reward in (0.0, -0.5)])
    assert not has_signal(shaped, "outcome")
    assert has_signal(shaped, "reward")
    faulty = Group(prompt, [*group(prompt, [True]).rollouts, Rollout(COMPLETION, Verdict(0.0, "timeout"))])
    assert not has_signal(faulty, "reward")


def test_solved_prompts_leave_later_epochs_and_come_back_when_too_few_are_left():
    world = World(mixed={0, 1, 2}, count=5)
    filters = FilterSpec(no_positive_resampling=0.9)
    first = select(world.sampler, world.sample, 5, filters)
    assert first.metrics == {"prompts/retired": 2.0}
    resumed = World({0, 1, 2}, count=5)
    resumed.sampler.load_state_dict(json.loads(json.dumps(world.sampler.state_dict())))
    for again in (world, resumed):
        chosen = select(again.sampler, again.sample, 3, filters)
        assert {g.prompt.id for g in chosen.sampled} == {"p0", "p1", "p2"}
        assert len(select(again.sampler, again.sample, 4, filters).sampled) == 4


def test_a_pass_rate_at_the_threshold_is_enough():
    sampler = PromptSampler(prompts(2), 0)
    chosen = select(
        sampler,
        lambda asked: [group(p, [True] * 9 + [False]) for p in asked],
        1,
        FilterSpec(no_positive_resampling=0.9),
    )
    assert chosen.metrics == {"prompts/retired": 1.0}
