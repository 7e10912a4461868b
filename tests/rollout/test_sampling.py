"""Inverse-transform sampling against an independent float64 computation."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.rollout.engine import Sampling
from rlvr.rollout.sampling import BLOCK, draw, sample, uniforms

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=40)
UNIFORM = st.floats(0, 1, exclude_max=True)


def processed(logits: list[float], temperature: float, top_p: float) -> np.ndarray:
    """Probabilities after temperature and nucleus, in numpy."""
    weights = np.exp((np.array(logits) - max(logits)) / temperature)
    probabilities = weights / weights.sum()
    kept, mass = np.zeros(len(logits), dtype=bool), 0.0
    for index in np.argsort(-probabilities, kind="stable"):
        kept[index] = True
        mass += probabilities[index]
        if mass >= top_p and top_p < 1:  # rounded to 1 before the least likely tokens are in
            break
    return np.where(kept, probabilities, 0) / probabilities[kept].sum()


@given(LOGITS, UNIFORM, st.floats(0.3, 2))
def test_token_is_where_the_cumulative_probability_passes_the_uniform(
    logits: list[float], uniform: float, temperature: float
) -> None:
    token, logprobs = sample(
        torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), Sampling(1, temperature)
    )
    probabilities = processed(logits, temperature, 1.0)
    cumulative = np.concatenate([[0.0], probabilities.cumsum()])
    chosen = int(token[0])
    assert cumulative[chosen] - 1e-5 <= uniform <= cumulative[chosen + 1] + 1e-5
    np.testing.assert_allclose(float(logprobs[0, chosen]), np.log(probabilities[chosen]), atol=1e-4)


@given(st.lists(st.integers(-6, 6), min_size=2, max_size=20, unique=True), UNIFORM, st.floats(0.05, 0.99))
def test_nucleus_is_the_smallest_set_that_holds_top_p(logits: list[int], uniform: float, top_p: float) -> None:
    values = [float(logit) for logit in logits]
    token, logprobs = sample(
        torch.tensor([values]), torch.tensor([uniform], dtype=torch.float64), Sampling(1, 1.0, top_p)
    )
    # A nucleus whose edge is within float32 rounding of top_p may go either way.
    candidates = [processed(values, 1.0, min(1.0, max(1e-9, top_p + shift))) for shift in (0, -1e-6, 1e-6)]
    chosen = int(token[0])
    assert any(p[chosen] > 0 and abs(float(logprobs[0, chosen]) - np.log(p[chosen])) < 1e-4 for p in candidates)


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    drawn = [
        int(sample(logits, torch.tensor([u], dtype=torch.float64), Sampling(1))[0])
        for u in (0.0, 0.49, 0.5, 1 - 2**-53)
    ]
    assert drawn == [1, 1, 3, 3]


@given(st.integers(2, 4 * BLOCK), st.integers(0, 2**32), UNIFORM)
def test_large_vocabularies_are_drawn_from_as_small_ones(size: int, seed: int, uniform: float) -> None:
    rng = np.random.default_rng(seed)
    logits = np.where(rng.random(size) < 0.7, -np.inf, rng.normal(scale=4, size=size))
    logits[rng.integers(size)] = 0.0
    probabilities = np.exp(logits) / np.exp(logits).sum()
    for number in (uniform, 0.0, 1 - 2**-53):
        logprobs = torch.from_numpy(logits).float().log_softmax(-1)
        chosen = int(draw(logprobs[None], torch.tensor([number], dtype=torch.float64)))
        assert probabilities[chosen] > 0
        passed = probabilities[:chosen].sum()
        assert passed - 1e-6 <= number <= passed + probabilities[chosen] + 1e-6


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    draws = 20_000
    tokens, _ = sample(logits.expand(draws, 4), uniforms([5], draws)[0], Sampling(1))
    observed = tokens.bincount(minlength=4) / draws
    assert (observed - logits.softmax(-1)).abs().max() < 0.015  # four standard deviations


def test_greedy_takes_the_likeliest_at_temperature_one() -> None:
    logits = torch.tensor([[0.5, 2.0, 1.0]])
    token, logprobs = sample(logits, torch.tensor([0.99], dtype=torch.float64), Sampling(1, temperature=0.0))
    assert int(token) == 1
    torch.testing.assert_close(logprobs[0], logits[0].log_softmax(-1))


def test_a_rows_numbers_depend_on_its_seed_alone() -> None:
    together = uniforms([3, 2**63 - 1, 5], 10)
    assert torch.equal(together[1], uniforms([2**63 - 1], 10)[0])
    assert torch.equal(together[:, :4], uniforms([3, 2**63 - 1, 5], 4))
    assert len(together.unique()) == 30
