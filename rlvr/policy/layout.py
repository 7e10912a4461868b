"""Which tokens of a packed batch a forward computes, and what each of them attends to.

Rows of one group begin with the same tokens, at least with their prompt. Those are computed once, as a segment of their
own; what follows in each row is a segment that attends to them too. With causal attention that changes nothing but
rounding.

Shape legend: T tokens of the batch in N rows, S tokens computed in M segments, K keys of all segments end to end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

import torch
from torch import Tensor

from rlvr.batch import Batch

BLOCK = 128  # tokens that attend to themselves at once: almost half of their scores are for nothing


@dataclass(frozen=True)
class Stack:
    """The segments of one shape."""

    num_segments: int
    queries: Tensor
    """[num_segments * queries of one] int64: computed tokens."""
    keys: Tensor
    """[num_segments * keys of one] int64: computed tokens."""


@dataclass(frozen=True)
class Spans:
    """Stretches of computed tokens, all of one length and evenly apart."""

    start: int
    num: int
    step: int
    """From the start of one to that of the next."""
    length: int

    def of(self, tokens: Tensor) -> Tensor:
        """[1, H, S, ...] -> a view [num, H, length, ...]."""
        covered = tokens[0, :, self.start : self.start + (self.num - 1) * self.step + self.length]
        view: Tensor = covered.unfold(1, self.length, self.step).movedim(-1, 2).transpose(0, 1)
        return view


@dataclass(frozen=True)
class Part:
    """Attention of some queries to some of their keys, stretch by stretch."""

    queries: Spans
    keys: Spans
    causal: bool
    """Each query sees the keys up to its own; else all."""


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
    def parts(self) -> list[Part]:
        """All attention: first the causal parts, in which each token stands once; then what its query sees besides."""
        return self._within_segments() + self._to_shared()

    def _within_segments(self) -> list[Part]:
        """Those of segments of one length in a row together; long ones in blocks, each of which sees all before it."""
        causal: list[Part] = []
        before: list[Part] = []
        first = 0
        for length, same in groupby(self.query_starts.diff().tolist()):
            num = len(list(same))
            for start in range(0, length, BLOCK):
                block = Spans(first + start, num, length, min(BLOCK, length - start))
                if start:
                    before.append(Part(block, replace(block, start=first, length=start), causal=False))
                causal.append(Part(block, block, causal=True))
            first += num * length
        return causal + before

    def _to_shared(self) -> list[Part]:
        """Segments one after the other that attend to one shared beginning, together."""
        found: list[Part] = []
        queries, keys = pairwise(self.query_starts.tolist()), pairwise(self.key_starts.tolist())
        for (start, end), (key_start, key_end) in zip(queries, keys, strict=True):
            length = key_end - key_start - (end - start)
            if not length:
                continue
            beginning = _stretch(int(self.key_index[key_start]), length)
            last = found[-1] if found else None
            if last and last.keys == beginning and last.queries.start + last.queries.length == start:
                start = found.pop().queries.start
            found.append(Part(_stretch(start, end - start), beginning, causal=False))
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


def _stretch(start: int, length: int) -> Spans:
    return Spans(start, 1, length, length)


def _ranges(starts: Tensor, length: int) -> Tensor:
    """[n * length] int64: start, start + 1, ... of each."""
    return (starts[:, None] + torch.arange(length, device=starts.device)).flatten().long()
