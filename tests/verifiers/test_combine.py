"""A weighted sum whose parts stay apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, listening
from rlvr.verifiers.registry import build

THOUGHT = r"<think>a</think> \boxed{42}"
weights = st.floats(-10, 10)


@given(math=weights, form=weights, overlong=weights, num_tokens=st.integers(1, 200))
def test_the_reward_is_the_weighted_sum_of_the_parts(math, form, overlong, num_tokens):
    names = {"math": math, "format": form, "overlong": overlong}
    options = {name: {"weight": weight} for name, weight in names.items()}
    options["overlong"] |= {"max_tokens": 100, "cache_tokens": 50}
    verdict = build(options)(Case(THOUGHT, "42", num_tokens=num_tokens))
    assert list(verdict.parts) == ["math", "format", "overlong"]
    assert verdict.reward == pytest.approx(sum(names[name] * part for name, part in verdict.parts.items()))


def test_shaping_never_changes_what_is_right():
    verify = build({"format": {"weight": 5.0}, "math": {}, "overlong": {"max_tokens": 10, "cache_tokens": 5}})
    bare, thought = r"\boxed{42}", THOUGHT
    assert verify(Case(bare, "42", num_tokens=10)).status == "correct"
    assert verify(Case(thought, "41", num_tokens=1)).status == "wrong"
    assert verify(Case("<think>a</think>b", "42", num_tokens=1)).status == "no_answer"
    assert verify(Case(thought, "42", num_tokens=1)).extracted == "42"


def test_shaping_alone_speaks_for_itself():
    assert build({"format": {}})(Case(THOUGHT, None)).status == "correct"
    assert build({"format": {}})(Case("b", None)).status == "wrong"


@pytest.mark.parametrize(
    ("reference", "num_tokens", "status"),
    [("", 1, "unparseable_gold"), ("42", 0, "error"), ("", 0, "unparseable_gold")],
)
def test_a_fault_in_any_part_makes_the_whole_a_fault(reference, num_tokens, status):
    verdict = build({"math": {}, "overlong": {}})(Case(THOUGHT, reference, num_tokens=num_tokens))
    assert (verdict.status, verdict.reward, verdict.parts) == (status, 0.0, {})


def test_a_late_verdict_keeps_the_other_parts():
    heard: list[tuple[float, Verdict]] = []
    verify = build({"math": {"symbolic_seconds": 3.0}, "format": {"weight": 0.5}})
    with listening(lambda seconds, verdict: heard.append((seconds, verdict))):
        verdict = verify(Case(r"<think>a</think> \boxed{\sum_{k=1}^{9} k}", "45"))
    assert verdict.status == "correct"
    ((seconds, late),) = heard
    assert (seconds, late.status, late.reward, late.parts) == (3.0, "wrong", 0.5, {"math": 0.0, "format": 1.0})
