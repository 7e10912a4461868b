"""Hostile responses through the real worker processes: no reward, no fault, no delay, and a pool that still works."""

import os

import pytest
from hostile_cases import HOSTILE, box

from rlvr.scoring import Scorer
from rlvr.verifiers.base import Case

DEADLINE_SECONDS = 5.0
SLACK_SECONDS = 1.0  # of a busy machine


@pytest.fixture(scope="module")
def scorer():
    with Scorer({"math": {"symbolic_seconds": 1.0}}, num_workers=2, deadline_seconds=DEADLINE_SECONDS) as scorer:
        yield scorer


def test_none_of_them_earns_anything_or_leaves_its_group(scorer):
    verdicts = scorer.score([Case(response, "42") for response in HOSTILE.values()])
    slowest = max(scorer.seconds.values())
    unexpected = {
        name: verdict.status
        for name, verdict in zip(HOSTILE, verdicts, strict=True)
        if verdict.status not in ("wrong", "no_answer") or verdict.reward != 0.0
    }
    assert unexpected == {}
    assert slowest < DEADLINE_SECONDS + SLACK_SECONDS


def test_the_pool_is_healthy_afterwards(scorer):
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        scorer.score([Case(HOSTILE["slow sum"], "42"), Case(HOSTILE["lone surrogate"], "42")])
    verdicts = scorer.score([Case(box(str(i)), str(i)) for i in range(50)])
    assert all(verdict.is_correct for verdict in verdicts)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # a replaced process has as many as the one before


def test_a_reference_that_keeps_sympy_busy_is_a_fault(scorer):
    (verdict,) = scorer.score([Case(box("42"), r"\int_0^1 \frac{\sin(x^3)}{1+x^5} dx")])
    assert verdict.status == "timeout"
