"""Through small models: finite differences, and whether a step goes where it should."""

from itertools import pairwise

import pytest
import torch

from rlvr.objectives import build
from rlvr.objectives.experience import Experience

from . import golden, presets
from .batches import make, topk_now
from .golden_presets import PRESETS

every_preset = pytest.mark.parametrize("name", list(PRESETS))
STOP_GRADIENT = {"cispo", "scalerl", "dppo_tv", "dppo_kl", "dppo_topk_tv", "dppo_topk_kl"}


class TinyModel:
    """Log-probs and values of a batch's tokens by one matrix each: `states @ weights`."""

    def __init__(self, experience):
        size = experience.row_ids.numel()
        rng = torch.Generator().manual_seed(0)
        self.states = torch.randn(size, 3, generator=rng, dtype=torch.float64)
        self.tokens = torch.randint(4, (size,), generator=rng)
        self.head = torch.randn(3, 4, generator=rng, dtype=torch.float64)
        self.value_head = torch.randn(3, generator=rng, dtype=torch.float64)
        self.noise = 0.2 * torch.randn(size, generator=rng, dtype=torch.float64)

    def logprobs(self, head):
        return (self.states @ head).log_softmax(-1).gather(1, self.tokens[:, None])[:, 0]


def tiny_case(name):
    """A preset, a model, and its prepared batch whose other log-probs are near the model's own."""
    experience, _ = make([[3, 2], [1, 4, 2]], 11)
    objective, model = presets.preset(name), TinyModel(experience)
    near = model.logprobs(model.head)
    experience.old_logprobs, experience.ref_logprobs = near + model.noise, near - model.noise
    experience.rollout_logprobs = near + 2 * model.noise
    prepared, _ = objective.prepare(experience)
    return objective, model, prepared, objective.weights(prepared)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in STOP_GRADIENT])
def test_autograd_agrees_with_finite_differences_on_a_tiny_model(name):
    """Through an embedding and a softmax."""
    objective, model, prepared, weights = tiny_case(name)
    assert torch.autograd.gradcheck(
        lambda head: objective.loss(model.logprobs(head), prepared, weights)[0], model.head.clone().requires_grad_()
    )


@pytest.mark.parametrize("name", sorted(STOP_GRADIENT))
def test_a_constant_weight_agrees_with_finite_differences_of_the_weighted_log_probs(name):
    """With a weight that is constant by definition the loss itself has other differences: those of the golden formula's
    token gradients times the log-probs are what autograd has to meet."""
    objective, model, prepared, weights = tiny_case(name)
    topk = topk_now(prepared)
    head = model.head.clone().requires_grad_()
    logprobs = model.logprobs(head)
    objective.loss(logprobs, prepared, weights, topk_logprobs=topk)[0].backward()
    slopes = PRESETS[name](golden.rows_of(prepared, logprobs.detach(), topk))[1]
    by_token = torch.zeros_like(model.noise)
    by_token[prepared.loss_mask] = torch.tensor([g for row in slopes for g in row], dtype=torch.float64)
    for place in [(i, j) for i in range(3) for j in range(4)]:
        step = torch.zeros_like(model.head)
        step[place] = 1e-6
        ends = [(by_token * model.logprobs(model.head + sign * step)).sum().item() for sign in (1, -1)]
        assert head.grad[place].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in PRESETS if presets.preset(name).needs_critic])
def test_the_value_loss_agrees_with_finite_differences_on_a_tiny_model(name):
    objective, model, prepared, weights = tiny_case(name)
    assert torch.autograd.gradcheck(
        lambda head: objective.value_loss(model.states @ head, prepared, weights)[0],
        model.value_head.clone().requires_grad_(),
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
