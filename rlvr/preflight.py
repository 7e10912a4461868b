"""What is looked at before the first step: can this run learn at all, and what will it need?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlvr.batch import collate
from rlvr.config import TrainConfig
from rlvr.errors import RlvrError
from rlvr.generation import sample_groups, trusted
from rlvr.observe.console import duration
from rlvr.observe.metrics import Clock, resident_gib, rollout_metrics
from rlvr.policy.memory import bytes_per_parameter
from rlvr.records import Prompt
from rlvr.scoring import Scorer, audit

if TYPE_CHECKING:
    from rlvr.loop import Loop

NUM_GOLDS = 200
NUM_PROMPTS = 16
TRUNCATED = 0.3  # share of truncated completions that is worth a warning
MIXED = 0.1  # share of groups with signal below which it is
FORWARDS = 3.0  # an update (forward and backward) in forwards


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["ok", "warn", "refuse"]
    text: str
    """What was seen and, where it is bad, the cure."""


def preflight(loop: Loop, prompts: Sequence[Prompt]) -> list[Finding]:
    """Audits the golds and samples one small batch; the run's own steps are untouched by it."""
    trial = prompts[:: max(1, len(prompts) // NUM_PROMPTS)][:NUM_PROMPTS]
    return [
        *examine_golds(loop.scorer, prompts[:: max(1, len(prompts) // NUM_GOLDS)][:NUM_GOLDS], loop.config),
        *examine_batch(loop, trial),
    ]


def refuse(findings: Sequence[Finding]) -> None:
    """Stops where nothing can be learnt.

    Raises:
        RlvrError: with every reason.
    """
    reasons = [finding.text for finding in findings if finding.level == "refuse"]
    if reasons:
        raise RlvrError("preflight: " + "; ".join(reasons) + " (preflight=warn starts all the same)")


def examine_golds(scorer: Scorer, prompts: Sequence[Prompt], config: TrainConfig) -> list[Finding]:
    """Every gold must verify against itself, and a wrong answer must not."""
    if scorer.verifier.outcome is None:
        return [Finding("ok", "golds: no verifier of outcomes, nothing to audit")]
    audited = audit(scorer, prompts)
    defects = audited.defects
    if not defects:
        told = len(prompts) - len(audited.silent)
        return [Finding("ok", f"golds: {told} of {len(prompts)} verify against themselves, wrong ones do not")]
    bad = len({defect.prompt.id for defect in defects})
    level: Literal["warn", "refuse"] = "refuse" if bad > config.scoring.max_fault_share * len(prompts) else "warn"
    examples = "; ".join(f"prompt {d.prompt.id}: {d.problem}" for d in defects[:3])
    cure = "check data.answer, data.answer_after and the verifier"
    return [Finding(level, f"golds: {bad} of {len(prompts)} fail: {examples}; {cure}")]


def examine_batch(loop: Loop, prompts: Sequence[Prompt]) -> list[Finding]:
    """Samples and scores a group of each prompt: truncation, solve rate, signal, time and memory."""
    config, clock = loop.config, Clock()
    groups = sample_groups(
        loop.engine,
        loop.scorer,
        prompts,
        loop.sampling,
        num_samples=config.rollout.group_size,
        seed=config.seed,
        step=-1,  # no step of the run: its samples stay its own
        clock=clock,
    )
    metrics = rollout_metrics(groups)
    with clock("forward"):
        loop.policy.logprobs(collate(trusted(groups), loop.decode))
    return [_truncation(metrics, config), _signal(metrics, len(groups)), _estimate(loop, len(groups), clock)]


def _truncation(metrics: dict[str, float], config: TrainConfig) -> Finding:
    share, limit = metrics["length/truncated"], config.rollout.max_new_tokens
    text = f"truncated: {share:.0%} of completions, {metrics['length/mean']:.0f} tokens in the mean"
    cure = f"; raise rollout.max_new_tokens={limit}, or ask for shorter answers in data.user"
    if share >= 1:
        return Finding("refuse", text + ": none ends by itself, so none can be right" + cure)
    return Finding("warn", text + cure) if share > TRUNCATED else Finding("ok", text)


def _signal(metrics: dict[str, float], num_groups: int) -> Finding:
    accuracy, constant = metrics["accuracy"], metrics["groups/zero_variance"]
    text = f"signal: {accuracy:.1%} right; {1 - constant:.0%} of {num_groups} groups have unequal rewards"
    easier = "take easier data, a cold start (cold_start.steps) or worked examples (data.examples)"
    cure = f"; {easier if accuracy < 0.5 else 'the data is solved already: take harder data'}"
    if constant >= 1:
        return Finding("refuse", text + ", so the gradient is zero" + cure)
    return Finding("warn", text + cure) if 1 - constant < MIXED else Finding("ok", text)


def _estimate(loop: Loop, num_prompts: int, clock: Clock) -> Finding:
    """Time from the speed of the trial batch; memory held now and what the optimizer will add."""
    config, seconds = loop.config, clock.metrics(0)
    scale = config.policy.prompts_per_step / num_prompts
    rollouts = scale * (seconds["time/generate"] + seconds["time/score"])
    policy = loop.policy
    update = scale * seconds["time/forward"] * FORWARDS * config.objective.epochs * policy.num_networks
    kept = bytes_per_parameter(config.policy)
    optimizer = (kept.gradients + kept.moments) * policy.num_trained_parameters / 2**30  # the rest is there by now
    return Finding(
        "ok",
        f"estimate: {rollouts:.1f} s a step to generate and score, {update:.1f} s to update, "
        f"{duration((rollouts + update) * config.steps)} for {config.steps} steps; "
        f"{resident_gib():.1f} GiB of memory now, {optimizer:.1f} GiB more for gradients and optimizer",
    )
