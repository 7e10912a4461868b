import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.policy.moments import BLOCK, PART, PlainMoments, QuantizedMoments, dequantize, levels, parts, quantize

CPU = torch.device("cpu")


@pytest.mark.parametrize("signed", [True, False])
def test_levels_are_the_papers(signed: bool) -> None:
    table = levels(signed, CPU)
    assert len(table.unique()) == 256
    assert table.equal(table.sort().values)
    assert table.max() == 1
    assert {0.0, 1.0} <= set(table.tolist())
    if signed:
        # All but 1 have their negative.
        assert table[:-1].flip(0).equal(-table[:-1])
    magnitudes = table[table > 0][:-1]
    for power in range(7):
        inside = (magnitudes > 10.0 ** (power - 7)) & (magnitudes < 10.0 ** (power - 6))
        assert int(inside.sum()) == (1 if signed else 2) * 2**power


@given(st.integers(0, 2**31), st.integers(1, 3 * BLOCK + 5), st.floats(-6, 3), st.booleans())
def test_each_value_becomes_the_nearest_level_of_its_block(seed: int, num: int, size: float, signed: bool) -> None:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(num, generator=rng) * 10 ** (size * torch.rand(num, generator=rng))
    values = values if signed else values.square()
    codes, scales = quantize(values, signed=signed)
    assert codes.dtype == torch.uint8
    assert len(codes) == num
    for block in range(len(scales)):
        own = values[block * BLOCK : (block + 1) * BLOCK]
        assert scales[block] == own.abs().max()
    again = dequantize(codes, scales, signed=signed)
    largest = scales.repeat_interleave(BLOCK)[:num]
    nearest = (levels(signed, CPU) * largest[:, None] - values[:, None]).abs().min(1).values
    kept = torch.ones(num, dtype=torch.bool) if signed else again > levels(False, CPU)[1] * largest * 1.01
    torch.testing.assert_close((again - values).abs()[kept], nearest[kept], rtol=1e-4, atol=1e-6 * float(largest.max()))


def test_a_second_moment_above_0_stays_above_0() -> None:
    values = torch.tensor([1.0, 1e-12, 0.0, 1e-30])
    again = dequantize(*quantize(values, signed=False), signed=False)
    assert again.gt(0).tolist() == [True, True, False, True]


def test_blocks_of_zeros_stay_zero() -> None:
    for signed in (True, False):
        assert dequantize(*quantize(torch.zeros(BLOCK + 3), signed=signed), signed=signed).eq(0).all()


def test_parts_cover_every_element_once_and_start_at_blocks() -> None:
    for num in (1, PART, PART + 1, 2 * PART + 700):
        covered = [i for part in parts(num) for i in (part.start, part.stop)]
        assert covered[0] == 0
        assert covered[-1] == num
        assert covered[1:-1:2] == covered[2::2]
        assert all(part.start % BLOCK == 0 for part in parts(num))


def test_moments_keep_what_is_written_part_by_part() -> None:
    num = 3 * BLOCK + 40
    first, second = torch.randn(num), torch.rand(num)
    whole, pieces = QuantizedMoments(num, CPU), QuantizedMoments(num, CPU)
    assert all(moment.eq(0).all() for moment in whole.read(slice(0, num)))
    whole.write(slice(0, num), first, second)
    for part in (slice(0, 2 * BLOCK), slice(2 * BLOCK, num)):
        pieces.write(part, first[part], second[part])
    for ours, theirs in zip(pieces.tensors(), whole.tensors(), strict=True):
        assert ours.equal(theirs)
    for read, given_ in zip(whole.read(slice(0, num)), (first, second), strict=True):
        torch.testing.assert_close(read, given_, rtol=0, atol=0.02 * float(given_.abs().max()))

    plain = PlainMoments(num, torch.float32, CPU)
    plain.read(slice(0, num))[0].copy_(first)
    assert plain.read(slice(5, 9))[0].equal(first[5:9])
