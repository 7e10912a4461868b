"""pass@k, maj@k and their intervals against enumeration; reduction of hand-made groups; JSON."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.config import EvalConfig
from rlvr.evaluate import CORRECT, bootstrap_interval, maj_at_k, pass_at_k, reduce_groups, write_eval
from rlvr.records import Completion, Group, Prompt, Rollout, Status, Verdict


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(ints(n), ints(c), k)[0] == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 4000), st.data())
def test_pass_at_k_agrees_with_exact_binomials_for_many_samples(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    exact = 1 - math.comb(n - c, k) / math.comb(n, k) if math.comb(n, k) < 10**300 else None
    value = pass_at_k(ints(n), ints(c), k)[0]
    assert 0 <= value <= 1
    if exact is not None:
        assert value == pytest.approx(exact, rel=1e-9, abs=1e-12)


def test_pass_at_k_of_several_prompts_and_too_few_samples() -> None:
    np.testing.assert_allclose(pass_at_k(ints(4, 4, 4), ints(0, 2, 4), 2), [0, 1 - 1 / 6, 1])
    assert np.isnan(pass_at_k(ints(3), ints(3), 4)).all()


def majority(votes: Sequence[object], order: Sequence[object]) -> object:
    """The winner of one subset: most votes, ties to the one first in `order`."""
    counts = Counter(vote for vote in votes if vote is not None)
    return max(counts, key=lambda vote: (counts[vote], -order.index(vote)), default=None)


@given(st.lists(st.sampled_from([CORRECT, "7", "8", "9", None]), min_size=1, max_size=9), st.data())
def test_maj_at_k_is_the_share_of_subsets_that_the_correct_answer_wins(
    votes: list[object], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(votes)))
    subsets = list(itertools.combinations(votes, k))
    expected = sum(majority(subset, votes) == CORRECT for subset in subsets) / len(subsets)
    assert maj_at_k(votes, k) == pytest.approx(expected, abs=1e-12)


def test_maj_at_k_by_hand() -> None:
    assert maj_at_k(["7", CORRECT], 2) == 0, "a tie goes to the answer seen first"
    assert maj_at_k([CORRECT, "7"], 2) == 1
    assert maj_at_k([None, None, CORRECT], 3) == 1, "a sample without an answer casts no vote"
    assert maj_at_k([None, None], 2) == 0
    assert math.isnan(maj_at_k([CORRECT], 2))


@given(st.lists(st.sampled_from([CORRECT, "7", "8", None]), min_size=1, max_size=12))
def test_one_vote_is_the_share_of_correct_samples(votes: list[object]) -> None:
    share = votes.count(CORRECT) / len(votes)
    assert maj_at_k(votes, 1) == pytest.approx(share)
    assert pass_at_k(ints(len(votes)), ints(votes.count(CORRECT)), 1)[0] == pytest.approx(share)


def test_bootstrap_repeats_for_a_seed_and_ignores_missing_values() -> None:
    values = np.random.default_rng(0).random(50)
    assert bootstrap_interval(values, 1) == bootstrap_interval(values, 1)
    assert bootstrap_interval(values, 1) != bootstrap_interval(values, 2)
    assert bootstrap_interval(np.append(values, np.nan), 1) == bootstrap_interval(values, 1)
    low, high = bootstrap_interval(values, 1)
    assert low < values.mean() < high


def test_bootstrap_without_spread_or_values() -> None:
    assert bootstrap_interval(np.ones(5), 0) == (1, 1)
    assert all(math.isnan(bound) for bound in bootstrap_interval(np.array([]), 0))


def test_bootstrap_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for seed in range(100):
        low, high = bootstrap_interval(rng.binomial(8, 0.3, size=80) / 8, seed)
        covered += low <= 0.3 <= high
    assert 88 <= covered <= 100


def verdict(status: Status, extracted: str | None) -> Verdict:
    return Verdict(reward=float(status == "correct"), status=status, extracted=extracted)


def group(*verdicts: Verdict) -> Group:
    prompt = Prompt(id="p", text="1+1", token_ids=[1], reference="2", source="test")
    completions = [Completion([1, 2, 3], [-1.0] * 3, "", "stop", 0) for _ in verdicts]
    return Group(prompt, [Rollout(c, v) for c, v in zip(completions, verdicts, strict=True)])


RIGHT, ALSO_RIGHT = verdict("correct", "1/2"), verdict("correct", "0.5")
WRONG, OTHER, SILENT = verdict("wrong", "3"), verdict("wrong", "4"), verdict("no_answer", None)
SLOW = verdict("timeout", None)


def test_reduction_of_hand_made_groups() -> None:
    groups = [group(RIGHT, ALSO_RIGHT, WRONG, WRONG), group(WRONG, OTHER, SILENT, RIGHT)]
    result = reduce_groups(groups, EvalConfig(samples=4, k=[1, 4]), seed=0, step=7)
    assert result.names == ["pass@1", "pass@4", "avg@4", "maj@4"]
    assert result.metrics["pass@1"] == result.metrics["avg@4"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert result.metrics["pass@4"] == 1
    assert result.metrics["maj@4"] == 0.5, "1/2 and 0.5 vote together; in the second group 3 is first of three"
    value, low, high = result.interval("pass@1")
    assert (low, value, high) == (0.25, 0.375, 0.5)
    assert (result.num_prompts, result.num_samples, result.mean_length, result.truncated) == (2, 4, 3, 0)


def test_faults_leave_the_estimates_and_are_counted() -> None:
    groups = [group(RIGHT, SLOW, RIGHT, RIGHT), group(WRONG, WRONG, WRONG, WRONG)]
    result = reduce_groups(groups, EvalConfig(samples=4, k=[1, 4]), seed=0, step=0)
    assert result.metrics["pass@1"] == 0.5
    assert result.metrics["pass@4"] == 0, "the first prompt has no 4 scored samples"
    assert result.num_short == {"pass@4": 1, "maj@4": 1}
    assert result.faults == {"error": 0, "oversize": 0, "timeout": 1, "unparseable_gold": 0}


def test_no_majority_without_answers_to_vote_for() -> None:
    result = reduce_groups([group(verdict("correct", None), SILENT)], EvalConfig(samples=2, k=[2]), seed=0, step=0)
    assert result.names == ["pass@2", "avg@2"]


def test_json_is_strict_and_complete(tmp_path: Path) -> None:
    result = reduce_groups([group(SLOW, SLOW)], EvalConfig(samples=2, k=[1], temperature=0.6), seed=5, step=50)
    file = write_eval(tmp_path, result)
    assert file == tmp_path / "eval" / "step-000050.json"

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    written = json.loads(file.read_text(), parse_constant=refuse)
    assert written["pass@1"] is None
    assert written["faults"]["timeout"] == 2
    assert {"pass@1_low", "pass@1_high", "avg@2", "num_prompts", "num_samples", "mean_length"} <= written.keys()
    assert (written["temperature"], written["top_p"], written["seed"], written["step"]) == (0.6, 1.0, 5, 50)
    assert list(tmp_path.rglob("*.tmp")) == []
