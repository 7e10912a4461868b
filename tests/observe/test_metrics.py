"""Reductions on hand-made groups; the clock on a hand-wound one; memory against what is known to be held."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from typing import get_args

import pytest

from rlvr.observe.metrics import Clock, resident_gib, rollout_metrics
from rlvr.records import Completion, FinishReason, Group, Prompt, Rollout, Status, Verdict

PROMPT = Prompt(id="p", text="1+1", token_ids=[1], reference="2", source="test")


def rollout(reward: float, status: Status, length: int = 2, finish: FinishReason = "stop", **parts: float) -> Rollout:
    return Rollout(Completion([0] * length, [0.0] * length, "", finish, 0), Verdict(reward, status, parts))


def test_means_leave_faults_out() -> None:
    groups = [
        Group(PROMPT, [rollout(1.0, "correct", 4), rollout(0.0, "wrong", 6, "length"), rollout(9.0, "error", 100)]),
        Group(PROMPT, [rollout(0.5, "correct", 2), rollout(0.5, "correct", 8), rollout(0.5, "correct", 5)]),
    ]
    metrics = rollout_metrics(groups)
    assert metrics["reward/mean"] == pytest.approx(0.5)
    assert metrics["reward/std"] == pytest.approx(math.sqrt((0.25 + 0.25) / 5))
    assert metrics["accuracy"] == pytest.approx(4 / 5)
    assert metrics["length/mean"] == pytest.approx(5)
    assert metrics["length/max"] == 8
    assert metrics["length/truncated"] == pytest.approx(1 / 5)
    assert metrics["groups/zero_variance"] == 0.5
    assert metrics["groups/mixed"] == 0.5
    assert metrics["verify/error"] == pytest.approx(1 / 6)
    assert metrics["verify/correct"] == pytest.approx(4 / 6)
    assert metrics["tokens/generated"] == 125, "tokens cost the same whatever the verifier says"


def test_every_status_has_its_share_even_when_none_occurred() -> None:
    metrics = rollout_metrics([Group(PROMPT, [rollout(1.0, "correct")])])
    shares = {name: value for name, value in metrics.items() if name.startswith("verify/")}
    assert set(shares) == {f"verify/{status}" for status in get_args(Status)}
    assert sum(shares.values()) == 1


def test_parts_are_averaged_over_the_rollouts_that_have_them() -> None:
    groups = [Group(PROMPT, [rollout(1, "correct", math=1.0, format=1.0), rollout(0, "wrong", math=0.0)])]
    metrics = rollout_metrics(groups)
    assert (metrics["reward/math"], metrics["reward/format"]) == (0.5, 1.0)


def test_shaped_rewards_differ_where_outcomes_agree() -> None:
    groups = [Group(PROMPT, [rollout(1.0, "correct"), rollout(0.9, "correct")])]
    metrics = rollout_metrics(groups)
    assert (metrics["groups/zero_variance"], metrics["groups/mixed"]) == (0, 0)


def test_only_faults_give_nan_means_and_no_signal() -> None:
    metrics = rollout_metrics([Group(PROMPT, [rollout(0, "timeout"), rollout(0, "timeout")])])
    assert math.isnan(metrics["reward/mean"])
    assert math.isnan(metrics["accuracy"])
    assert metrics["groups/zero_variance"] == 1
    assert metrics["verify/timeout"] == 1


def test_clock_adds_up_phases_and_knows_the_whole() -> None:
    now = 100.0

    def read() -> float:
        return now

    clock = Clock(read)
    for seconds in (2.0, 3.0):
        with clock("generate"):
            now += seconds
    with contextlib.suppress(KeyError), clock("score"):
        now += 1.0
        raise KeyError
    now += 4.0
    metrics = clock.metrics(num_tokens=50)
    assert metrics == {"time/generate": 5.0, "time/score": 1.0, "time/step": 10.0, "tokens_per_second": 5.0}


def test_memory_counts_children() -> None:
    alone = resident_gib()
    hold = "import sys; held = b'x' * 2**28; print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert 0.24 < resident_gib() - alone < 0.5
    finally:
        child.communicate("")
