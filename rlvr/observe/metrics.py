"""Metric names and the reductions behind them: what the rollouts of a step say, where its time and memory went."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import numpy as np

from rlvr.records import Group, Rollout, Status

# Metrics that differ between two runs of the same seed: measurements of the machine, not of learning.
UNREPEATABLE = ("time/", "tokens_per_second", "memory/")


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over all rollouts of a step whose verdict is no fault; faults are counted in `verify/*` only.

    `reward/std` is the population's standard deviation over rollouts. `length/*` are in tokens. `length/truncated`,
    `accuracy`, `groups/*` and `verify/*` are shares (0 to 1): `groups/zero_variance` of groups whose rewards are all
    equal (a group with fewer than two rewards has none to compare, so it counts), `groups/mixed` of groups with both
    correct and incorrect rollouts. `tokens/generated` is a count and includes the faults. A mean of nothing is nan.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    kept = [rollout for rollout in rollouts if not rollout.verdict.is_fault]
    kept_groups = [[r for r in group.rollouts if not r.verdict.is_fault] for group in groups]
    rewards = [r.verdict.reward for r in kept]
    lengths = [len(r.completion.token_ids) for r in kept]
    statuses = Counter(r.verdict.status for r in rollouts)
    return {
        "reward/mean": _mean(rewards),
        "reward/std": float(np.std(rewards)) if rewards else float("nan"),
        **_part_means(kept),
        "accuracy": _mean([r.verdict.is_correct for r in kept]),
        "length/mean": _mean(lengths),
        "length/max": float(max(lengths, default=0)),
        "length/truncated": _mean([r.completion.finish_reason == "length" for r in kept]),
        "groups/zero_variance": _mean([len({r.verdict.reward for r in group}) < 2 for group in kept_groups]),
        "groups/mixed": _mean([len({r.verdict.is_correct for r in group}) == 2 for group in kept_groups]),
        **{f"verify/{status}": statuses[status] / max(len(rollouts), 1) for status in get_args(Status)},
        "tokens/generated": float(sum(len(r.completion.token_ids) for r in rollouts)),
    }


def _part_means(rollouts: Sequence[Rollout]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for name, value in rollout.verdict.parts.items():
            values[name].append(value)
    return {f"reward/{name}": _mean(values[name]) for name in sorted(values)}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


class Clock:
    """Times one step and its phases: `with clock("generate"): ...`; a phase entered twice adds up.

    Phases may overlap (scoring runs beside generation), so they need not add up to `time/step`.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = now()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = self._now()
        try:
            yield
        finally:
            self._seconds[phase] += self._now() - start

    def metrics(self, num_tokens: float) -> dict[str, float]:
        """`time/<phase>` and `time/step` in seconds so far, and generated tokens per second of the whole step."""
        step = self._now() - self._start
        phases = {f"time/{phase}": seconds for phase, seconds in self._seconds.items()}
        return {**phases, "time/step": step, "tokens_per_second": num_tokens / step if step > 0 else float("nan")}


def resident_gib() -> float:
    """Resident memory of this process and all it started, in GiB; pages they share count once for each.

    nan where there is no /proc.
    """
    parents, pages = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The command's name may hold spaces and brackets: fields are counted after its closing one.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        parents[int(folder.name)] = int(fields[1])
        pages[int(folder.name)] = int(fields[21])
    if not pages:
        return float("nan")
    family, found = {os.getpid()}, True
    while found:
        children = {pid for pid, parent in parents.items() if parent in family} - family
        family |= children
        found = bool(children)
    return sum(pages.get(pid, 0) for pid in family) * os.sysconf("SC_PAGE_SIZE") / 2**30
