"""Log-probs and entropies of given tokens from hidden states, without the logits of more than one chunk at a time.

Shape legend: T tokens, M of them wanted, D hidden size, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from rlvr.policy.precision import exact_products, working_dtype

# Of a chunk at once where something of its shape is needed beside it: in plain operations, in a matrix product.
ROWS, ROWS_OF_PRODUCT = 64, 512
# Of the vocabulary at once where the weight, or a product of its shape, is needed in another precision.
COLUMNS, COLUMNS_OF_SUM = 8192, 1024


@dataclass(frozen=True)
class Head:
    """How logits come from hidden states: cap * tanh(hidden @ weight.T / cap) / temperature."""

    weight: Tensor
    """[V, D]."""
    temperature: float = 1.0
    """The sampling temperature."""
    softcap: float | None = None
    """The cap; None leaves the logits as they are."""
    chunk_tokens: int = 1024
    """Tokens whose [C, V] logits exist at once."""
    weight_grad: Tensor | None = None
    """[V, D] float32: the weight's gradient is added here instead of passing through autograd."""


def token_logprobs(
    hidden: Tensor, head: Head, token_ids: Tensor, wanted: Tensor, *, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each wanted token given those before it, and the entropy of the distribution it was drawn from.

    The one place where predictions are shifted: token t is predicted by the hidden state of token t - 1, and only such
    hidden states go through the head. Logits are float32 whatever the dtype of hidden states and weight.

    Args:
        hidden: [T, D] last hidden states of packed rows.
        token_ids: [T] int64.
        wanted: [T] bool: tokens to score; never the first of a row.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        Log-probs [T] and entropies [T] in nats, float32 (float64 for float64 inputs); 0 where not wanted.
    """
    places = wanted.nonzero().squeeze(-1)
    function = _function(hidden.device.type, hidden.dtype)
    values = function.apply(hidden[places - 1], head.weight, token_ids[places], head, entropy_grad)
    logprobs, entropy = (value.new_zeros(len(token_ids)).index_put((places,), value) for value in values)
    return logprobs, entropy


@torch.no_grad()
def topk_logprobs(hidden: Tensor, head: Head, topk_ids: Tensor, wanted: Tensor) -> Tensor:
    """[T, K]: log-probs, without gradient, of the tokens `topk_ids` [T, K] in the place of each wanted one; else -inf.

    Other arguments as `token_logprobs`.
    """
    places = wanted.nonzero().squeeze(-1)
    chunks = Chunks(hidden[places - 1], head.weight, head)
    values = chunks.work.new_empty(len(places), topk_ids.shape[-1])
    with exact_products(head.weight):
        for part in chunks:
            values[part] = chunks.logprobs(part).gather(-1, topk_ids[places[part]])
    return values.new_full(topk_ids.shape, -torch.inf).index_put((places,), values)


@cache
def _function(device: str, dtype: torch.dtype) -> type[torch.autograd.Function]:
    """The same function for CUDA, where Triton is installed, reads and writes the logits far less often."""
    if device == "cuda" and dtype != torch.float64 and find_spec("triton") is not None:
        from rlvr.policy.logprobs_triton import FusedTokenLogprobs

        return FusedTokenLogprobs
    return ChunkedTokenLogprobs


class ChunkedTokenLogprobs(torch.autograd.Function):
    """Chunked log-softmax; backward computes each chunk's logits again, but for the chunk that forward had last.

    Largest tensor: one of [C, V], which stays from forward to backward.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, head: Head, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        """hidden [M, D], weight [V, D], targets [M] -> log-probs [M], entropy [M]."""
        chunks = Chunks(hidden, weight, head)
        logprobs, entropy = (chunks.work.new_empty(len(targets)) for _ in range(2))
        with exact_products(weight):
            for part in chunks:
                all_logprobs = chunks.logprobs(part)
                logprobs[part] = all_logprobs.gather(-1, targets[part, None]).squeeze(-1)
                for rows, own in zip(all_logprobs.split(ROWS), entropy[part].split(ROWS), strict=True):
                    torch.sum(rows.exp().mul_(rows), -1, out=own)
                    own.neg_()
                chunks.held = part
        ctx.save_for_backward(hidden, weight, targets, entropy)
        ctx.head, ctx.entropy_grad = head, entropy_grad
        ctx.chunks = chunks if any(ctx.needs_input_grad) else None
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, logprobs_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        """With p the distribution, H its entropy, g and e the gradients of log-prob and entropy of a token:

        d loss / d logits = g (onehot(target) - p) - e p (log p + H)
        """
        hidden, weight, targets, entropy = ctx.saved_tensors
        chunks, ctx.chunks = ctx.chunks or Chunks(hidden, weight, ctx.head), None
        gradients = Gradients(chunks, hidden, of_weight=ctx.needs_input_grad[1])
        with exact_products(weight):
            for part in reversed(list(chunks)):
                slope = chunks.logprobs(part)
                values = zip(*(x[part, None].split(ROWS) for x in (logprobs_grad, entropy, entropy_grad)), strict=True)
                for rows, (of_logprob, mean, of_entropy) in zip(slope.split(ROWS), values, strict=True):
                    if ctx.entropy_grad:
                        outer = rows.add(mean).mul_(of_entropy)
                        rows.exp_().mul_(outer.add_(of_logprob).neg_())
                    else:
                        rows.exp_().mul_(-of_logprob)
                slope.scatter_add_(-1, targets[part, None], logprobs_grad[part, None])
                gradients.add(slope, part)
        return gradients.hidden, gradients.weight, None, None, None


class Chunks:
    """The logits of one chunk after the other, in buffers that are used again and again."""

    def __init__(self, hidden: Tensor, weight: Tensor, head: Head) -> None:
        dtype = working_dtype(hidden.dtype)
        self.head, self.hidden, self.weight = head, hidden, weight
        self.num_tokens = len(hidden)
        shape = (min(head.chunk_tokens, self.num_tokens), len(weight))
        self.work = torch.empty(shape, dtype=dtype, device=hidden.device)
        self.held: slice | None = None
        """The chunk whose log-probs are still in `work`: they are not computed again when they are asked for next."""

    @cached_property
    def capped(self) -> Tensor | None:
        """tanh of the last chunk's logits over the cap."""
        return None if self.head.softcap is None else torch.empty_like(self.work)

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, self.num_tokens, self.head.chunk_tokens):
            yield slice(start, min(start + self.head.chunk_tokens, self.num_tokens))

    def products(self, part: slice) -> Tensor:
        """[C, V] hidden states times weight, in `work`: the logits before soft-cap and temperature."""
        hidden, weight = self.hidden[part], self.weight
        products = self.work[: len(hidden)]
        if hidden.dtype == products.dtype:
            return torch.mm(hidden, weight.t(), out=products)
        if hidden.is_cuda:
            return torch.mm(hidden, weight.t(), out_dtype=products.dtype, out=products)
        # The CPU build of torch has float32 results for float32 arguments only.
        hidden = hidden.to(products.dtype)
        for some, own in zip(weight.split(COLUMNS), products.split(COLUMNS, dim=1), strict=True):
            torch.mm(hidden, some.to(hidden.dtype).t(), out=own)
        return products

    def logprobs(self, part: slice) -> Tensor:
        """[C, V] log-probs of the chunk, in `work`."""
        if part == self.held:
            self.held = None
            return self.work[: part.stop - part.start]
        self.held = None
        logits, head = self.products(part), self.head
        if self.capped is not None and head.softcap is not None:
            logits.div_(head.softcap).tanh_()
            self.capped[: len(logits)] = logits
            logits.mul_(head.softcap)
        if head.temperature != 1.0:
            logits.div_(head.temperature)
        for rows in logits.split(ROWS):
            torch.log_softmax(rows, -1, out=rows)
        return logits


