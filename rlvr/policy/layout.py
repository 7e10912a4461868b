"""Which tokens of a packed batch a forward computes, and what each of them attends to.

Rows of one group begin with the same tokens, at least with their prompt. Those are computed once, as a segment of their
own; what follows in each row is a segment that attends to them too. With causal attention that changes nothing but
rounding.

Shape legend: T tokens of the batch in N rows, S tokens computed in M segments, K keys of all segments end to end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from rlvr.batch import Batch


@dataclass(frozen=True)
class Stack:
    """The segments of one shape."""

    num_segments: int
    queries: Tensor
    """[num_segments * queries of one] int64: computed tokens."""
    keys: Tensor
    """[num_segments * keys of one] int64: computed tokens."""


@dataclass(frozen=True)
class Run:
    """Segments of one number of queries, one after the other."""

    start: int
    num_segments: int
    length: int

    def stack(self, tokens: Tensor) -> Tensor:
        """[1, H, S, ...] -> a view [num_segments, H, length, ...]."""
        part = tokens[0, :, self.start : self.start + self.num_segments * self.length]
        rows: Tensor = part.unflatten(1, (self.num_segments, self.length))
        return rows.transpose(0, 1)


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
    def runs(self) -> list[Run]:
        """Every segment once."""
        found: list[Run] = []
        starts = self.query_starts.tolist()
        for start, end in pairwise(starts):
            last = found[-1] if found else None
            if last is not None and last.length == end - start:
                found[-1] = replace(last, num_segments=last.num_segments + 1)
            else:
                found.append(Run(start, 1, end - start))
        return found

    @cached_property
    def shared(self) -> list[tuple[slice, slice]]:
        """Queries one after the other, and the computed tokens of the shared beginning that all of them attend to."""
        found: list[tuple[slice, slice]] = []
        queries, keys = pairwise(self.query_starts.tolist()), pairwise(self.key_starts.tolist())
        for (start, end), (key_start, key_end) in zip(queries, keys, strict=True):
            length = key_end - key_start - (end - start)
            if not length:
                continue
            first = int(self.key_index[key_start])
            beginning = slice(first, first + length)
            if found and found[-1] == (slice(found[-1][0].start, start), beginning):
                start = found.pop()[0].start
            found.append((slice(start, end), beginning))
        return found

    @cached_property
    def stacks(self) -> list[Stack]:
        """Every segment once."""
        segments: dict[tuple[int, int], list[int]] = {}
        shapes = zip(self.query_starts.diff().tolist(), self.key_starts.diff().tolist(), strict=True)
        for number, shape in enumerate(shapes):
            segments.setdefault(shape, []).append(number)
        return [
            Stack(len(of), _ranges(self.query_starts[of], queries), self.key_index[_ranges(self.key_starts[of], keys)])
            for (queries, keys), of in segments.items()
        ]

    @cached_property
    def unstacked(self) -> Tensor:
        """[S] int64: where each computed token stands in the queries of all stacks end to end."""
        return torch.cat([stack.queries for stack in self.stacks]).argsort()


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


def _ranges(starts: Tensor, length: int) -> Tensor:
    """[n * length] int64: start, start + 1, ... of each."""
    return (starts[:, None] + torch.arange(length, device=starts.device)).flatten().long()
