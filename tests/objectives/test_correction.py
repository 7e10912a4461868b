import math

import pytest
import torch
from hypothesis import given

from rlvr.objectives import build
from rlvr.objectives.correction import KINDS, LEVELS, correction_weights
from rlvr.objectives.segments import Segments
from rlvr.objectives.spec import CorrectionSpec

from .batches import layouts, make, seeds

ROWS = Segments(torch.tensor([0, 0, 0, 1]), torch.tensor([True, True, False, True]), 2)
MISMATCH = torch.log(torch.tensor([4.0, 0.5, math.nan, 1.5], dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "level", "wanted"),
    [
        ("none", "token", [1.0, 1.0, 1.0]),
        ("truncate", "token", [3.0, 0.5, 1.5]),
        ("mask", "token", [0.0, 0.0, 1.5]),
        ("reject", "token", [0.0, 0.0, 1.0]),
        ("reject", "sequence_mean", [1.0, 1.0, 1.0]),
        ("truncate", "sequence", [2.0, 2.0, 1.5]),
        ("mask", "sequence", [2.0, 2.0, 1.5]),
        ("truncate", "sequence_mean", [math.sqrt(2), math.sqrt(2), 1.5]),
    ],
)
def test_weights(kind, level, wanted):
    low = 0.8 if kind in {"mask", "reject"} else 0.0
    found = correction_weights(MISMATCH, ROWS, CorrectionSpec(kind=kind, level=level, low=low, high=3.0))
    torch.testing.assert_close(found[ROWS.mask], torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("level", list(LEVELS))
def test_no_mismatch_no_correction_and_no_gradient_through_it(kind, level):
    old = torch.tensor([-1.0, -2.0, -0.5, -3.0], requires_grad=True)
    found = correction_weights(old - old.detach(), ROWS, CorrectionSpec(kind=kind, level=level))
    assert found[ROWS.mask].tolist() == [1.0] * 3
    assert not found.requires_grad


@pytest.mark.parametrize("level", list(LEVELS))
@given(layout=layouts, seed=seeds)
def test_the_loss_has_no_gradient_by_old_or_rollout_through_the_weights(level, layout, seed):
    spec = {"correction": {"kind": "truncate", "level": level}, "ratio": {"level": "none"}, "trust": {"kind": "none"}}
    objective = build(spec)
    experience, policy = make(layout, seed)
    experience, _ = objective.prepare(experience)
    experience.old_logprobs.requires_grad_()
    experience.rollout_logprobs.requires_grad_()
    policy.requires_grad_()
    objective.loss(policy, experience)[0].backward()
    for tensor in (experience.old_logprobs, experience.rollout_logprobs):
        assert tensor.grad is None or not tensor.grad.any()


def test_untruncated_weights_are_unbiased():
    """Sum over all outcomes of rollout-probability x weight x f is the old policy's expectation of f."""
    rng = torch.Generator().manual_seed(0)
    old, rollout = (torch.randn(6, generator=rng, dtype=torch.float64).log_softmax(0) for _ in range(2))
    f = torch.randn(6, generator=rng, dtype=torch.float64)
    rows = Segments(torch.arange(6), torch.ones(6, dtype=torch.bool), 6)
    weights = correction_weights(old - rollout, rows, CorrectionSpec(kind="truncate", high=math.inf))
    torch.testing.assert_close((rollout.exp() * weights * f).sum(), (old.exp() * f).sum())


def test_a_masked_out_token_stays_in_the_normaliser_and_the_kl_term():
    spec = {
        "correction": {"kind": "mask", "low": 0.5, "high": 2.0},
        "kl": {"placement": "loss", "coef": 1.0},
        "aggregate": "token_mean",
    }
    objective = build(spec)
    experience, policy = make([[2, 2]], 1)
    experience.rewards = torch.tensor([0.0, 1.0], dtype=torch.float64)
    experience, _ = objective.prepare(experience)
    first = int(torch.nonzero(experience.loss_mask)[0])
    experience.rollout_logprobs[first] = experience.old_logprobs[first] - 5
    policy.requires_grad_()
    objective.loss(policy, experience)[0].backward()
    slope = 1 - math.exp(experience.ref_logprobs[first].item() - policy[first].item())
    assert policy.grad[first].item() == pytest.approx(slope / 4)
