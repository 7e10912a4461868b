from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlvr.data.arithmetic import NUM_TEST, SLIP_SHARE, addition_1digit, arithmetic
from rlvr.errors import DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
STEP = re.compile(r"([\d+]+)=(\d+)")


def test_answers_are_right_and_a_completion_slips_at_most_once_and_follows_its_slip() -> None:
    rows = arithmetic("train") + arithmetic("test")
    num_slips = 0
    for row in rows:
        assert eval(row["question"]) == int(row["answer"])
        steps, boxed = re.fullmatch(r"<think>(.*)</think>\\boxed\{(.*)\}", row["completion"]).groups()
        (units_sum, units), (tens_sum, tens) = STEP.findall(steps)
        assert int(boxed) == int(tens) * 10 + int(units) % 10
        off = [abs(eval(units_sum) - int(units)), abs(eval(tens_sum) - int(tens))]
        assert sorted(off) in ([0, 0], [0, 1])
        num_slips += any(off)
    assert abs(num_slips / len(rows) - SLIP_SHARE) < 0.02


def test_completions_are_short() -> None:
    assert max(len(row["completion"]) for row in arithmetic("train")) <= len("<think></think>\\boxed{}") + 20


def test_splits_share_no_problem_and_are_the_same_each_time() -> None:
    train, test = ({row["question"] for row in arithmetic(split)} for split in ("train", "test"))
    assert len(test) == NUM_TEST
    assert not train & test
    assert len(train | test) == 90 * 90
    assert arithmetic("train") == arithmetic("train")


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_digit_sums_are_those_of_the_stored_set(split: str) -> None:
    stored = pq.read_table(SHARED / "addition_1digit" / f"{split}.parquet").to_pylist()
    key = lambda row: row["question"]
    assert sorted(addition_1digit(split), key=key) == sorted(stored, key=key)


@pytest.mark.parametrize("generate", [arithmetic, addition_1digit])
def test_another_split_is_refused(generate: type) -> None:
    with pytest.raises(DataError, match="no split 'validation'; there are train and test"):
        generate("validation")
