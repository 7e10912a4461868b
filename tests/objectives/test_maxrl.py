"""MaxRL by enumeration: every outcome of N draws from a softmax over arms, some of which succeed."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.objectives import build
from rlvr.objectives.experience import Experience

RAW = {"baseline": "none", "scale": "success_rate"}
CENTRED = {"baseline": "group_mean", "scale": "success_rate"}
REST = {"ratio": {"level": "none"}, "trust": {"kind": "none"}, "aggregate": "sequence_sum"}


def group(successes, logprobs):
    """One group of rows; row i has the tokens `logprobs[i]`."""
    row_ids = torch.tensor([i for i, tokens in enumerate(logprobs) for _ in tokens])
    flat = torch.cat(logprobs)
    return Experience(
        rewards=torch.tensor(successes, dtype=torch.float64),
        correct=torch.tensor(successes) == 1,
        truncated=torch.zeros(len(successes), dtype=torch.bool),
        group_ids=torch.zeros(len(successes), dtype=torch.int64),
        row_ids=row_ids,
        loss_mask=torch.ones(len(flat), dtype=torch.bool),
        rollout_logprobs=flat.detach(),
    ), flat


def ascent(advantage, successes, logprobs, by):
    objective = build({"advantage": advantage, **REST})
    experience, flat = group(successes, logprobs)
    loss, _ = objective.loss(flat, objective.prepare(experience)[0])
    return -torch.autograd.grad(loss, by, retain_graph=True)[0]


def expected(advantage, logits, num_rows):
    """E of the ascent direction over all draws; arms 0 and 1 succeed."""
    total = torch.zeros_like(logits)
    for arms in itertools.product(range(len(logits)), repeat=num_rows):
        logprobs = logits.log_softmax(0)
        chance = math.exp(sum(logprobs[a].item() for a in arms))
        rows = [logprobs[a][None] for a in arms]
        total += chance * ascent(advantage, [float(a < 2) for a in arms], rows, logits)
    return total


def truncated_gradient(logits, order):
    """grad of -sum_{k=1..T} (1 - p)^k / k."""
    p = logits.softmax(0)[:2].sum()
    return torch.autograd.grad(-sum((1 - p) ** k / k for k in range(1, order + 1)), logits)[0]


LOGITS = torch.tensor([-1.0, 0.3, 0.9], dtype=torch.float64)


@pytest.mark.parametrize(
    ("advantage", "order"),
    [
        (RAW, 4),
        (CENTRED, 3),  # dropping groups without a success drops their control variate too
        *[({**RAW, "success_order": order}, order) for order in (1, 2, 3, 4)],
        ({**RAW, "success_order": 9}, 4),  # a smaller group counts as order = its size
    ],
)
def test_expectations_over_all_outcomes(advantage, order):
    logits = LOGITS.clone().requires_grad_()
    wanted = truncated_gradient(LOGITS.clone().requires_grad_(), order)
    torch.testing.assert_close(expected(advantage, logits, 4), wanted, rtol=1e-9, atol=1e-12)


outcomes = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=6)


@given(rows=outcomes, seed=st.integers(0, 999))
@settings(max_examples=40)
def test_the_raw_gradient_is_the_mean_score_of_the_successes(rows, seed):
    rng = torch.Generator().manual_seed(seed)
    theta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    coefficients = [torch.randn(n, generator=rng, dtype=torch.float64) for _, n in rows]
    found = ascent(RAW, [float(s) for s, _ in rows], [theta * c for c in coefficients], theta)
    scores = [c.sum().item() for (s, _), c in zip(rows, coefficients, strict=True) if s]
    assert found.item() == pytest.approx(sum(scores) / len(scores) if scores else 0.0)


def test_failing_rows_do_not_matter_to_it():
    theta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    success, failure = theta * torch.tensor([1.0, 2.0]).double(), theta * torch.tensor([3.0]).double()
    other = theta * torch.tensor([-5.0, 8.0, 1.0]).double()
    first = ascent(RAW, [1.0, 0.0], [success, failure], theta)
    assert first == ascent(RAW, [1.0, 0.0], [success, other], theta)


def test_order_one_is_reinforce():
    rewards, ids = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1])
    found = build({"advantage": {**RAW, "success_order": 1}, **REST}).advantages(rewards, ids)
    assert found.tolist() == pytest.approx(rewards.tolist())


def test_an_order_counts_successes():
    objective = build({"advantage": {**RAW, "success_order": 2}, **REST})
    with pytest.raises(ConfigError, match=r"0\.5"):
        objective.advantages(torch.tensor([0.5, 1.0]), torch.tensor([0, 0]))
