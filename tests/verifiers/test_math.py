"""The math verifier: what it accepts, what it rejects, and whose fault the rest is."""

from pathlib import Path

import answer_styles
import math_cases
import pyarrow.parquet as pq
import pytest

from rlvr.verifiers.base import Case
from rlvr.verifiers.math import MAX_CHARACTERS, Math

SAME = math_cases.SAME + answer_styles.SAME
DIFFERENT = math_cases.DIFFERENT + answer_styles.DIFFERENT
DATA = Path(__file__).parents[2].parent / "shared" / "data"

verify = Math()


def judge(gold, answer, **case):
    return verify(Case(rf"The answer is $\boxed{{{answer}}}$.", gold, **case))


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same_answer_in_other_words(gold, answer):
    verdict = judge(gold, answer)
    assert (verdict.status, verdict.reward) == ("correct", 1.0), verdict.detail


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_another_answer(gold, answer):
    verdict = judge(gold, answer)
    assert verdict.status == ("wrong" if answer.strip() else "no_answer")
    assert verdict.reward == 0.0


# References that are broken in the data: how the solution ends.
BROKEN = {"math": [r"there are $\boxed{}$ primes in that range.", r"so the answer is $\boxed{}$."]}


def references():
    """(file, references) of every data set with mathematical answers."""

    def column(name, *path):
        values = pq.read_table(DATA / name).column(path[0]).to_pylist()
        return [value if len(path) == 1 else value[path[1]] for value in values]

    yield "gsm8k", column("gsm8k/train.parquet", "answer") + column("gsm8k/test_first_half.parquet", "answer")
    yield "math500", column("math500/test_first_half.parquet", "answer")
    yield "math", column("math/train.parquet", "solution")
    yield "aime24", column("aime24/train.parquet", "answer")
    yield "amc23", column("amc23/test.parquet", "answer")
    yield "dapo_math", column("dapo_math/train.parquet", "reward_model", "ground_truth")
    yield "olympiadbench", column("olympiadbench/test.parquet", "final_answer")
    yield "svamp", column("svamp/test.parquet", "Answer")
    yield "addition", column("addition/test.parquet", "answer")


