from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlvr.data.arithmetic import NUM_TEST, addition_1digit, arithmetic
from rlvr.errors import DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
STEP = re.compile(r"([\d+*-]+)=(\d+)")


def test_every_step_and_every_answer_is_right() -> None:
    for row in arithmetic("train") + arithmetic("test"):
        assert eval(row["question"]) == int(row["answer"])
        steps, boxed = re.fullmatch(r"<think>(.*)</think>\\boxed\{(.*)\}", row["completion"]).groups()
        assert boxed == row["answer"]
        results = [int(result) for expression, result in STEP.findall(steps) if eval(expression) == int(result)]
        assert len(results) == steps.count("=") == 2
        units, tens = results
        assert tens * 10 + units % 10 == int(row["answer"])


def test_completions_are_short() -> None:
    assert max(len(row["completion"]) for row in arithmetic("train")) <= len("<think></think>\\boxed{}") + 20


def test_splits_share_no_problem_and_are_the_same_each_time() -> None:
    train, test = ({row["question"] for row in arithmetic(split)} for split in ("train", "test"))
    assert len(test) == NUM_TEST
    assert not train & test
    assert len(train | test) == 90 * 90 + 90 * 91 // 2 + 90 * 8
    assert arithmetic("train") == arithmetic("train")
    assert {question[2] for question in test} == {"+", "-", "*"}


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_digit_sums_are_those_of_the_stored_set(split: str) -> None:
    stored = pq.read_table(SHARED / "addition_1digit" / f"{split}.parquet").to_pylist()
    key = lambda row: row["question"]
    assert sorted(addition_1digit(split), key=key) == sorted(stored, key=key)


@pytest.mark.parametrize("generate", [arithmetic, addition_1digit])
def test_another_split_is_refused(generate: type) -> None:
    with pytest.raises(DataError, match="no split 'validation'; there are train and test"):
        generate("validation")
