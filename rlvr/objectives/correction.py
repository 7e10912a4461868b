"""Weights that correct the mismatch between the sampler and the trainer: w = exp(old - rollout), a constant.

Shape legend: T tokens of all rows. Weights multiply the policy term only. A token of weight 0 stays in the normaliser,
which is known before the forward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlvr.objectives import ratios
from rlvr.objectives.segments import Segments
from rlvr.objectives.spec import CorrectionSpec

# `sequence` here is the product over the row, as in the literature on sampler mismatch; a ratio's is GSPO's mean.
LEVELS: dict[str, Callable[[Tensor, Segments], Tensor]] = {
    "token": ratios.token,
    "sequence": ratios.sequence_product,
    "sequence_mean": ratios.sequence,
}


def none(weight: Tensor, spec: CorrectionSpec) -> Tensor:
    """1."""
    return torch.ones_like(weight)


def truncate(weight: Tensor, spec: CorrectionSpec) -> Tensor:
    """min(w, high) (truncated importance sampling)."""
    return weight.clamp(max=spec.high)


def mask(weight: Tensor, spec: CorrectionSpec) -> Tensor:
    """w inside [low, high], 0 outside (masked importance sampling, IcePop)."""
    return torch.where((weight >= spec.low) & (weight <= spec.high), weight, 0.0)


def reject(weight: Tensor, spec: CorrectionSpec) -> Tensor:
    """1 for w inside [low, high], 0 outside."""
    return ((weight >= spec.low) & (weight <= spec.high)).to(weight.dtype)


KINDS: dict[str, Callable[[Tensor, CorrectionSpec], Tensor]] = {
    "none": none,
    "truncate": truncate,
    "mask": mask,
    "reject": reject,
}


def correction_weights(log_mismatch: Tensor, rows: Segments, spec: CorrectionSpec) -> Tensor:
    """[T] weights without gradient from log_mismatch [T] = old - rollout."""
    weight = LEVELS[spec.level](log_mismatch.detach(), rows).exp()
    return KINDS[spec.kind](weight, spec)