@pytest.mark.parametrize(
    ("name", "golds"), list(references()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_reference_accepts_itself_and_rejects_a_perturbed_one(name, golds):
    unaccepted = [gold for gold in golds if not verify(Case(verify.right_answer(gold), gold)).is_correct]
    forgiving = [gold for gold in golds if verify(Case(verify.wrong_answer(gold), gold)).is_correct]
    assert forgiving == []
    broken = BROKEN.get(name, [])
    assert len(unaccepted) == len(broken)
    assert all(gold.endswith(end) for gold, end in zip(unaccepted, broken, strict=True))


@pytest.mark.parametrize(
    ("response", "status", "extracted"),
    [
        (r"\boxed{41}. Checking: \boxed{42}", "correct", "42"),
        (r"\boxed{42}. Or rather \boxed{41}", "wrong", "41"),
        (r"\boxed{42}, \boxed{43}", "wrong", "43"),
        (r"<think>\boxed{41}</think> It is \boxed{42}.", "correct", "42"),
        (r"<think>\boxed{42}</think> It is so.", "no_answer", None),
        (r"<think>\boxed{42}", "no_answer", None),
        (r"Answer: 42", "correct", "42"),
        (r"Answer: $42$.", "correct", "$42$."),
        (r"Answer: it is 42", "wrong", "it is 42"),
        (r"The answer is 42.", "no_answer", None),
        (r"#### 42", "no_answer", None),
        (r"\boxed{}", "no_answer", None),
        (r"\boxed{ }", "no_answer", None),
        (r"", "no_answer", None),
    ],
)
def test_which_answer_counts(response, status, extracted):
    verdict = verify(Case(response, "42"))
    assert (verdict.status, verdict.extracted) == (status, extracted)


def test_reasoning_can_be_required_or_searched():
    inside = Case(r"<think>\boxed{42}</think> done", "42")
    assert Math(thinking="searched")(inside).is_correct
    assert Math(thinking="required")(Case(r"\boxed{42}", "42")).status == "no_answer"
    assert Math(thinking="required")(Case(r"so</think> \boxed{42}", "42")).is_correct


def test_marks_are_chosen():
    assert Math(answer_marks=("####",))(Case("5 + 5 = 10\n#### 10", "10")).is_correct
    assert Math(answer_marks=())(Case("Answer: 10", "10")).status == "no_answer"


def test_a_cut_completion_is_truncated_only_without_an_answer():
    assert verify(Case("so we", "42", finish_reason="length")).status == "truncated"
    assert verify(Case(r"\boxed{42} and", "42", finish_reason="length")).status == "correct"
    assert verify(Case(r"\boxed{41} and", "42", finish_reason="length")).status == "wrong"


def test_the_echo_of_the_prompt_is_not_an_answer():
    prompt = r"What is 6 * 7? Answer as \boxed{42}."
    assert verify(Case(f"{prompt} Well.", "42", prompt=prompt)).status == "no_answer"
    assert verify(Case(rf"{prompt} Well: \boxed{{42}}", "42", prompt=prompt)).is_correct


@pytest.mark.parametrize(
    ("prompt", "gold", "answer", "accepted"),
    [
        ("What is $17 + 25$?", "42", "17+25", False),
        (r"Evaluate \left(1+\frac{1}{2}\right)\cdot 2.", "3", r"(1+\frac{1}{2})\cdot 2", False),
        ("Expand (x-1)(x+1).", "x^2-1", "(x-1)(x+1)", False),
        ("Reduce 84/2.", "42", "84/2", False),
        ("Which is larger, 1/2 or 1/3?", "0.5", "1/2", True),
        ("Let x=0.5. What is x?", r"\frac12", "0.5", True),
        ("Factor x^2-1 = (x-1)(x+1).", "(x-1)(x+1)", "(x-1)(x+1)", True),
        ("What is $17 + 25$?", "42", "42", True),
        ("What is $17 + 25$?", "42", "40+2", True),
    ],
)
def test_an_expression_copied_from_the_question_is_no_answer(prompt, gold, answer, accepted):
    assert judge(gold, answer, prompt=prompt).is_correct == accepted


@pytest.mark.parametrize(
    ("reference", "status"),
    [
        ("", "unparseable_gold"),
        ("  ", "unparseable_gold"),
        (r"\boxed{}", "unparseable_gold"),
        (r"\frac{1}{2", "unparseable_gold"),
        ("(1, 2", "unparseable_gold"),
        (None, "unparseable_gold"),
        (True, "unparseable_gold"),
        ([], "unparseable_gold"),
        ({"answer": "42"}, "unparseable_gold"),
        ("4\x002", "unparseable_gold"),
        ("9^{9^{9^{9}}}", "oversize"),
        ("1" * (MAX_CHARACTERS + 1), "oversize"),
        ("(" * 100 + "1" + ")" * 100, "oversize"),
        (r"\sum_{k=1}^{100000} k", "oversize"),
    ],
)
@pytest.mark.parametrize("response", [r"\boxed{42}", r"\boxed{}", "nothing"])
def test_a_bad_reference_is_a_fault_whatever_the_response(reference, status, response):
    verdict = verify(Case(response, reference))
    assert (verdict.status, verdict.reward, verdict.is_fault) == (status, 0.0, True)
    assert verdict.detail


def test_a_reference_too_large_to_evaluate_accepts_its_own_spelling():
    assert judge("9^{9^{9^{9}}}", "9^{9^{9^{9}}}").is_correct
    assert judge("9^{9^{9^{9}}}", "9^{9^{9^{8}}}").status == "oversize"


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (27.0, "27"),
        (27, "27.0"),
        (r"Therefore \boxed{\frac12}.", "0.5"),
        ("5 + 5 = 10\n#### 10", "10"),
        (["1", "one half", "2"], "2"),
        (["", "2"], "2"),
    ],
)
def test_forms_of_a_reference(reference, answer):
    assert judge(reference, answer).is_correct
    assert judge(reference, "77").status == "wrong"


def test_what_only_sympy_knows():
    assert judge("55", r"\sum_{k=1}^{10} k").is_correct
    assert judge(r"\sum_{k=1}^{10} k", "55").is_correct
    assert judge("55", r"\sum_{k=1}^{11} k").status == "wrong"
    assert judge(r"\sum_{k=1}^{10} 2^{-99}", r"\sum_{k=1}^{10} 2^{-98}").status == "wrong"


def test_the_verifier_writes_answers_for_the_audit():
    strict = Math(thinking="required")
    assert strict(Case(strict.right_answer(r"\frac12"), r"\frac12")).is_correct
    assert strict(Case(strict.wrong_answer(r"\text{east}"), r"\text{east}")).status == "wrong"
