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


def judged(options, response, **case):
    verdict = build(options)(Case(response, "42", **case))
    return verdict.reward, verdict.status


def test_below_a_gate_what_the_others_give_does_not_count_and_what_they_take_does():
    options = {"math": {}, "format": {"weight": 0.5, "gate": 1.0}, "overlong": {"max_tokens": 100, "cache_tokens": 50}}
    assert judged(options, THOUGHT, num_tokens=75) == (1.5 - 0.5, "correct")
    assert judged(options, r"\boxed{42}", num_tokens=75) == (-0.5, "correct")
    verdict = build(options)(Case(r"\boxed{42}", "42", num_tokens=1))
    assert verdict.parts == {"math": 1.0, "format": 0.0, "overlong": 0.0}
    assert verdict.detail == "gate format: not exactly one <think>"


def test_a_gate_of_the_answer_holds_shaping_back():
    options = {"math": {"gate": 1.0}, "format": {}}
    assert judged(options, THOUGHT) == (2.0, "correct")
    assert judged(options, "<think>a</think> b") == (0.0, "no_answer")


def test_a_gate_keeps_its_own_reward_and_two_gates_hold_each_other_back():
    assert judged({"math": {"gate": 1.0}, "format": {"gate": 1.0, "weight": 0.5}}, "<think>a</think>b")[0] == 0.0
    assert judged({"math": {"gate": 1.0}, "format": {"gate": 0.0, "weight": 0.5}}, r"\boxed{42}")[0] == 1.0


def test_a_gate_holds_step_rewards_back():
    options = {"arithmetic_steps": {}, "format": {"gate": 1.0}}
    response = "1+1=2, 1+1=3"
    assert build(options)(Case(response, None)).step_rewards == [(5, 0.0), (12, 0.0), (12, 0.0)]


@given(weight=weights, cap=st.floats(0.01, 5), num_tokens=st.integers(1, 200))
def test_a_cap_bounds_what_a_part_adds_or_takes(weight, cap, num_tokens):
    options = {"math": {}, "overlong": {"weight": weight, "cap": cap, "max_tokens": 100, "cache_tokens": 50}}
    verdict = build(options)(Case(THOUGHT, "42", num_tokens=num_tokens))
    added = verdict.reward - 1.0
    assert abs(added) <= cap * (1 + 1e-9)
    uncapped = weight * verdict.parts["overlong"]
    assert added == pytest.approx(uncapped if abs(uncapped) <= cap else cap * (1 if uncapped > 0 else -1), abs=1e-9)


def test_a_late_verdict_passes_the_gates_too():
    heard: list[Verdict] = []
    verify = build({"math": {"weight": -1.0}, "format": {"weight": 0.5}, "arithmetic_steps": {"gate": 1.0}})
    with listening(lambda seconds, verdict: heard.append(verdict)):
        verify(Case(r"<think>a</think> \boxed{\sum_{k=1}^{9} k}", "45"))
    assert [verdict.reward for verdict in heard] == [0.0]
