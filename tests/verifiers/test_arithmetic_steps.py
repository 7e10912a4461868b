"""Step rewards on worked arithmetic: which texts are steps, where they end, and what they earn."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.data.arithmetic import arithmetic
from rlvr.verifiers.arithmetic_steps import ArithmeticSteps
from rlvr.verifiers.base import Case
from rlvr.verifiers.registry import build


def steps(response, prompt="", **options):
    """Text of each step -> its reward."""
    found = ArithmeticSteps(**options)(Case(response, None, prompt=prompt)).step_rewards
    ends = [0, *(at for at, _ in found)]
    return [(response[start:end].strip(" ,.;\n"), reward) for start, (end, reward) in zip(ends, found, strict=False)]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("7+5=12,3+4+1=8", [("7+5=12", 1.0), ("3+4+1=8", 1.0)]),
        ("7 + 5 = 12\n3 + 4 + 1 = 9", [("7 + 5 = 12", 1.0), ("3 + 4 + 1 = 9", 0.0)]),
        ("1,000+5=1,005", [("1,000+5=1,005", 1.0)]),
        ("(3+4)*2=14. 48/2=24", [("(3+4)*2=14", 1.0), ("48/2=24", 1.0)]),
        ("6 × 7 = 42; 6 ÷ 3 − 1 = 1", [("6 × 7 = 42", 1.0), ("6 ÷ 3 − 1 = 1", 1.0)]),
        (r"$5 \times 3 = \$15", [(r"$5 \times 3 = \$15", 1.0)]),
        ("1.5+1.5=3.00, 2^3=8", [("1.5+1.5=3.00", 1.0), ("2^3=8", 1.0)]),
        ("3+4=6+1=7", [("3+4=6+1=7", 1.0)]),
        ("3+4=7+1=8", [("3+4=7+1=8", 0.0)]),
        ("1/3=0.33", [("1/3=0.33", 0.0)]),
        ("1/0=0", [("1/0=0", 0.0)]),
        ("9^9^9^9=1", [("9^9^9^9=1", 0.0)]),
        ("-3-4=-7", [("-3-4=-7", 1.0)]),
        ("x=5, 5=5, -5=-5, 8=3+5, 3+4, a+5=8, a+5+1=6, v2+1=3", []),
        ("", []),
    ],
)
def test_what_is_a_step_and_what_it_earns(response, expected):
    assert steps(response) == expected


def test_steps_are_counted_in_the_reasoning_alone():
    assert steps("<think>1+2=3</think> 2+2=4") == [("<think>1+2=3", 1.0)]
    assert steps("1+2=3 (2+2=4)") == [("1+2=3", 1.0), ("(2+2=4)", 1.0)]


def test_repeating_a_step_or_calculating_with_other_numbers_earns_nothing():
    assert steps("7+5=12, 7 + 5 = 12") == [("7+5=12", 1.0), ("7 + 5 = 12", 0.0)]
    assert steps("7+5=12, 6+6=12, 1+2=3", prompt="37+45") == [("7+5=12", 1.0), ("6+6=12", 0.0), ("1+2=3", 1.0)]
    assert steps("4+1=5,4+1=5,4+1=5", prompt="44+11") == [("4+1=5", 1.0), ("4+1=5", 1.0), ("4+1=5", 0.0)]
    assert [reward for _, reward in steps("1+0=1 " * 9, prompt="10")] == [1.0] + [0.0] * 8
    assert steps("6+6=12", prompt="37+45", grounded=False) == [("6+6=12", 1.0)]
    assert steps("6+6=12", prompt="Six and six?") == [("6+6=12", 1.0)]


def test_the_quickstarts_completions_have_two_steps_each_and_a_slip_makes_one_of_them_wrong():
    rows = arithmetic("test")
    verdicts = [ArithmeticSteps()(Case(row["completion"], None, prompt=row["question"])) for row in rows]
    assert {len(verdict.step_rewards) for verdict in verdicts} == {2}
    is_right = [row["completion"].endswith(f"{{{row['answer']}}}") for row in rows]
    assert [verdict.is_correct for verdict in verdicts] == is_right
    for row, verdict in zip(rows, verdicts, strict=True):
        (first, _), (second, _) = verdict.step_rewards
        assert (row["completion"][first], row["completion"][second:].startswith("</think>")) == (",", True)
        assert verdict.reward == (1.0 if verdict.is_correct else 0.5)


@given(st.lists(st.integers(0, 999), min_size=2, max_size=6), st.integers(-3, 3))
def test_a_sum_is_right_when_it_adds_up(numbers, off):
    response = "+".join(map(str, numbers)) + f"={sum(numbers) + off}"
    assert steps(response) == [(response, float(off == 0))]


HOSTILE = ["1+", "1 ", "(", "1+1=", "1", "1,111", "-", r"\times", "(1", ") ", "a+", "1" + " " * 50, "9^"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_long_response_takes_linear_time(text):
    started = time.process_time()
    verdict = ArithmeticSteps()(Case(text * (200_000 // len(text)), None, prompt="1"))
    assert (verdict.reward, verdict.status) == (0.0, "wrong")
    assert time.process_time() - started < 2.0


def test_beside_it_the_other_rewards_are_the_last_step():
    verify = build({"math": {}, "format": {"weight": 0.5}, "arithmetic_steps": {"weight": 2.0}})
    response = r"<think>7+5=12,3+4+1=9</think>\boxed{92}"
    verdict = verify(Case(response, "82", prompt="37+45"))
    assert verdict.step_rewards == [(13, 2.0), (21, 0.0), (len(response), 0.5)]
    assert verdict.parts == {"math": 0.0, "format": 1.0, "arithmetic_steps": 0.5}
    assert (verdict.status, verdict.reward) == ("wrong", 1.5)
    assert verify(Case("I give up.", "82")).step_rewards == [(len("I give up."), 0.0)]
    assert build({"math": {}, "format": {}})(Case(response, "82")).step_rewards == []
