"""`ChunkedTokenLogprobs` for CUDA: what follows the matrix products in one pass over the logits, each way.

Forward reads the float32 products [C, V] once and writes [C] values; backward reads them once and writes their gradient
once, over them, in the dtype of the matrix products that follow. A row is one program's work: it goes through the
vocabulary a block at a time.

Shape legend: M tokens, D hidden size, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlvr.policy.logprobs import Chunks, Gradients, Head

BLOCK = 4096  # logits of a row in registers at once: 16 a thread
NUM_WARPS = 8


class FusedTokenLogprobs(torch.autograd.Function):
    """As `ChunkedTokenLogprobs`. Largest tensor: the float32 [C, V] products, which their gradient overwrites."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, head: Head, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        """hidden [M, D], weight [V, D], targets [M] -> log-probs [M], entropy [M]."""
        chunks = Chunks(hidden, weight, head)
        logprobs, entropy, normalizers = (chunks.work.new_empty(len(targets)) for _ in range(3))
        for part in chunks:
            reduce(chunks.products(part), targets[part], head, logprobs[part], entropy[part], normalizers[part])
        ctx.save_for_backward(hidden, weight, targets, entropy, normalizers)
        ctx.head, ctx.entropy_grad = head, entropy_grad
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, logprobs_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        """See `ChunkedTokenLogprobs.backward`."""
        hidden, weight, targets, entropy, normalizers = ctx.saved_tensors
        head: Head = ctx.head
        chunks = Chunks(hidden, weight, head)
        gradients = Gradients(chunks, hidden, of_weight=ctx.needs_input_grad[1])
        of_logprobs = logprobs_grad.contiguous()
        of_entropy = entropy_grad.contiguous() if ctx.entropy_grad else None
        for part in chunks:
            slope = differentiate(
                chunks.products(part),
                targets[part],
                head,
                entropy[part],
                normalizers[part],
                of_logprobs[part],
                None if of_entropy is None else of_entropy[part],
                chunks.weight.dtype,
            )
            gradients.add_of_products(slope, part)
        return gradients.hidden, gradients.weight, None, None, None


def reduce(
    products: Tensor, targets: Tensor, head: Head, logprobs: Tensor, entropy: Tensor, normalizers: Tensor
) -> None:
    """Fills log-probs of the targets, entropies and log-sum-exps of the logits (each [C]).

    Args:
        products: [C, V] float32, contiguous: logits before soft-cap and temperature.
        targets: [C] int64.
    """
    num_tokens, vocabulary = products.shape
    _reduce[(num_tokens,)](products, targets, logprobs, entropy, normalizers, vocabulary, **_launch(head, vocabulary))


def differentiate(
    products: Tensor,
    targets: Tensor,
    head: Head,
    entropy: Tensor,
    normalizers: Tensor,
    logprobs_grad: Tensor,
    entropy_grad: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The loss's gradient [C, V] by the products, in their memory: they are lost.

    Args:
        products, targets, entropy, normalizers: as `reduce` took and filled them.
        logprobs_grad: [C] the loss's gradient by the log-probs.
        entropy_grad: [C] that by the entropies; None counts as 0.
        dtype: of the result, at most as wide as float32. A narrower one lies at the beginning of each row of products.
    """
    num_tokens, vocabulary = products.shape
    slope = products.view(dtype)[:, :vocabulary]
    _differentiate[(num_tokens,)](
        products,
        slope,
        targets,
        entropy,
        normalizers,
        logprobs_grad,
        logprobs_grad if entropy_grad is None else entropy_grad,
        slope.stride(0),
        vocabulary,
        **_launch(head, vocabulary),
        with_entropy=entropy_grad is not None,
    )
    return slope


def _launch(head: Head, vocabulary: int) -> dict[str, Any]:
    return {
        "per_temperature": 1 / head.temperature,
        "cap": head.softcap or 0.0,
        "capped": head.softcap is not None,
        "block": min(BLOCK, triton.next_power_of_2(vocabulary)),
        "num_warps": NUM_WARPS,
    }


@triton.jit
def _tanh(x):
    e = tl.exp(-2 * tl.abs(x))
    size = (1 - e) / (1 + e)
    return tl.where(x < 0, -size, size)


@triton.jit
def _reduce(
    products,
    targets,
    logprobs,
    entropies,
    normalizers,
    vocabulary,
    per_temperature,
    cap,
    capped: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    products += row * vocabulary
    lowest = -1e30  # stands for minus infinity where differences of such must not become NaN
    top = tl.full((), lowest, tl.float32)
    # Of the logits x so far, one a lane: sums of exp(x - top) and of exp(x - top) (x - top).
    total = tl.zeros([block], tl.float32)
    moment = tl.zeros([block], tl.float32)
    for start in range(0, vocabulary, block):
        columns = start + tl.arange(0, block)
        inside = columns < vocabulary
        x = tl.load(products + columns, mask=inside, other=0.0)
        if capped:
            x = cap * _tanh(x / cap)
        x = tl.where(inside, x * per_temperature, lowest)
        new_top = tl.maximum(top, tl.max(x, 0))
        drop = top - new_top
        scale = tl.exp(drop)
        x -= new_top
        e = tl.exp(x)
        moment = scale * (moment + drop * total) + e * x
        total = scale * total + e
        top = new_top
    x = tl.load(products + tl.load(targets + row))
    if capped:
        x = cap * _tanh(x / cap)
    all_total = tl.sum(total, 0)
    log_total = tl.log(all_total)
    tl.store(logprobs + row, x * per_temperature - top - log_total)
    tl.store(entropies + row, log_total - tl.sum(moment, 0) / all_total)
    tl.store(normalizers + row, top + log_total)


@triton.jit
def _differentiate(
    products,
    slopes,
    targets,
    entropies,
    normalizers,
    logprob_grads,
    entropy_grads,
    slope_stride,
    vocabulary,
    per_temperature,
    cap,
    capped: tl.constexpr,
    block: tl.constexpr,
    with_entropy: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    products += row * vocabulary
    slopes += row * slope_stride
    target = tl.load(targets + row)
    normalizer = tl.load(normalizers + row)
    of_logprob = tl.load(logprob_grads + row)
    of_entropy = tl.load(entropy_grads + row)
    entropy = tl.load(entropies + row)
    for start in range(0, vocabulary, block):
        columns = start + tl.arange(0, block)
        inside = columns < vocabulary
        x = tl.load(products + columns, mask=inside, other=0.0)
        if capped:
            bent = _tanh(x / cap)
            x = cap * bent
        logprob = x * per_temperature - normalizer
        outer = of_logprob
        if with_entropy:
            outer += of_entropy * (logprob + entropy)
        slope = tl.where(columns == target, of_logprob, 0.0) - tl.exp(logprob) * outer
        slope *= per_temperature
        if capped:
            slope *= 1 - bent * bent
        # Narrower slopes lie over products of this block and earlier ones: every thread must have read its own.
        tl.debug_barrier()
        tl.store(slopes + columns, slope.to(slopes.dtype.element_ty), mask=inside)
