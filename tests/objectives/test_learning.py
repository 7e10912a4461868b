"""Through small models: finite differences, and whether a step goes where it should."""

from itertools import pairwise

import pytest
import torch

from rlvr.objectives import build
from rlvr.objectives.experience import Experience

from . import presets
from .batches import make
from .golden_presets import PRESETS

every_preset = pytest.mark.parametrize("name", list(PRESETS))
STOP_GRADIENT = {"cispo", "scalerl", "dppo_tv", "dppo_kl", "dppo_topk_tv", "dppo_topk_kl"}


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in STOP_GRADIENT])
def test_autograd_agrees_with_finite_differences_on_a_tiny_model(name):
    """Through an embedding and a softmax; where the weight is a constant by definition the golden formulas stand."""
    experience, _ = make([[3, 2], [1, 4, 2]], 11)
    objective = presets.preset(name)
    size = experience.row_ids.numel()
    rng = torch.Generator().manual_seed(0)
    states = torch.randn(size, 3, generator=rng, dtype=torch.float64)
    tokens = torch.randint(4, (size,), generator=rng)
    head = torch.randn(3, 4, generator=rng, dtype=torch.float64)

    def logprobs(weights):
        return (states @ weights).log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    noise = 0.2 * torch.randn(size, generator=rng, dtype=torch.float64)
    experience.old_logprobs, experience.ref_logprobs = logprobs(head) + noise, logprobs(head) - noise
    prepared, _ = objective.prepare(experience)
    weights = objective.weights(prepared)
    assert torch.autograd.gradcheck(
        lambda head: objective.loss(logprobs(head), prepared, weights)[0], head.clone().requires_grad_()
    )


def bandit(objective, logits, arms):
    """One-token rows that drew `arms` [N] from softmax(logits) [A] in groups of 8; arm 0 pays 1, the others 0."""
    rewards = (arms == 0).double()
    old = logits.detach().log_softmax(0)[arms]
    experience = Experience(
        rewards=rewards,
        correct=rewards == 1,
        truncated=torch.zeros_like(arms, dtype=torch.bool),
        group_ids=torch.arange(len(arms)) // 8,
        row_ids=torch.arange(len(arms)),
        loss_mask=torch.ones_like(arms, dtype=torch.bool),
        rollout_logprobs=old,
        old_logprobs=old,
        ref_logprobs=old,
        values=torch.zeros_like(old),
        step_rewards=rewards,
        step_ends=torch.ones_like(arms, dtype=torch.bool),
        topk_logprobs=logits.detach().log_softmax(0)[:3].expand(len(arms), 3),
    )
    return objective.prepare(experience)[0]


@every_preset
def test_one_step_on_a_bandit_raises_the_right_arm(name):
    objective = presets.preset(name)
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    arms = torch.arange(32) % 4
    batch = bandit(objective, logits, arms)
    objective.loss(logits.log_softmax(0)[arms], batch, topk_logprobs=batch.topk_logprobs)[0].backward()
    after = (logits - 0.1 * logits.grad).softmax(0)
    assert after[0] > 0.25
    assert (after[1:] < 0.25).all()


def test_many_epochs_on_one_batch_stay_within_the_clip():
    """A > 0 for the right arm and 0 for the others: nothing but the clip holds its ratio back."""
    objective = build({"advantage": {"baseline": "none", "scale": "none"}, "epochs": 200})
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    arms = torch.arange(32) % 4
    batch = bandit(objective, logits, arms)
    ratios = [1.0]
    for _ in range(200):
        logits.grad = None
        loss, metrics = objective.loss(logits.log_softmax(0)[arms], batch)
        loss.backward()
        with torch.no_grad():
            logits -= 0.5 * logits.grad
        ratios.append(4 * logits.softmax(0)[0].item())
    largest_step = max(after - before for before, after in pairwise(ratios))
    assert 1.2 < ratios[-1] <= 1.2 + largest_step
    assert metrics["policy/clip_fraction"].item() == pytest.approx(0.25)
