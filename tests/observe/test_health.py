"""Each alarm sounds where it should, once, and stays silent on a healthy run."""

from __future__ import annotations

import math
import re

import pytest

from rlvr.observe.health import RULES, Health

HEALTHY = {
    "accuracy": 0.5,
    "length/truncated": 0.02,
    "groups/zero_variance": 0.3,
    "groups/kept": 8.0,
    "policy/entropy": 0.8,
    "policy/grad_norm": 0.4,
    "mismatch/kl": 1e-3,
    "verify/timeout": 0.0,
    "verify/error": 0.0,
    "verify/oversize": 0.0,
    "verify/unparseable_gold": 0.0,
}

SICK = {
    "truncation": ({"length/truncated": 0.6}, "60% of completions hit the length limit.*rollout.max_new_tokens"),
    "nothing_kept": ({"groups/kept": 0.0, "accuracy": 0.0}, "dynamic sampling found no group.*accuracy 0.0%"),
    "no_signal_unsolved": ({"groups/zero_variance": 1.0, "accuracy": 0.01}, "every group.*1.0%.*rollout.group_size"),
    "no_signal_solved": ({"groups/zero_variance": 1.0, "accuracy": 1.0}, "the data is solved"),
    "entropy": ({"policy/entropy": 0.03}, "entropy fell to 0.03.*objective.trust.high"),
    "mismatch": ({"mismatch/kl": 0.2}, "mismatch/kl 0.2.*rollout.dtype"),
    "verifier_faults": (
        {"verify/timeout": 0.04, "verify/error": 0.02},
        "4.0% time-outs, 2.0% errors.*deadline_seconds",
    ),
    "grad_norm": ({"policy/grad_norm": math.inf}, "not finite.*policy.learning_rate"),
}


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == set(SICK)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_alarm_sounds_once_after_its_steps_and_again_after_a_pause(rule) -> None:
    symptoms, message = SICK[rule.name]
    health = Health()
    assert health.check(HEALTHY) == []
    heard = [health.check(HEALTHY | symptoms) for _ in range(rule.steps + 3)]
    assert [len(warnings) for warnings in heard] == [0] * (rule.steps - 1) + [1, 0, 0, 0]

    assert re.search(message, heard[rule.steps - 1][0])
    assert "\n" not in heard[rule.steps - 1][0]
    assert health.check(HEALTHY) == []
    again = [health.check(HEALTHY | symptoms) for _ in range(rule.steps)]
    assert len(again[-1]) == 1


def test_a_skipped_update_is_reported_though_the_norm_of_the_others_is_finite() -> None:
    (warning,) = Health().check(HEALTHY | {"policy/skipped": 1.0})
    assert "update was left out" in warning


def test_a_solved_task_may_have_low_entropy() -> None:
    health = Health([HEALTHY])
    solved = HEALTHY | {"policy/entropy": 0.01, "accuracy": 0.97}
    assert [health.check(solved) for _ in range(5)] == [[]] * 5


def test_missing_metrics_and_nulls_raise_no_alarm() -> None:
    health = Health()
    assert [health.check({}) for _ in range(4)] == [[]] * 4
    nulls = dict.fromkeys(HEALTHY.keys() - {"policy/grad_norm"})
    assert [health.check(nulls) for _ in range(4)] == [[]] * 4


def test_history_of_a_resumed_run_counts() -> None:
    symptoms = HEALTHY | SICK["entropy"][0]
    assert len(Health([HEALTHY, symptoms, symptoms]).check(symptoms)) == 1


def test_a_critics_warm_up_is_not_the_start_that_entropy_is_held_against() -> None:
    health = Health()
    for metrics in ({"accuracy": 0.1}, HEALTHY):
        assert health.check(metrics) == []
    heard = [health.check(HEALTHY | {"policy/entropy": 0.03}) for _ in range(3)]
    assert [len(warnings) for warnings in heard] == [0, 0, 1]
