"""Stochastic rounding: bfloat16 weights that take small steps without a float32 copy."""

from __future__ import annotations

import torch
from torch import Tensor

DROPPED = 2**16  # float32 has so many numbers between two neighbours of bfloat16


class StochasticRounding:
    """Rounds to one of the two nearest bfloat16 numbers, so that the mean is the number itself.

    Rounding to the nearest loses every step below half a unit: at 1e-6 all of them. Here each is taken with the
    probability that makes up for its size (Gupta et al. 2015; for AdamW in bfloat16, Zamirai et al. 2020).

    Args:
        seed: of a generator of its own.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)

    def __call__(self, values: Tensor) -> Tensor:
        """float32 of any shape -> bfloat16; what bfloat16 holds exactly stays."""
        # The upper half of a float32's bits is a bfloat16; a carry out of the lower half is one unit away from 0.
        noise = torch.randint(DROPPED, values.shape, dtype=torch.int32, device=values.device, generator=self._generator)
        bits = noise.add_(values.view(torch.int32)).bitwise_and_(-DROPPED)
        return bits.view(torch.float32).bfloat16()

    def state(self) -> Tensor:
        return self._generator.get_state()

    def load_state(self, state: Tensor) -> None:
        self._generator.set_state(state)
