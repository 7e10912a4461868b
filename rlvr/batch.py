"""Rollouts to packed tensors: rows end to end without padding, cut into minibatches and microbatches of whole rows.

Shape legend: N rows (one prompt + completion each), T tokens of all rows together.
Values at token t concern token t itself; the shift by one happens in `policy/logprobs.py`, `policy/exact_kl.py` and,
for the critic, `policy/critic.py` only.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.objectives.experience import Experience
from rlvr.records import Completion, Group

ROW_FIELDS = frozenset({"rewards", "correct", "truncated", "group_ids", "kept", "final_values", "shared_lengths"})
LAYOUT_FIELDS = frozenset({"row_ids", "row_starts"})


@dataclass(kw_only=True)
class Batch(Experience):
    """An `Experience` with what the model needs to read it."""

    token_ids: Tensor
    """[T] int64."""
    position_ids: Tensor
    """[T] int64: restart at 0 with each row."""
    row_starts: Tensor
    """[N + 1] int64: row i is the tokens row_starts[i]:row_starts[i + 1]."""
    shared_lengths: Tensor | None = None
    """[N] int64: first tokens of the row that all rows of its group begin with and that are computed once for them,
    fewer than the row has; None: every row is computed by itself."""

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def row_lengths(self) -> Tensor:
        """[N] int64: tokens of each row, prompt included."""
        return self.row_starts.diff()

    def token_index(self, rows: Tensor) -> Tensor:
        """[t] int64: where the tokens of `rows` [n] stand, row after row."""
        lengths = self.row_lengths[rows]
        ends = lengths.cumsum(0)
        shift = self.row_starts[rows] - (ends - lengths)
        return torch.arange(int(lengths.sum()), device=shift.device) + shift.repeat_interleave(lengths)

    def select(self, rows: Tensor) -> Batch:
        """The rows [n] int64, in this order, packed anew; group ids stay."""
        tokens, lengths = self.token_index(rows), self.row_lengths[rows]
        picked: dict[str, Any] = _layout(lengths)
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in LAYOUT_FIELDS:
                picked[field.name] = value[rows if field.name in ROW_FIELDS else tokens]
        return replace(self, **picked)

    def minibatches(self, num: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Cuts the rows into `num` parts whose row counts differ by at most one (fewer parts than rows: one row each).

        Args:
            num: optimizer steps in one pass.
            generator: shuffles the rows first; None keeps their order.
        """
        rows = torch.arange(self.num_rows) if generator is None else torch.randperm(self.num_rows, generator=generator)
        for part in rows.tensor_split(min(num, self.num_rows)) if self.num_rows else ():
            yield self.select(part.to(self.row_starts.device))

    def sharing(self, min_tokens: int = 1) -> Batch:
        """The same batch with `shared_lengths` as large as they can be; 0 below `min_tokens` and for a group of one."""
        result = torch.zeros(self.num_rows, dtype=torch.int64)
        members: dict[int, list[int]] = {}
        for row, group in enumerate(self.group_ids.tolist()):
            members.setdefault(group, []).append(row)
        lengths, starts, token_ids = self.row_lengths.cpu(), self.row_starts.cpu(), self.token_ids.cpu()
        for rows in members.values():
            if len(rows) > 1:
                columns = torch.arange(max(int(lengths[rows].min()) - 1, 0))
                tokens = token_ids[starts[rows][:, None] + columns]
                result[rows] = (tokens == tokens[0]).all(0).long().cumprod(0).sum()
        result[result < min_tokens] = 0
        return replace(self, shared_lengths=result.to(self.row_starts.device))

    def microbatch_rows(self, max_tokens: int, rows: Tensor | None = None) -> list[Tensor]:
        """Shares rows out so that no microbatch computes over `max_tokens` and all compute about as many.

        Rows with a shared beginning, which counts once, go together as far as that allows. A row longer than
        `max_tokens` goes alone. Always the same for the same lengths.

        Args:
            rows: [n] int64, the rows to share out; None takes all.

        Returns:
            The ascending row numbers [n_k] of each microbatch.
        """
        wanted: list[int] = list(range(self.num_rows)) if rows is None else rows.tolist()
        parts = self._together(wanted, max_tokens)
        alone = [part for part in parts if part.num_tokens > max_tokens]
        rest = sorted((part for part in parts if part.num_tokens <= max_tokens), key=lambda p: (-p.num_tokens, p.rows))
        num_bins = -(-sum(part.num_tokens for part in rest) // max_tokens)
        bins = _share_out(rest, num_bins)
        while any(part.num_tokens > max_tokens for part in bins):
            num_bins += 1
            bins = _share_out(rest, num_bins)
        device = self.row_starts.device
        return [torch.tensor(sorted(p.rows), device=device) for p in sorted(alone + bins, key=lambda p: min(p.rows))]

    def _together(self, rows: Sequence[int], max_tokens: int) -> list[_Rows]:
        """Rows one by one, those that share a beginning together as far as `max_tokens` allows."""
        lengths: list[int] = self.row_lengths.tolist()
        shared: list[int] = [0] * self.num_rows if self.shared_lengths is None else self.shared_lengths.tolist()
        groups: list[int] = self.group_ids.tolist()
        parts: list[_Rows] = []
        last: dict[int, _Rows] = {}
        for row in rows:
            together = last.get(groups[row]) if shared[row] else None
            if together is not None and together.num_tokens + lengths[row] - shared[row] <= max_tokens:
                together.add(row, lengths[row] - shared[row])
            else:
                parts.append(_Rows([row], lengths[row]))
                last[groups[row]] = parts[-1]
        return parts

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in values.items() if value is not None})


