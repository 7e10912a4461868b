"""Which prompts and groups a step trains on: dynamic sampling and no-positive-resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlvr.data.sampler import PromptSampler
from rlvr.errors import RlvrError
from rlvr.objectives.spec import FilterSpec
from rlvr.records import Group, Prompt


@dataclass(frozen=True)
class Selection:
    """The groups of one step."""

    sampled: list[Group]
    """All of them, in the order of sampling."""
    kept: list[Group]
    """Those to train on, at most as many as were wanted."""
    metrics: dict[str, float]
    """With dynamic sampling the counts `sampling/rounds`, `groups/sampled`, `groups/kept`; with no-positive-resampling
    `prompts/retired`."""


def select(
    sampler: PromptSampler, sample: Callable[[list[Prompt]], list[Group]], wanted: int, filters: FilterSpec
) -> Selection:
    """Samples groups of the next prompts until there are `wanted` to train on.

    Dynamic sampling (DAPO, arXiv 2503.14476, eq. 11): only groups in which something differs count, and further
    prompts are sampled, `max_rounds` times at most and none twice. Each further round asks for as many prompts as the
    share of useful groups so far makes necessary. No-positive-resampling (ScaleRL, arXiv 2510.13786): prompts that
    are solved leave the epochs to come.

    Args:
        sample: scored groups of prompts, in their order.

    Raises:
        RlvrError: fewer groups than wanted with `when_short=fail`.
    """
    sampled: list[Group] = []
    useful: list[Group] = []
    rounds = 0
    while len(useful) < wanted and rounds < (filters.max_rounds if filters.dynamic_sampling else 1):
        prompts = sampler.next(_num_prompts(wanted, useful, sampled), besides=[group.prompt for group in sampled])
        if not prompts:
            break
        groups = sample(prompts)
        rounds += 1
        sampled += groups
        useful += [g for g in groups if has_signal(g, filters.zero_variance_on)] if filters.dynamic_sampling else groups
    if len(useful) < wanted and filters.when_short == "fail":
        raise RlvrError(
            f"dynamic sampling: {len(useful)} of {wanted} groups have unequal outcomes after {rounds} rounds, "
            f"{len(sampled)} prompts; raise objective.filters.max_rounds={filters.max_rounds} or rollout.group_size, "
            "take data nearer to the model's level, or set objective.filters.when_short=train"
        )
    metrics: dict[str, float] = {}
    if filters.dynamic_sampling:
        counts = {"sampling/rounds": rounds, "groups/sampled": len(sampled), "groups/kept": min(len(useful), wanted)}
        metrics |= {name: float(count) for name, count in counts.items()}
    if filters.carry_over:
        sampler.postpone(group.prompt for group in useful[wanted:])
    if filters.no_positive_resampling is not None:
        sampler.retire(group.prompt for group in sampled if _pass_rate(group) >= filters.no_positive_resampling)
        metrics["prompts/retired"] = float(sampler.num_retired)
    return Selection(sampled, useful[:wanted], metrics)


def has_signal(group: Group, on: str) -> bool:
    """Whether the trusted rollouts differ in outcome (`on="outcome"`) or in reward (`on="reward"`)."""
    verdicts = [rollout.verdict for rollout in group.rollouts if not rollout.verdict.is_fault]
    return len({verdict.is_correct if on == "outcome" else verdict.reward for verdict in verdicts}) > 1


def _pass_rate(group: Group) -> float:
    """Share of the trusted rollouts that are correct; nan without any, which reaches no threshold."""
    outcomes = [rollout.verdict.is_correct for rollout in group.rollouts if not rollout.verdict.is_fault]
    return sum(outcomes) / len(outcomes) if outcomes else math.nan


def _num_prompts(wanted: int, useful: Sequence[Group], sampled: Sequence[Group]) -> int:
    """Prompts of the next round: what is missing over the share that has been useful so far, at most `wanted`."""
    missing = wanted - len(useful)
    return min(wanted, math.ceil(missing * len(sampled) / len(useful))) if useful else wanted
