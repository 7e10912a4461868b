"""The exact KL divergence between two models' next-token distributions, without their logits of more than one chunk.

Shape legend: T tokens, M of them wanted, D and E hidden sizes of policy and reference, V vocabulary, C tokens a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr.policy.logprobs import Chunks, Gradients, Head
from rlvr.policy.precision import exact_products


def exact_kl(hidden: Tensor, head: Head, ref_hidden: Tensor, ref_head: Head, wanted: Tensor) -> Tensor:
    """KL(policy||reference) = sum_v p_v (log p_v - log q_v) of the distributions that wanted tokens were drawn from.

    Token t is predicted by the hidden states of token t - 1, as in `token_logprobs`.

    Args:
        hidden: [T, D] the policy's last hidden states of packed rows.
        ref_hidden: [T, E] the reference's, which gets no gradient.
        ref_head: over the same vocabulary, at the same temperature and with as many tokens a chunk as `head`.
        wanted: [T] bool; never the first token of a row.

    Returns:
        [T] in nats, float32 (float64 for float64 inputs), with the policy's gradient; 0 where not wanted.
    """
    places = wanted.nonzero().squeeze(-1)
    values = _ExactKl.apply(hidden[places - 1], head.weight, ref_hidden[places - 1], head, ref_head)  # type: ignore[no-untyped-call]
    result: Tensor = values.new_zeros(len(wanted)).index_put((places,), values)
    return result


class _ExactKl(torch.autograd.Function):
    """Backward computes each chunk's logits again, of policy and reference."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ref_hidden: Tensor, head: Head, ref_head: Head) -> Tensor:
        """hidden [M, D], weight [V, D], ref_hidden [M, E] -> [M]."""
        chunks, ref_chunks = Chunks(hidden, weight, head), Chunks(ref_hidden, ref_head.weight, ref_head)
        kl = chunks.work.new_empty(len(hidden))
        with exact_products(weight):
            for part in chunks:
                all_logprobs, difference = chunks.logprobs(part), ref_chunks.logprobs(part)
                torch.sub(all_logprobs, difference, out=difference)
                kl[part] = difference.mul_(all_logprobs.exp_()).sum(-1)
        ctx.save_for_backward(hidden, weight, ref_hidden, kl)
        ctx.heads = head, ref_head
        return kl

    @staticmethod
    def backward(ctx: Any, kl_grad: Tensor) -> tuple[Tensor | None, ...]:
        """d KL / d logits = p (log p - log q - KL)."""
        hidden, weight, ref_hidden, kl = ctx.saved_tensors
        head, ref_head = ctx.heads
        chunks, ref_chunks = Chunks(hidden, weight, head), Chunks(ref_hidden, ref_head.weight, ref_head)
        gradients = Gradients(chunks, hidden, of_weight=ctx.needs_input_grad[1])
        with exact_products(weight):
            for part in chunks:
                slope, difference = chunks.logprobs(part), ref_chunks.logprobs(part)
                torch.sub(slope, difference, out=difference)
                slope.exp_().mul_(difference.sub_(kl[part, None])).mul_(kl_grad[part, None])
                gradients.add(slope, part)
        return gradients.hidden, gradients.weight, None, None, None
