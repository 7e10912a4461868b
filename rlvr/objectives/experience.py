"""What an objective reads: scored rows as flat tensors, tokens of all rows end to end.

Shape legend: N rows (completions), T tokens of all rows together, prompt tokens included.
A value at token t concerns token t itself: its log-prob given the tokens before it in its row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(kw_only=True)
class Experience:
    """Rows of one rollout batch, of one minibatch or of one microbatch; rows are never cut.

    Entries of the token tensors where `loss_mask` is False may hold anything, inf and nan included.
    """

    rewards: Tensor
    """[N] float64: the verifier's reward, shaping included."""
    correct: Tensor
    """[N] bool: the verifier's outcome, free of shaping."""
    truncated: Tensor
    """[N] bool: the row hit the length limit without an end-of-sequence token."""
    group_ids: Tensor
    """[N] int64: rows with the same number answer the same prompt; any numbers, any order."""
    row_ids: Tensor
    """[T] int64, ascending: the row 0..N-1 each token belongs to."""
    loss_mask: Tensor
    """[T] bool: sampled by the policy and kept; False for prompt, tool and filtered tokens."""
    rollout_logprobs: Tensor
    """[T] float32: as the rollout engine drew."""
    old_logprobs: Tensor | None = None
    """[T] float32: the trainer's weights before the first step on this batch; None = the current ones, detached."""
    ref_logprobs: Tensor | None = None
    """[T] float32: the reference model's; None when no KL term needs it."""
    step_rewards: Tensor | None = None
    """[T] float64: process rewards, read where `step_ends`."""
    step_ends: Tensor | None = None
    """[T] bool: last tokens of the steps that were rewarded; they are in `loss_mask`."""
    values: Tensor | None = None
    """[T] float32: the critic's, before the first step on this batch, of the state before each token."""
    final_values: Tensor | None = None
    """[N] float32: the critic's, of the state after the row's last token; read for truncated rows only."""
    topk_ids: Tensor | None = None
    """[T, K] int64: the sampler's likeliest tokens."""
    topk_logprobs: Tensor | None = None
    """[T, K] float32: the sampler's log-probs of `topk_ids`; -inf where it reported fewer."""
    advantages: Tensor | None = None
    """[T] float32: filled by `Objective.prepare`; 0 where `loss_mask` is False."""
    returns: Tensor | None = None
    """[T] float32: the critic's targets, filled by `Objective.prepare`; 0 where `loss_mask` is False."""
    kept: Tensor | None = None
    """[N] bool: False for rows of groups that a filter dropped: they leave every normaliser and need no forward;
    None = all are kept."""

    @property
    def num_rows(self) -> int:
        return self.rewards.shape[0]
