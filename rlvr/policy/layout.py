"""Which tokens of a packed batch a forward computes, and what each of them attends to.

Rows of one group begin with the same tokens, at least with their prompt. Those are computed once, as a segment of their
own; what follows in each row is a segment that attends to them too. With causal attention that changes nothing but
rounding.

Shape legend: T tokens of the batch in N rows, S tokens computed in M segments, K keys of all segments end to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from rlvr.batch import Batch

BLOCK = 128  # most queries of a segment at once: almost half of their scores with each other are for nothing


@dataclass(frozen=True)
class Stack:
    """Segments of one shape: N of Q queries and K keys each."""

    queries: Tensor
    """[N, Q] int64: computed tokens."""
    keys: Tensor
    """[N, K] int64: computed tokens."""

    def split(self, num_scores: int) -> Iterator[Stack]:
        """As many segments at once as have so many pairs of a query and a key, at least one."""
        num_segments = max(1, num_scores // (self.queries.shape[1] * self.keys.shape[1]))
        return map(Stack, self.queries.split(num_segments), self.keys.split(num_segments))


@dataclass(frozen=True)
class Layout:
    """Segments end to end: the last query of each sees all its keys, the one before all but the last, and so on."""

    tokens: Tensor
    """[S] int64: place in the batch of each computed token."""
    places: Tensor
    """[T] int64: the computed token that stands for each token of the batch."""
    query_starts: Tensor
    """[M + 1] int32: segment i computes the tokens query_starts[i]:query_starts[i + 1]."""
    key_starts: Tensor
    """[M + 1] int32: its keys are the entries key_starts[i]:key_starts[i + 1] of `key_index`."""
    key_index: Tensor
    """[K] int64: computed tokens; a shared one stands here once for each segment that attends to it."""

    @cached_property
    def longest(self) -> tuple[int, int]:
        """Most queries and most keys of a segment."""
        return int(self.query_starts.diff().max()), int(self.key_starts.diff().max())

    @cached_property
    def stacks(self) -> list[Stack]:
        """Every query once. A long segment stands here as several, each of which sees all that is before it."""
        blocks: dict[tuple[int, int], list[tuple[int, int]]] = {}
        queries, keys = (pairwise(starts.tolist()) for starts in (self.query_starts, self.key_starts))
        for (start, end), (first_key, last_key) in zip(queries, keys, strict=True):
            for block in range(start, end, BLOCK):
                num_queries = min(BLOCK, end - block)
                num_keys = last_key - first_key - (end - block - num_queries)
                blocks.setdefault((num_queries, num_keys), []).append((block, first_key))
        stacks = []
        for (num_queries, num_keys), starts in blocks.items():
            of_queries, of_keys = torch.tensor(starts, device=self.tokens.device).split(1, dim=1)
            keys_at = of_keys + torch.arange(num_keys, device=self.tokens.device)
            stacks.append(
                Stack(of_queries + torch.arange(num_queries, device=self.tokens.device), self.key_index[keys_at])
            )
        return stacks

    @cached_property
    def unstacked(self) -> Tensor:
        """[S] int64: where each computed token stands in the queries of all stacks end to end."""
        return torch.cat([stack.queries.flatten() for stack in self.stacks]).argsort()


def layout(batch: Batch) -> Layout:
    """The shared beginning of each group first, then the rest of each row."""
    shared_lengths = torch.zeros_like(batch.group_ids) if batch.shared_lengths is None else batch.shared_lengths
    rows = torch.arange(batch.num_rows, device=shared_lengths.device)
    groups, number = batch.group_ids.unique(return_inverse=True)
    leads = torch.full_like(groups, batch.num_rows).scatter_reduce(0, number, rows, "amin")[number]
    first = leads == rows
    prefix_lengths = torch.where(first, shared_lengths, 0)
    prefix_ends = prefix_lengths.cumsum(0)
    num_shared = int(prefix_lengths.sum())
    rest_lengths = batch.row_lengths - shared_lengths
    rest_starts = num_shared + rest_lengths.cumsum(0) - rest_lengths
    offset = torch.arange(batch.num_tokens, device=rows.device) - batch.row_starts[batch.row_ids]
    shared = shared_lengths[batch.row_ids]
    prefix_starts = (prefix_ends - prefix_lengths)[leads]
    places = offset + torch.where(offset < shared, prefix_starts[batch.row_ids], rest_starts[batch.row_ids] - shared)
    computed = first[batch.row_ids] | (offset >= shared)
    tokens = torch.empty(num_shared + int(rest_lengths.sum()), dtype=torch.int64, device=rows.device)
    tokens[places[computed]] = computed.nonzero().squeeze(-1)
    prefixes = torch.cat([prefix_lengths.new_zeros(1), prefix_ends[prefix_lengths > 0]])
    return Layout(
        tokens=tokens,
        places=places,
        query_starts=torch.cat([prefixes, num_shared + rest_lengths.cumsum(0)]).int(),
        key_starts=torch.cat([prefixes, num_shared + batch.row_starts[1:]]).int(),
        key_index=torch.cat([torch.arange(num_shared, device=rows.device), places]),
    )