class Gradients:
    """Gradients by hidden states and weight, from those by each chunk's logits.

    Args:
        of_weight: False for a frozen head, whose gradient is then not computed.
    """

    def __init__(self, chunks: Chunks, hidden: Tensor, *, of_weight: bool) -> None:
        self._chunks = chunks
        self.hidden = torch.empty_like(hidden)
        """[M, D]."""
        self._sum = chunks.head.weight_grad
        if of_weight and self._sum is None:
            self._sum = torch.zeros_like(chunks.weight, dtype=chunks.work.dtype)

    def add(self, slope: Tensor, part: slice) -> None:
        """Takes in the gradient [C, V] by the final logits of the chunk whose log-probs were taken last."""
        chunks = self._chunks
        if chunks.head.temperature != 1.0:
            slope.div_(chunks.head.temperature)
        if chunks.capped is not None:
            slope.mul_(1 - chunks.capped[: len(slope)].square_())
        self.add_of_products(slope, part)

    def add_of_products(self, slope: Tensor, part: slice) -> None:
        """Takes in the gradient [C, V] by `Chunks.products`."""
        weight, total = self._chunks.weight, self._sum
        num_rows = len(slope) if slope.dtype == weight.dtype else ROWS_OF_PRODUCT
        rows = (x.split(num_rows) for x in (slope, self._chunks.hidden[part], self.hidden[part]))
        for some, hidden, own in zip(*rows, strict=True):
            some = some.to(weight.dtype)
            torch.mm(some, weight, out=own)
            if total is None:
                continue
            if hidden.dtype == total.dtype:
                total.addmm_(some.t(), hidden)
            elif hidden.is_cuda:
                torch.addmm(total, some.t(), hidden, out_dtype=total.dtype, out=total)
            else:
                added = zip(total.split(COLUMNS_OF_SUM), (some.t() @ hidden).split(COLUMNS_OF_SUM), strict=True)
                for own, product in added:
                    own.add_(product)

    @property
    def weight(self) -> Tensor | None:
        """[V, D], summed in float32, for autograd; None where `Head.weight_grad` took it, and of a frozen head."""
        head = self._chunks.head
        return None if self._sum is None or head.weight_grad is not None else self._sum.to(head.weight.dtype)
