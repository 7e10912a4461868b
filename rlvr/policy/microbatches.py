"""Forward and backward over microbatches of whole rows within a budget of tokens; their metrics and their memory.

Shape legend: N rows, T tokens of all rows end to end, t of one microbatch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rlvr.batch import Batch

log = logging.getLogger(__name__)

MIN_TOKENS = 256
MIN_SHARED_TOKENS = 32  # 13 saved nothing: attention in more and smaller calls took what the other layers gained

R = TypeVar("R")
Metrics = dict[str, Tensor]


class Microbatches:
    """Cuts batches into microbatches; rows without a loss token need no forward and are in none.

    Args:
        max_tokens: of one microbatch; a longer row goes alone. Halved for good when the GPU's memory does not suffice.
        share_prompts: compute what the rows of a group begin with once, where that is long enough to pay.
    """

    def __init__(self, max_tokens: int, *, share_prompts: bool) -> None:
        self._max_tokens, self._share_prompts = max_tokens, share_prompts

    @torch.no_grad()
    def fill(self, batch: Batch, device: torch.device, forward: Callable[[Batch], Tensor]) -> Tensor:
        """[T] float32 on the batch's device: `forward` -> [t] of each microbatch, moved to `device`; 0 elsewhere."""

        def work(max_tokens: int) -> Tensor:
            result = torch.zeros(batch.num_tokens, device=batch.token_ids.device)
            for rows, part in self.cut(batch, max_tokens):
                values = forward(part.to(device))
                result[batch.token_index(rows)] = values.to(result)
            return result

        return self._within_memory(work)

    def accumulate(
        self, minibatch: Batch, reset: Callable[[], None], loss_of: Callable[[Batch, Tensor], tuple[Tensor, Metrics]]
    ) -> dict[str, float]:
        """Adds up the gradients of the losses of all microbatches.

        Args:
            reset: forgets gradients; called first, and again whenever the work starts anew with less memory.
            loss_of: (microbatch, where its tokens stand in the minibatch [t]) -> (loss, metrics), which add.

        Returns:
            The metrics of the whole minibatch.
        """

        def work(max_tokens: int) -> dict[str, float]:
            reset()
            parts = []
            for rows, part in self.cut(minibatch, max_tokens):
                loss, metrics = loss_of(part, minibatch.token_index(rows))
                loss.backward()
                parts.append({name: float(value) for name, value in metrics.items()})
            return over_microbatches(parts)

        return self._within_memory(work)

    def cut(self, batch: Batch, max_tokens: int) -> Iterator[tuple[Tensor, Batch]]:
        """The rows of each microbatch, and the microbatch."""
        if self._share_prompts:
            batch = batch.sharing(MIN_SHARED_TOKENS)
        for rows in batch.microbatch_rows(max_tokens, _active_rows(batch)):
            yield rows, batch.select(rows)

    def _within_memory(self, work: Callable[[int], R]) -> R:
        """Runs `work(tokens per microbatch)`, again with half as many whenever the GPU's memory does not suffice."""
        while True:
            try:
                return work(self._max_tokens)
            except torch.OutOfMemoryError:
                if self._max_tokens <= MIN_TOKENS:
                    raise
            self._max_tokens //= 2
            log.warning("out of GPU memory: going on with policy.tokens_per_microbatch=%d", self._max_tokens)
            torch.cuda.empty_cache()


def over_microbatches(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums by name; the largest for names that end in `_max`."""
    names = parts[0] if parts else {}
    return {name: (max if name.endswith("_max") else sum)(part[name] for part in parts) for name in names}


def over_steps(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means by name; the largest for names that end in `_max`."""
    totals = over_microbatches(steps)
    return {name: value if name.endswith("_max") else value / len(steps) for name, value in totals.items()}


def _active_rows(batch: Batch) -> Tensor:
    """[n] int64: rows with a loss token."""
    return torch.bincount(batch.row_ids[batch.loss_mask], minlength=batch.num_rows).nonzero().squeeze(-1)
