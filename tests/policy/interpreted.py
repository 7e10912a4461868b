"""Runs the Triton kernels of the log-probs on CPU, in Triton's interpreter: python -m policy.interpreted CASES RESULTS.

A process of its own with TRITON_INTERPRET=1, for Triton decides when a kernel is defined how it will run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr.policy.logprobs import Head


@dataclass
class OfProducts:
    """Both kernels on given products."""

    products: Tensor
    """[C, V] float32."""
    targets: Tensor
    temperature: float
    softcap: float | None
    logprobs_grad: Tensor
    entropy_grad: Tensor | None
    dtype: torch.dtype
    """Of the slope."""

    def run(self) -> dict[str, Tensor]:
        from rlvr.policy.logprobs_triton import differentiate, reduce

        head = Head(torch.empty(0), self.temperature, self.softcap)
        logprobs, entropy, normalizers = (torch.empty(len(self.targets)) for _ in range(3))
        reduce(self.products, self.targets, head, logprobs, entropy, normalizers)
        grads = self.logprobs_grad, self.entropy_grad
        slope = differentiate(self.products, self.targets, head, entropy, normalizers, *grads, self.dtype)
        return {"logprobs": logprobs, "entropy": entropy, "slope": slope.clone()}


@dataclass
class OfHidden:
    """The autograd function."""

    hidden: Tensor
    """[M, D] float32."""
    weight: Tensor
    """[V, D] float32."""
    targets: Tensor
    head: Head
    """Gets `weight`; its `weight_grad` is a float32 sum."""
    logprobs_grad: Tensor
    entropy_grad: Tensor | None

    def run(self) -> dict[str, Tensor | None]:
        from rlvr.policy.logprobs_triton import FusedTokenLogprobs

        hidden, weight = self.hidden.requires_grad_(), self.weight.requires_grad_()
        with_entropy = self.entropy_grad is not None
        head = replace(self.head, weight=weight)
        logprobs, entropy = FusedTokenLogprobs.apply(hidden, weight, self.targets, head, with_entropy)
        loss = (self.logprobs_grad * logprobs).sum()
        if self.entropy_grad is not None:
            loss = loss + (self.entropy_grad * entropy).sum()
        loss.backward()
        values = {"logprobs": logprobs.detach(), "entropy": entropy.detach()}
        return values | {"hidden": hidden.grad, "weight": weight.grad, "weight_sum": self.head.weight_grad}


def main() -> None:
    cases = torch.load(sys.argv[1], weights_only=False)
    torch.save([case.run() for case in cases], sys.argv[2])


if __name__ == "__main__":
    main()
