"""Estimators of the KL divergence from samples (J. Schulman, "Approximating KL divergence", 2020).

For tokens drawn from p and D = log q - log p at the drawn token, each estimates KL(p||q); D may carry p's gradient.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rlvr.objectives.ratios import bounded


def k1(difference: Tensor) -> Tensor:
    """-D. Unbiased, of either sign. As a loss its expected gradient is 0: for the reward only."""
    return -difference


def k2(difference: Tensor) -> Tensor:
    """D^2 / 2. Biased in value; its gradient is that of KL(p||q)."""
    return difference.square() / 2


def k3(difference: Tensor) -> Tensor:
    """exp(D) - D - 1. Unbiased and never negative; its gradient is that of KL(q||p) (GRPO)."""
    bound = bounded(difference)
    return bound.exp() - bound - 1


def k3_straight(difference: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2."""
    squared = k2(difference)
    return squared + (k3(difference) - squared).detach()


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "k3_straight": k3_straight}


def exact(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL(policy||reference) of whole next-token distributions [..., V] -> [...], with the policy's gradient."""
    return (policy_logprobs.exp() * (policy_logprobs - ref_logprobs)).sum(-1)