def collate(groups: Sequence[Group], decode: Callable[[Sequence[int]], str]) -> Batch:
    """Packs all rows of scored groups; rows of one group carry its number as their group id.

    Rows whose verdict is a fault must have left before: their rewards mean nothing.

    Args:
        decode: text of sampled token ids as the verifiers saw it; finds the tokens at which rewarded steps end.
    """
    rows = [(number, group.prompt, rollout) for number, group in enumerate(groups) for rollout in group.rollouts]
    assert not any(rollout.verdict.is_fault for _, _, rollout in rows), "faulty rows must leave before collate"
    batch = pack([(prompt.token_ids, rollout.completion.token_ids) for _, prompt, rollout in rows])
    batch.group_ids = torch.tensor([number for number, _, _ in rows], dtype=torch.int64)
    batch.rewards = torch.tensor([rollout.verdict.reward for _, _, rollout in rows], dtype=torch.float64)
    batch.correct = torch.tensor([rollout.verdict.is_correct for _, _, rollout in rows], dtype=torch.bool)
    truncated = [rollout.completion.finish_reason == "length" for _, _, rollout in rows]
    batch.truncated = torch.tensor(truncated, dtype=torch.bool)
    drawn = [value for _, _, rollout in rows for value in rollout.completion.logprobs]
    batch.rollout_logprobs[batch.loss_mask] = torch.tensor(drawn, dtype=torch.float32)
    steps = [_steps(rollout.completion, rollout.verdict.step_rewards, decode) for _, _, rollout in rows]
    batch.step_rewards = torch.zeros(batch.num_tokens, dtype=torch.float64)
    batch.step_ends = torch.zeros(batch.num_tokens, dtype=torch.bool)
    starts = (batch.row_starts[:-1] + torch.tensor([len(prompt.token_ids) for _, prompt, _ in rows])).tolist()
    for start, ends in zip(starts, steps, strict=True):
        for token, reward in ends:
            batch.step_rewards[start + token] += reward
            batch.step_ends[start + token] = True
    if rows and rows[0][2].completion.topk_ids is not None:
        _fill_topk(batch, [rollout.completion for _, _, rollout in rows])
    return batch


def _steps(
    completion: Completion, rewards: Sequence[tuple[int, float]], decode: Callable[[Sequence[int]], str]
) -> list[tuple[int, float]]:
    """(Number of the token that completes the text up to the step's end, reward); ends beyond the text are its last."""
    tokens = completion.token_ids
    last = len(tokens) - 1
    return [
        (bisect_left(range(last), end, key=lambda token: len(decode(tokens[: token + 1]))), reward)
        for end, reward in rewards
        if tokens
    ]


def _fill_topk(batch: Batch, completions: Sequence[Completion]) -> None:
    ids = np.concatenate([completion.topk_ids for completion in completions if completion.topk_ids is not None])
    values = [completion.topk_logprobs for completion in completions if completion.topk_logprobs is not None]
    batch.topk_ids = torch.zeros(batch.num_tokens, ids.shape[-1], dtype=torch.int64)
    batch.topk_logprobs = torch.full(batch.topk_ids.shape, -torch.inf)
    batch.topk_ids[batch.loss_mask] = torch.from_numpy(ids).long()
    batch.topk_logprobs[batch.loss_mask] = torch.from_numpy(np.concatenate(values))


def pack(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Packs (prompt, completion) token ids; every row is a group of its own with reward 0.

    The prompts are not empty: a token without a predecessor has no log-prob.
    """
    assert all(prompt for prompt, _ in rows), "every row needs a prompt token"
    sampled = [mark for prompt, completion in rows for mark in (False,) * len(prompt) + (True,) * len(completion)]
    num_rows = len(rows)
    layout = _layout(torch.tensor([len(prompt) + len(completion) for prompt, completion in rows], dtype=torch.int64))
    return Batch(
        token_ids=torch.tensor([t for row in rows for part in row for t in part], dtype=torch.int64),
        position_ids=torch.arange(len(sampled)) - layout["row_starts"][layout["row_ids"]],
        loss_mask=torch.tensor(sampled, dtype=torch.bool),
        rollout_logprobs=torch.zeros(len(sampled)),
        rewards=torch.zeros(num_rows, dtype=torch.float64),
        correct=torch.zeros(num_rows, dtype=torch.bool),
        truncated=torch.zeros(num_rows, dtype=torch.bool),
        group_ids=torch.arange(num_rows),
        **layout,
    )


def _layout(lengths: Tensor) -> dict[str, Tensor]:
    """`row_starts` and `row_ids` of rows with `lengths` [N]."""
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return {
        "row_starts": starts,
        "row_ids": torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths),
    }


@dataclass
class _Rows:
    """Rows that go together, and the tokens they take."""

    rows: list[int]
    num_tokens: int

    def add(self, row: int, num_tokens: int) -> None:
        self.rows.append(row)
        self.num_tokens += num_tokens


def _share_out(parts: Sequence[_Rows], num_bins: int) -> list[_Rows]:
    """Parts, largest first, each into the bin that is lightest so far (Graham's longest-processing-time rule)."""
    bins = [_Rows([], 0) for _ in range(num_bins)]
    heap = [(0, number) for number in range(num_bins)]
    for part in parts:
        load, number = heap[0]
        bins[number].rows += part.rows
        bins[number].num_tokens = load + part.num_tokens
        heapq.heapreplace(heap, (bins[number].num_tokens, number))
    return [part for part in bins if part.rows]
