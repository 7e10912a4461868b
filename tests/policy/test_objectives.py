"""Every objective through the trainer: its gradient, and several steps a batch that its trust region really feels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import yaml
from torch import Tensor

from rlvr.batch import Batch
from rlvr.commands.compose import RECIPES
from rlvr.objectives import build
from rlvr.objectives.objective import Objective
from rlvr.policy.logprobs import topk_logprobs
from rlvr.policy.model import hidden_states
from rlvr.policy.trainer import Policy

from .examples import VOCABULARY, scored_batch
from .training import SHAPE, MakePolicy, gradients_of_update, named_weights, prepared

FILES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(RECIPES.glob("objective/*.yaml"))}
PRESETS = {name: content.get("objective", content) for name, content in FILES.items()}
HOLDS_WEIGHTS = {"cispo", "scalerl", *(name for name in PRESETS if name.startswith("dppo_"))}
STEP = 2e-5  # normalisation and attention are float32 within: a smaller one would drown in their rounding


def preset(name: str, **options: object) -> Objective:
    """Past its critic's warm-up."""
    objective = build({**PRESETS[name], **options}, max_new_tokens=20)
    objective.load_state_dict({**objective.state_dict(), "num_batches": objective.spec.critic.warmup_steps})
    return objective


def rows_for(policy: Policy, objective: Objective) -> Batch:
    """A prepared batch that the policy's engine drew, with step rewards and likeliest tokens."""
    batch = scored_batch(SHAPE)
    rng = torch.Generator().manual_seed(0)
    batch.step_ends = batch.loss_mask & (torch.arange(batch.num_tokens) % 3 == 0)
    batch.step_rewards = torch.randn(batch.num_tokens, generator=rng, dtype=torch.float64)
    logprobs = policy.logprobs(batch)
    batch.rollout_logprobs = logprobs + 0.01 * torch.randn(logprobs.shape, generator=rng)
    if objective.needs_top_k:
        batch.topk_ids = torch.rand(batch.num_tokens, VOCABULARY, generator=rng).topk(objective.needs_top_k).indices
        batch.topk_logprobs = likeliest_logprobs(policy, batch)
    return replace(prepared(policy, objective, batch), old_logprobs=logprobs)


@torch.no_grad()
def likeliest_logprobs(policy: Policy, batch: Batch) -> Tensor:
    head = policy.model.head(0.8, 1000)
    return topk_logprobs(policy.model.hidden_states(batch), head, batch.topk_ids, batch.loss_mask)


def move(policy: Policy, direction: dict[str, Tensor], by: float) -> None:
    with torch.no_grad():
        for name, weight in named_weights(policy).items():
            weight += by * direction[name]


def random_direction(policy: Policy, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    weights = named_weights(policy)
    return {name: torch.randn(w.shape, generator=rng, dtype=torch.float64) for name, w in weights.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_gradients_agree_with_finite_differences(make: MakePolicy, name: str) -> None:
    """Of policy and critic together, a small way off the old policy, along a random direction.

    Weights that are constants by definition (CISPO, DPPO) are held: there the loss is the sum of the log-probs times
    its slopes by them, which the golden formulas of `tests/objectives` stand for.
    """
    objective, same = (preset(name, minibatches=1, epochs=1) for _ in range(2))
    critic = "own" if objective.needs_critic else None
    policy = make(dtype="float64", critic=critic, tokens_per_microbatch=60)
    if policy._critic:
        policy._critic.head.double()
    batch = rows_for(policy, objective)
    move(policy, random_direction(policy, 1), 0.003)
    weights = same.weights(batch)

    def logprobs() -> tuple[Tensor, Tensor]:
        return policy.model.logprobs(batch, 0.8, 1000)

    def policy_loss(now: Tensor, entropy: Tensor) -> Tensor:
        topk = likeliest_logprobs(policy, batch) if same.needs_top_k else None
        return same.loss(now, batch, weights, entropy, topk_logprobs=topk)[0]

    leaf = logprobs()[0].detach().requires_grad_()
    (slopes,) = torch.autograd.grad(policy_loss(leaf, leaf.detach()), leaf)

    @torch.no_grad()
    def loss() -> float:
        now, entropy = logprobs()
        total = (slopes * now).sum() if name in HOLDS_WEIGHTS else policy_loss(now, entropy)
        if policy._critic:
            total = total + policy._critic.loss(hidden_states(policy._critic._backbone, batch), batch, same, weights)[0]
        return total.item()

    direction, there = random_direction(policy, 3), {}
    for way in (1, -1):
        move(policy, direction, way * STEP)
        there[way] = loss()
        move(policy, direction, -way * STEP)
    found = gradients_of_update(policy, objective, batch)
    along = sum((found[key] * direction[key]).sum().item() for key in direction)
    assert abs(along) > 0.1
    assert along == pytest.approx((there[1] - there[-1]) / (2 * STEP), rel=1e-3, abs=2e-3)


BOUNDED = [name for name, spec in PRESETS.items() if spec["trust"]["kind"] not in {"none", "soft_gate", "kl_penalty"}]


@pytest.mark.parametrize("name", BOUNDED)
def test_later_steps_on_a_batch_leave_the_trust_region(make: MakePolicy, name: str) -> None:
    objective = preset(name, minibatches=2, epochs=3)
    policy = make(critic="own" if objective.needs_critic else None, learning_rate=3e-2)
    metrics = policy.update(rows_for(policy, objective), objective)
    assert metrics["policy/ratio_max"] > 1.5
    assert metrics["policy/clip_fraction"] > 0
    assert metrics["policy/kl_anchor"] > 1e-3


def test_the_clipped_fraction_is_that_of_the_policy_between_the_steps(make: MakePolicy) -> None:
    one, two = (preset("grpo", kl={}, epochs=epochs) for epochs in (1, 2))
    policy = make(learning_rate=1e-2)
    batch = rows_for(policy, one)
    first = policy.update(batch, one)
    assert first["policy/clip_fraction"] == 0
    ratio = (policy.logprobs(batch) - batch.old_logprobs).exp()
    outside = ((batch.advantages > 0) & (ratio > 1.2)) | ((batch.advantages < 0) & (ratio < 0.8))
    second = make(learning_rate=1e-2).update(batch, two)
    assert outside.any()
    assert second["policy/clip_fraction"] == pytest.approx(outside[batch.loss_mask].float().mean().item() / 2, abs=1e-6)
    assert second["policy/ratio_max"] == pytest.approx(ratio.max().item(), rel=1e-4)


def test_the_clip_holds_the_ratios_back(make: MakePolicy) -> None:
    """Right rows are rewarded and wrong ones nothing: only the clip keeps their probability from rising further."""
    ends = []
    for kind in ("clip", "none"):
        advantage = {"baseline": "none", "scale": "none"}
        objective = build({"advantage": advantage, "trust": {"kind": kind}, "aggregate": "token_mean", "epochs": 20})
        policy = make(learning_rate=2e-4)
        batch = rows_for(policy, objective)
        policy.update(batch, objective)
        rewarded = (policy.logprobs(batch) - batch.old_logprobs)[batch.advantages > 0].exp()
        ends.append(rewarded.max().item())
    assert 1.2 < ends[0] < 4 < 40 < ends[1]
