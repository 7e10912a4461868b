"""Generated problems: two-digit sums with worked steps, and one-digit sums for a small chat model.

The worked steps are those of a careless teacher: more than half of them hold a slip. A model that imitates them is
right less than half of the time; reinforcement learning against the (always right) answers takes it beyond its teacher.
"""

from __future__ import annotations

import random
from typing import TypeVar

from rlvr.errors import DataError

T = TypeVar("T")

NUM_TEST = 500
SLIP_SHARE = 0.55  # of the worked examples hold one slip
# Fixed, so that the split is the same for every run; the run's seed decides the order of visiting only.
_SPLIT_SEED = 20
# The pairs a + b held out of the 81 one-digit sums.
# fmt: off
_TEST_SUMS = [
    (1, 7), (6, 8), (3, 5), (4, 9), (6, 2), (8, 4), (4, 2), (1, 8), (5, 2), (8, 8),
    (6, 7), (1, 3), (1, 9), (2, 3), (3, 2), (7, 8), (6, 6), (2, 5), (5, 3), (4, 4),
]
# fmt: on


def arithmetic(split: str) -> list[dict[str, str]]:
    """All sums of two two-digit numbers of a split as {question, answer, completion}.

    Raises:
        DataError: for a split other than `train` and `test`, which share no problem.
    """
    draw = random.Random(_SPLIT_SEED)
    sums = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    draw.shuffle(sums)
    return [
        {"question": f"{a}+{b}", "answer": str(a + b), "completion": _worked(a, b, *_slip(draw))}
        for a, b in _split(split, train=sums[NUM_TEST:], test=sums[:NUM_TEST])
    ]


def addition_1digit(split: str) -> list[dict[str, str]]:
    """Every a + b with a and b from 1 to 9 as {question, answer}: 61 to train on, 20 as `test`.

    Raises:
        DataError: for another split.
    """
    sums = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    chosen = _split(split, train=[pair for pair in sums if pair not in _TEST_SUMS], test=_TEST_SUMS)
    return [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in chosen]


def _split(split: str, *, train: list[T], test: list[T]) -> list[T]:
    if split not in ("train", "test"):
        raise DataError(f"a generated data set has no split {split!r}; there are train and test")
    return train if split == "train" else test


def _slip(draw: random.Random) -> tuple[int, int]:
    """By how much the units and the tens are off: one of them by one, in `SLIP_SHARE` of the examples."""
    if draw.random() >= SLIP_SHARE:
        return 0, 0
    off = draw.choice((-1, 1))
    return (off, 0) if draw.random() < 0.5 else (0, off)


def _worked(a: int, b: int, units_slip: int, tens_slip: int) -> str:
    """Units, then tens with the carry.

    >>> _worked(37, 45, 0, 0)
    '<think>7+5=12,3+4+1=8</think>\\\\boxed{82}'
    >>> _worked(37, 45, 0, 1)
    '<think>7+5=12,3+4+1=9</think>\\\\boxed{92}'
    """
    units = max(a % 10 + b % 10 + units_slip, 0)
    carry, digit = divmod(units, 10)
    tens = a // 10 + b // 10 + carry + tens_slip
    carried = f"+{carry}" if carry else ""
    steps = f"{a % 10}+{b % 10}={units},{a // 10}+{b // 10}{carried}={tens}"
    return f"<think>{steps}</think>\\boxed{{{10 * tens + digit}}}"
