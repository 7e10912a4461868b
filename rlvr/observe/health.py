"""Alarms: patterns in the metrics that mean a run does not learn, each with its cause and its cure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Metrics = Mapping[str, float | None]


class StepMetrics:
    """Metrics of a step by name; what is missing reads as nan, so that every comparison with it is false."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __getitem__(self, name: str) -> float:
        value = self._metrics.get(name)
        return math.nan if value is None else value

    def broken(self, name: str) -> bool:
        """The metric is there and not finite (null in `metrics.jsonl`)."""
        return name in self._metrics and not math.isfinite(self[name])


@dataclass(frozen=True)
class Rule:
    """One alarm: it sounds when `holds` has been true for `steps` steps in a row, once for each such stretch."""

    name: str
    steps: int
    holds: Callable[[StepMetrics, StepMetrics], bool]
    """Of the metrics of this step and of the first that trained the policy; comparisons with missing ones are false."""
    says: str
    """Cause and cure; `{metric}` is filled in, `{steps}` too."""


SOLVED = 0.9  # accuracy from which equal rewards mean success and low entropy is what was asked for

RULES = (
    Rule(
        "truncation",
        3,
        lambda now, first: now["length/truncated"] > 0.3,
        "{length/truncated:.0%} of completions hit the length limit: an answer cut off earns nothing; "
        "raise rollout.max_new_tokens, or add the `overlong` verifier so that shorter ones pay",
    ),
    Rule(
        "nothing_kept",
        3,
        lambda now, first: now["groups/kept"] == 0,
        "for {steps} steps dynamic sampling found no group to train on (accuracy {accuracy:.1%}); take data nearer to "
        "the model's level, or more samples (rollout.group_size)",
    ),
    Rule(
        "no_signal_unsolved",
        3,
        lambda now, first: now["groups/zero_variance"] >= 1 and now["accuracy"] < SOLVED,
        "for {steps} steps every group had equal rewards (accuracy {accuracy:.1%}), so the gradient was zero; take "
        "easier data, more samples (rollout.group_size) or a cold start (cold_start.steps)",
    ),
    Rule(
        "no_signal_solved",
        3,
        lambda now, first: now["groups/zero_variance"] >= 1 and now["accuracy"] >= SOLVED,
        "for {steps} steps every group had equal rewards (accuracy {accuracy:.1%}): the data is solved; "
        "stop here or take harder data",
    ),
    Rule(
        "entropy",
        3,
        lambda now, first: now["policy/entropy"] < 0.1 * first["policy/entropy"] and now["accuracy"] < SOLVED,
        "entropy fell to {policy/entropy:.2g}, under a tenth of its start: samples of a group become alike and "
        "learning stalls; raise objective.trust.high (clip-higher), lower policy.learning_rate or set "
        "objective.entropy.coef",
    ),
    Rule(
        "mismatch",
        2,
        lambda now, first: now["mismatch/kl"] > 0.05,
        "sampler and policy disagree (mismatch/kl {mismatch/kl:.2g}): set rollout.dtype to policy.dtype or float32, or "
        "objective.correction.kind=truncate",
    ),
    Rule(
        "verifier_faults",
        1,
        lambda now, first: sum(now[f"verify/{s}"] for s in ("timeout", "error", "oversize", "unparseable_gold")) > 0.05,
        "verifier faults: {verify/timeout:.1%} time-outs, {verify/error:.1%} errors, {verify/oversize:.1%} oversize, "
        "{verify/unparseable_gold:.1%} unreadable references; those rows are left out; `rlvr show RUN step=N "
        "status=timeout` shows them, scoring.deadline_seconds gives more time",
    ),
    Rule(
        "grad_norm",
        1,
        lambda now, first: now.broken("policy/grad_norm") or now["policy/skipped"] > 0,
        "the gradient was not finite and its update was left out: lower policy.learning_rate, or try "
        "policy.dtype=float32",
    ),
)


class Health:
    """Watches the steps of a run.

    Args:
        history: metrics of the steps before, when a run is gone on with (`read_metrics`).
        rules: the alarms.
    """

    def __init__(self, history: Iterable[Metrics] = (), rules: tuple[Rule, ...] = RULES) -> None:
        self._rules = rules
        self._first: Metrics | None = None
        self._stretch = dict.fromkeys((rule.name for rule in rules), 0)
        for metrics in history:
            self.check(metrics)

    def check(self, metrics: Metrics) -> list[str]:
        """Warnings that begin with this step, one line each."""
        if self._first is None and "policy/entropy" in metrics:
            self._first = metrics
        warnings = []
        for rule in self._rules:
            holds = rule.holds(StepMetrics(metrics), StepMetrics(self._first or {}))
            self._stretch[rule.name] = self._stretch[rule.name] + 1 if holds else 0
            if self._stretch[rule.name] == rule.steps:
                warnings.append(rule.says.format_map({**metrics, "steps": rule.steps}))
        return warnings
