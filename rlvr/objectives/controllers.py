"""Controllers of a KL coefficient, run once a rollout batch after all of its optimizer steps.

Each maps (coefficient, measured KL in nats a token, rows of the batch, spec) to the next coefficient.
"""

from __future__ import annotations

from collections.abc import Callable

from rlvr.objectives.spec import ControllerSpec


def fixed(coef: float, kl: float, num_rows: int, spec: ControllerSpec) -> float:
    """The coefficient as it is."""
    return coef


def horizon(coef: float, kl: float, num_rows: int, spec: ControllerSpec) -> float:
    """coef * (1 + clip(kl/target - 1, -0.2, 0.2) * rows/horizon) (Ziegler et al. 2019, arXiv 1909.08593, 2.2)."""
    error = min(max(kl / spec.target - 1, -0.2), 0.2)
    return coef * (1 + error * num_rows / spec.horizon)


def band(coef: float, kl: float, num_rows: int, spec: ControllerSpec) -> float:
    """coef/2 where kl < target/band, 2 coef where kl > target*band (PPO, arXiv 1707.06347, section 4)."""
    if kl < spec.target / spec.band:
        return coef / 2
    return 2 * coef if kl > spec.target * spec.band else coef


CONTROLLERS: dict[str, Callable[[float, float, int, ControllerSpec], float]] = {
    "fixed": fixed,
    "horizon": horizon,
    "band": band,
}
