"""What training keeps of each parameter, in bytes; known before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.config import PolicyConfig


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes a trained parameter; with `policy.optimizer.offload` all but `weights` lies in CPU memory."""

    weights: float
    master_weights: float
    gradients: float
    """Their sum over microbatches; made in the first backward."""
    moments: float
    """AdamW's; made in the first step."""


def bytes_per_parameter(options: PolicyConfig) -> BytesPerParameter:
    """Those of a large matrix; vectors and a critic's head, which are kept otherwise, are too small to count."""
    kept, rounded = options.optimizer, options.dtype == "bfloat16"
    has_masters = kept.master_weights == "float32" and (rounded or kept.offload)
    return BytesPerParameter(
        weights=2 if rounded else 4,
        master_weights=4 if has_masters else 0,
        gradients=4,
        moments=8 if kept.moments == "float32" else 2 * (1 + 4 / 256),  # a code, and a scale for 256 of them
    )
