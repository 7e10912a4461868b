"""AdamW's two moments of one parameter: as they are, or in one byte a value.

Shape legend: P elements of the parameter end to end, p of one part of them, B = ceil(P / 256) blocks.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 256
MIN_QUANTIZED = 4096  # elements; smaller parameters (norms, biases) weigh nothing and are the ones that suffer
PART = 2**22  # elements: 64 MiB of float32 copies at once


class PlainMoments:
    """Both moments in the precision of the arithmetic.

    Args:
        num_elements: P.
        dtype: float32, or float64 for float64 weights.
    """

    def __init__(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._first, self._second = (torch.zeros(num_elements, dtype=dtype, device=device) for _ in range(2))

    def read(self, part: slice) -> tuple[Tensor, Tensor]:
        """[p] each: views, so that what is written into them stays."""
        return self._first[part], self._second[part]

    def write(self, part: slice, first: Tensor, second: Tensor) -> None:
        """Nothing to do: `read` gave views."""

    def tensors(self) -> list[Tensor]:
        """All that is kept, in a fixed order."""
        return [self._first, self._second]


class QuantizedMoments:
    """Both moments as 8-bit codes with a float32 scale for each block of 256 values (Dettmers et al. 2021, section 2).

    A code stands for one of 256 values between -1 and 1 (second moment: 0 and 1) that lie the closer the smaller they
    are, the scale is the block's largest magnitude: 2.03 bytes a parameter for both instead of 8. One thing differs
    from the paper: a second moment above 0 never becomes 0. An element far below its block's largest would else keep a
    first moment without a second, and its next step would be a thousand times too long.

    Args:
        num_elements: P.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        num_blocks = -(-num_elements // BLOCK)
        self._codes = [torch.zeros(num_elements, dtype=torch.uint8, device=device) for _ in range(2)]
        self._scales = [torch.zeros(num_blocks, device=device) for _ in range(2)]

    def read(self, part: slice) -> tuple[Tensor, Tensor]:
        """[p] float32 each; the part starts at a block."""
        first, second = (
            dequantize(codes[part], scales[_blocks(part)], signed=signed)
            for codes, scales, signed in zip(self._codes, self._scales, (True, False), strict=True)
        )
        return first, second

    def write(self, part: slice, first: Tensor, second: Tensor) -> None:
        """Takes the part [p] float32 that `read` gave, changed."""
        for i, (values, signed) in enumerate(((first, True), (second, False))):
            self._codes[i][part], self._scales[i][_blocks(part)] = quantize(values, signed=signed)

    def tensors(self) -> list[Tensor]:
        """All that is kept, in a fixed order."""
        return [*self._codes, *self._scales]


Moments = PlainMoments | QuantizedMoments


def parts(num_elements: int) -> list[slice]:
    """Consecutive parts that start at a block."""
    return [slice(start, min(start + PART, num_elements)) for start in range(0, num_elements, PART)]


def quantize(values: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """[p] float32 -> codes [p] uint8 of the nearest of `levels`, and the scales [ceil(p / 256)] of the blocks."""
    blocks = functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    relative = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    table = levels(signed, values.device)
    codes = torch.bucketize(relative, (table[1:] + table[:-1]) / 2, out_int32=True)
    if not signed:
        codes += (codes == 0) & (blocks > 0)
    return codes.view(-1)[: len(values)].to(torch.uint8), scales


def dequantize(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """[p] float32: the inverse of `quantize` but for rounding."""
    values = levels(signed, codes.device)[codes.int()]
    return values.mul_(scales.repeat_interleave(BLOCK)[: len(values)])


@cache
def levels(signed: bool, device: torch.device) -> Tensor:
    """[256] float32, ascending: 0, 1 and for each power of ten from 1e-6 to 1 the middles of equal steps between its
    tenth and itself, twice as many steps at each next power; with a sign half as many of either sign."""
    middles = []
    for power in range(7):
        edges = torch.linspace(0.1, 1, (1 if signed else 2) * 2**power + 1, dtype=torch.float64)
        middles.append((edges[1:] + edges[:-1]) / 2 * 10.0 ** (power - 6))
    magnitudes = torch.cat(middles)
    values = torch.cat([magnitudes, *([-magnitudes] if signed else []), torch.tensor([0.0, 1.0])])
    return values.sort().values.to(device=device, dtype=torch.float32)


def _blocks(part: slice) -> slice:
    return slice(part.start // BLOCK, -(-part.stop // BLOCK))
