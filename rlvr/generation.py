"""Generate and score: sampled completions go to the verifiers while the rest are still being sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rlvr.records import Completion, Group, Prompt, Rollout
from rlvr.rollout.engine import Request, RolloutEngine, Sampling, sample_seed
from rlvr.verifiers.base import Case

if TYPE_CHECKING:
    from rlvr.scoring import Scorer


def sample_groups(
    engine: RolloutEngine,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    num_samples: int,
    seed: int,
    step: int,
    clock: Callable[[str], AbstractContextManager[None]] = lambda phase: nullcontext(),
    advance: Callable[[int], object] = lambda count: None,
) -> list[Group]:
    """Samples and scores `num_samples` completions of each prompt.

    Args:
        seed, step: with the prompt's id and the sample's number they give each sample its own seed.
        clock: times the phases `generate` and `score` (what is left of scoring when generation is done).
        advance: told the number of prompts that have just been sampled.

    Returns:
        One group a prompt, in the order of `prompts`.
    """
    requests = [Request(p.token_ids, [sample_seed(seed, step, p.id, i) for i in range(num_samples)]) for p in prompts]
    completions: dict[int, list[Completion]] = {}
    with clock("generate"):
        for index, samples in engine.generate(requests, sampling):
            completions[index] = samples
            for i, completion in enumerate(samples):
                scorer.submit((index, i), case_of(prompts[index], completion))
            advance(1)
    with clock("score"):
        verdicts = scorer.collect()
    return [
        Group(prompt, [Rollout(c, verdicts[index, i]) for i, c in enumerate(completions[index])])
        for index, prompt in enumerate(prompts)
    ]


def case_of(prompt: Prompt, completion: Completion) -> Case:
    """What the verifier sees of a completion."""
    return Case(
        response=completion.text,
        reference=prompt.reference,
        prompt=prompt.question,
        finish_reason=completion.finish_reason,
        num_tokens=len(completion.token_ids),
        extra=prompt.extra,
    )


def trusted(groups: Sequence[Group]) -> list[Group]:
    """The groups without the rows whose verdict is a verifier's or the data's fault, and without emptied groups."""
    kept = (Group(g.prompt, [r for r in g.rollouts if not r.verdict.is_fault]) for g in groups)
    return [group for group in kept if group.rollouts]
