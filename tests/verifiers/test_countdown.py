"""Countdown: expressions are held to the numbers and the target, and no text is ever run."""

import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr import cli
from rlvr.scoring import Scorer
from rlvr.verifiers.base import Case
from rlvr.verifiers.countdown import Countdown

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
REFERENCE = {"nums": [1, 2, 3, 8], "target": 18}


def judge(answer, reference=REFERENCE, **options):
    return Countdown(**options)(Case(f"So <answer>{answer}</answer>", reference))


@pytest.mark.parametrize(
    "answer",
    [
        "(8-2)/(1/3)",
        " ( 8 - 2 ) * ( 3 / 1 ) ",
        "(8-2)*3*1 = 18",
        "(8 − 2) × 3 ÷ 1",
        r"\left(8-2\right) \times 3 \div 1",
        "$(8-2) * 3 * 1$",
        "1*3*-(2-8)",
    ],
)
def test_right_expressions(answer):
    verdict = judge(answer)
    assert (verdict.reward, verdict.status, verdict.detail) == (1.0, "correct", "")


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ("8*2+3-1/1", "uses 1, 1, 2, 3, 8, not each of 1, 2, 3, 8 once"),
        ("3*6", "uses 3, 6, not"),
        ("18", "uses 18, not"),
        ("(8-2)*3", "uses 2, 3, 8, not"),
        ("8+2+3+1", "equals 14, not 18"),
        ("8+2+3+1=18", "equals 14, not 18"),
        ("8/(3-2-1)", "divides by zero"),
        ("(8-2)*3*1 = 19", "not whole numbers"),
        ("12/3+8", "uses 3, 8, 12, not"),
        ("(8-2)*3**1", "not + - * / of numbers"),
        ("(8-2)*3//1", "not + - * / of numbers"),
        ("+8-2", "uses 2, 8"),
        ("1,2", "not whole numbers"),
        ("1_2", "not whole numbers"),
        ("1.0*2", "not whole numbers"),
        ("08*2", "not an expression"),
        ("8(2)", "uses 2, 8"),
        ("1(2)+3*8", "not + - * / of numbers"),
        ("8 if 1 else 2", "not whole numbers"),
        ("٨-٢", "not whole numbers"),
        ("(8-2", "not an expression"),
        ("", ""),
    ],
)
def test_wrong_expressions(answer, detail):
    verdict = judge(answer)
    assert (verdict.reward, verdict.status) == (0.0, "wrong" if answer else "no_answer")
    assert detail in verdict.detail


def test_numbers_may_be_left_out_where_the_option_says_so():
    assert judge("(8-2)*3", use="any").is_correct
    assert judge("8+8+2", use="any").detail == "uses 2, 8, 8, not any of 1, 2, 3, 8 once"


def test_numbers_that_are_given_twice_may_be_used_twice():
    assert judge("7+7", {"nums": [7, 7], "target": 14}).is_correct
    assert judge("7*2", {"nums": [7, 7], "target": 14}).status == "wrong"


def test_where_the_answer_stands():
    right = "(8-2)*3*1"
    verify = Countdown()
    assert verify(Case(rf"\boxed{{{right}}}", REFERENCE)).is_correct
    assert verify(Case(f"<answer>{right}</answer> no: <answer>18</answer>", REFERENCE)).status == "wrong"
    assert verify(Case(f"<think><answer>{right}</answer></think> Done.", REFERENCE)).status == "no_answer"
    assert verify(Case("and so", REFERENCE, finish_reason="length")).status == "truncated"


@pytest.mark.parametrize(
    "reference",
    [None, "18", {}, {"nums": [], "target": 1}, {"nums": [1], "target": None}, {"nums": [1.5], "target": 1}],
)
def test_other_references_are_faults_of_the_data(reference):
    assert judge("1", reference).status == "unparseable_gold"
    assert Countdown()(Case(Countdown().right_answer(reference), reference)).status == "unparseable_gold"


@pytest.mark.parametrize(
    "answer",
    [
        "(" * 100_000,
        "(" * 240 + "8" + ")" * 240,
        "-" * 499 + "8",
        "9" * 500,
        "9" * 10_000_000,
        "*".join("9" * 249),
        "9**9**9**9",
        "1/(" * 120 + "8" + ")" * 120,
        "__import__('os').system('true')",
        "().__class__",
        "\0",
        "\ud800",
        "8\n-2",
        "=18" * 150,
    ],
)
def test_hostile_answers_are_wrong_at_once(answer):
    start = time.monotonic()
    assert judge(answer).status == "wrong"
    assert time.monotonic() - start < 2.0


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="0123456789+-*/()= .×\\", max_size=60))
def test_no_text_raises(answer):
    assert judge(answer).status in {"wrong", "no_answer", "correct"}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 60), st.sampled_from(["each", "any"]))
def test_what_the_search_finds_is_right_and_the_wrong_answer_is_not(nums, target, use):
    verify = Countdown(use=use)
    reference = {"nums": nums, "target": target}
    assert not verify(Case(verify.wrong_answer(reference), reference)).is_correct
    if (solution := verify._solution(nums, target)) is not None:
        assert judge(solution, reference, use=use).is_correct
    if sum(nums) == target:
        assert solution is not None


def test_an_impossible_row_is_a_defect(tmp_path, capsys):
    rows = [REFERENCE, {"nums": [1, 1], "target": 50}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ["verify", "--audit", "verifier=countdown", "data=countdown", f"data.path={tmp_path}/rows.jsonl"]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    assert "2 rows, 1 sound, 1 with defects" in printed
    assert "row 2: its own reference" in printed


@pytest.mark.parametrize("name", ["countdown", "countdown_easy"])
def test_every_held_out_row_of_the_stored_data_is_sound(name):
    rows = pq.read_table(SHARED / name / "test.parquet").to_pylist()
    verify = Countdown()
    responses = [verify.right_answer(row) for row in rows] + [verify.wrong_answer(row) for row in rows]
    with Scorer({"countdown": {}}, num_workers=1) as scorer:
        verdicts = scorer.score([Case(response, row) for response, row in zip(responses, rows * 2, strict=True)])
    assert [verdict.status for verdict in verdicts] == ["correct"] * len(rows) + ["wrong"] * len(rows)
