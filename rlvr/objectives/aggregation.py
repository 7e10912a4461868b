"""Aggregates: how token terms become one loss. Each is linear, so it is a weight per token, known before any forward.

Shape legend: N rows, T tokens of all rows, P prompts. x: terms of active tokens, |y_i|: active tokens of row i.
Weights are computed once over the whole optimizer minibatch, before it is cut over microbatches and ranks: the sum of
weight * x over any split is the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rlvr.errors import ConfigError
from rlvr.objectives.segments import segment_sum


@dataclass(frozen=True)
class Weights:
    """Per-token weights of one optimizer minibatch; index by slice or [t] index for those of a microbatch."""

    aggregate: Tensor
    """[T]: weight of a token's term in the loss; 0 where the loss mask is False."""
    mean: Tensor
    """[T]: 1 / active tokens of the minibatch, for plain means over tokens (entropy, values); 0 where masked."""
    correct: Tensor | None = None
    """[T]: 1 / active tokens of correct rows, at those tokens; None when nothing reads it."""
    picked: Tensor | None = None
    """[T] bool: the tokens that `clip_cov` drops or `kl_cov` penalises; None for other trust regions."""

    def __getitem__(self, tokens: Tensor | slice) -> Weights:
        return Weights(
            self.aggregate[tokens],
            self.mean[tokens],
            None if self.correct is None else self.correct[tokens],
            None if self.picked is None else self.picked[tokens],
        )


@dataclass(frozen=True)
class Counts:
    """What the normalisers are made of."""

    tokens: Tensor
    """[N] float64: active tokens of each row."""
    groups: Tensor
    """[N] int64: 0..num_groups-1."""
    num_groups: int
    num_rows: int
    """Rows that no filter dropped, with or without active tokens."""
    constant_length: int | None


def sequence_mean(counts: Counts) -> Tensor:
    """1/B sum_i 1/|y_i| sum_t x, B rows with an active token (GRPO)."""
    return 1 / (_active_rows(counts) * counts.tokens.clamp(min=1))


def sequence_sum(counts: Counts) -> Tensor:
    """1/B sum_i sum_t x, B rows with an active token: the row's log-prob is the sum of its tokens' (REINFORCE)."""
    return (1 / _active_rows(counts)).expand_as(counts.tokens)


def token_mean(counts: Counts) -> Tensor:
    """sum x / active tokens of the minibatch (DAPO as implemented everywhere)."""
    return (1 / counts.tokens.sum().clamp(min=1)).expand_as(counts.tokens)


def prompt_mean(counts: Counts) -> Tensor:
    """1/P sum over prompts of (sum x / active tokens of the prompt), P prompts with an active token (ScaleRL)."""
    per_prompt = segment_sum(counts.tokens, counts.groups, counts.num_groups)
    num_prompts = (per_prompt > 0).sum().clamp(min=1)
    return 1 / (num_prompts * per_prompt.clamp(min=1))[counts.groups]


def constant(counts: Counts) -> Tensor:
    """sum x / (rows * L): rows without an active token count, L is the longest completion allowed (Dr. GRPO).

    Raises:
        ConfigError: L is not set.
    """
    if counts.constant_length is None:
        mend = "aggregate=constant divides by it; set it to the longest completion in tokens (rollout.max_new_tokens)"
        raise ConfigError("objective.constant_length", None, mend)
    scale = 1 / (max(counts.num_rows, 1) * counts.constant_length)
    return counts.tokens.new_full(counts.tokens.shape, scale)


def _active_rows(counts: Counts) -> Tensor:
    return (counts.tokens > 0).double().sum().clamp(min=1)


AGGREGATES: dict[str, Callable[[Counts], Tensor]] = {
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "token_mean": token_mean,
    "prompt_mean": prompt_mean,
    "constant": constant,
}
