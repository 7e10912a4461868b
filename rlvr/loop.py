"""The synchronous loop: generate, score, update, sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlvr.batch import collate
from rlvr.config import TrainConfig
from rlvr.data.sampler import PromptSampler
from rlvr.errors import HandoverError, ScoringError
from rlvr.generation import sample_groups, trusted
from rlvr.observe.metrics import Clock, rollout_metrics
from rlvr.records import FAULTS, Group, Prompt
from rlvr.rollout.engine import RolloutEngine, Sampling
from rlvr.rollout.handover import Probe
from rlvr.scoring import Scorer
from rlvr.selection import Selection, select

if TYPE_CHECKING:
    from rlvr.objectives.objective import Objective
    from rlvr.policy.trainer import Policy

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass
class Loop:
    """The parts of a run, and the step it stands at."""

    config: TrainConfig
    sampling: Sampling
    sampler: PromptSampler
    engine: RolloutEngine
    scorer: Scorer
    objective: Objective
    policy: Policy
    probe: Probe
    decode: Callable[[Sequence[int]], str]
    """Text of token ids without special tokens, as the engines decode it."""
    progress: Progress
    """Shows how far a long phase is: `with progress("generate", total) as advance: advance(1)`."""
    step: int = 0
    """Steps done."""

    def steps(self) -> Iterator[tuple[list[Group], dict[str, float]]]:
        """Does the steps that are left; yields each one's rollouts and metrics once it is complete."""
        while self.step < self.config.steps:
            clock = Clock()
            groups = self.rollouts(clock)
            metrics = rollout_metrics(groups.sampled) | groups.metrics
            with clock("update"):
                metrics |= self.update(groups.kept)
            metrics |= self.sync(clock)
            self.step += 1
            yield groups.sampled, metrics | clock.metrics(metrics["tokens/generated"])

    def rollouts(self, clock: Clock) -> Selection:
        """Scored completions of the next prompts."""

        def sample(prompts: list[Prompt]) -> list[Group]:
            with self.progress("generate", len(prompts)) as advance:
                return sample_groups(
                    self.engine,
                    self.scorer,
                    prompts,
                    self.sampling,
                    num_samples=self.config.rollout.group_size,
                    seed=self.config.seed,
                    step=self.step + 1,
                    clock=clock,
                    advance=advance,
                )

        filters = self.config.objective.filters
        groups = select(self.sampler, sample, self.config.policy.prompts_per_step, filters)
        check_versions(groups.sampled, self.policy.version)
        check_faults(groups.sampled, self.config.scoring.max_fault_share)
        return groups

    def update(self, groups: list[Group]) -> dict[str, float]:
        """Trains the policy on the groups, verifier faults apart; the engine's memory is free meanwhile."""
        self.engine.sleep()
        batch = collate(trusted(groups), self.decode)
        self.policy.annotate(batch, self.objective)
        batch, metrics = self.objective.prepare(batch)
        metrics |= self.policy.update(batch, self.objective)
        self.engine.wake()
        return metrics

    def sync(self, clock: Clock) -> dict[str, float]:
        """Hands the policy's weights to the engine (phase `sync`) and proves that they arrived (`probe`)."""
        with clock("sync"):
            self.engine.load_weights(self.policy.weights(), self.policy.version)
        with clock("probe"):
            return self.probe.check(self.engine, self.policy)


def check_versions(groups: list[Group], version: int) -> None:
    """Every completion must come from the weights handed over last.

    Raises:
        HandoverError: naming both versions.
    """
    found = {rollout.completion.policy_version for group in groups for rollout in group.rollouts} - {version}
    if found:
        raise HandoverError(
            f"completions were sampled from weights of version {sorted(found)}, the policy is at {version}: "
            "the engine missed a hand-over"
        )


def check_faults(groups: list[Group], max_share: float) -> None:
    """Too many verdicts that are the verifier's or the data's fault leave nothing to trust.

    Raises:
        ScoringError: naming the share and the first faults.
    """
    verdicts = [(group.prompt.id, rollout.verdict) for group in groups for rollout in group.rollouts]
    faults = [(prompt, v) for prompt, v in verdicts if v.status in FAULTS]
    if len(faults) > max_share * len(verdicts):
        examples = "; ".join(f"prompt {prompt}: {v.status} {v.detail}".rstrip() for prompt, v in faults[:3])
        raise ScoringError(
            f"{len(faults)} of {len(verdicts)} verdicts are faults of the verifier or the data, more than "
            f"scoring.max_fault_share={max_share}: {examples}"
        )
