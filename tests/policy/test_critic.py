import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from rlvr.batch import Batch
from rlvr.objectives import build
from rlvr.policy.critic import explained_variance
from rlvr.policy.trainer import Policy

from .examples import scored_batch
from .training import SHAPE, MakePolicy, assert_same, gradients, named_weights, prepared, train, weights_of

PPO = {
    "advantage": {"baseline": "critic", "scale": "none", "gamma": 0.97},
    "critic": {"lam_policy": 0.9, "lam_critic": 0.8, "coef": 0.5},
    "aggregate": "token_mean",
}
both = pytest.mark.parametrize("backbone", ["own", "shared"])


def with_values(policy: Policy) -> Policy:
    """Its values no longer all 0, its two backbones, where there are two, no longer alike."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy._critic._parameters:
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return policy


def plain_values(policy: Policy, batch: Batch) -> list[torch.Tensor]:
    """The value after each token of each row, [t] float64: transformers' own forward, a row at a time."""
    critic = policy._critic
    critic._backbone.set_attn_implementation("sdpa")
    backbone, head = critic._backbone.double(), critic.head.double()
    starts = batch.row_starts.tolist()
    return [
        head(backbone(input_ids=batch.token_ids[None, a:b]).last_hidden_state[0])[:, 0] for a, b in pairwise(starts)
    ]


@both
@pytest.mark.parametrize("bootstrap", [False, True])
def test_values_advantages_and_targets_by_their_definitions(make: MakePolicy, backbone: str, bootstrap: bool) -> None:
    spec = {**PPO, "critic": {**PPO["critic"], "bootstrap_truncated": bootstrap}}
    policy, batch = with_values(make(critic=backbone, tokens_per_microbatch=60)), scored_batch(SHAPE)
    batch = prepared(policy, build(spec), batch)
    assert batch.truncated.any()
    for row, after in enumerate(plain_values(policy, batch)):
        inside = batch.row_ids == row
        sampled = batch.loss_mask[inside]
        first = int(sampled.nonzero()[0])
        states = after[first - 1 :].tolist()  # V of the states before each sampled token, and after the last
        ours = (batch.values[inside][sampled].tolist(), batch.final_values[row].item())
        assert [*ours[0], ours[1]] == pytest.approx(states, abs=1e-5)
        states[-1] = states[-1] if bootstrap and batch.truncated[row] else 0.0
        for lam, targets, found in ((0.9, False, batch.advantages), (0.8, True, batch.returns)):
            expected, advantage, reward = [], 0.0, batch.rewards[row].item()
            for value, following in reversed(list(pairwise(states))):
                advantage = reward + 0.97 * following - value + 0.97 * lam * advantage
                expected.append(advantage + value * targets)
                reward = 0.0
            assert found[inside][sampled].tolist() == pytest.approx(expected[::-1], abs=1e-5)


def test_values_start_at_0(make: MakePolicy) -> None:
    batch = scored_batch(SHAPE)
    make(critic="own").annotate(batch, build(PPO))
    assert batch.values.eq(0).all()
    assert batch.final_values.eq(0).all()


@both
@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean"])
def test_gradients_are_the_policys_plus_those_of_the_plain_value_loss(
    make: MakePolicy, backbone: str, aggregate: str
) -> None:
    """0.5 coef mean (V - target)^2, in float64 by plain transformers, however the policy's terms are averaged."""
    batch, seen = scored_batch(SHAPE), []
    for coef in (0.5, 0.0):
        spec = {**PPO, "aggregate": aggregate, "critic": {**PPO["critic"], "coef": coef}}
        seen.append(gradients(with_values(make(critic=backbone)), build(spec), batch))
    policy = with_values(make(critic=backbone))
    ready = prepared(policy, build(PPO), batch)
    values = torch.cat([after.roll(1) for after in plain_values(policy, ready)])
    loss = 0.5 * 0.5 * (values - ready.returns)[ready.loss_mask].square().mean()
    loss.backward()
    for name, weight in named_weights(policy).items():
        of_value_loss = seen[0][name] - seen[1][name]
        if backbone == "own" and not name.startswith("critic"):
            assert of_value_loss.eq(0).all()
        else:
            assert weight.grad.abs().max() > 1e-5
            torch.testing.assert_close(of_value_loss.double(), weight.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert seen[1]["critic.0"].eq(0).all()


@both
def test_gradients_do_not_depend_on_the_split_into_microbatches(make: MakePolicy, backbone: str) -> None:
    whole, *others = (
        gradients(with_values(make(critic=backbone, tokens_per_microbatch=tokens)), build(PPO), scored_batch(SHAPE))
        for tokens in (10_000, 60, 1)
    )
    assert float(whole["critic.0"].abs().max()) > 1e-2
    for other in others:
        assert_same(other, whole, atol=1e-6)


@both
def test_during_the_warm_up_the_policy_stays_and_the_critic_learns(make: MakePolicy, backbone: str) -> None:
    spec = {**PPO, "critic": {**PPO["critic"], "warmup_steps": 2}, "minibatches": 2}
    policy, objective = make(critic=backbone, warmup_steps=2), build(spec)
    before, steps = weights_of(policy), []
    for _ in range(3):
        steps.append(train(policy, objective, scored_batch(SHAPE)))
        if len(steps) < 3:
            now = weights_of(policy)
            assert policy.version == 0
            assert all(now[name].equal(tensor) != name.startswith("critic") for name, tensor in before.items())
    critic_metrics = {f"critic/{name}" for name in ("loss", "clip_fraction", "grad_norm", "explained_variance")}
    for metrics in steps:
        assert critic_metrics <= set(metrics)
    assert steps[0].keys() == critic_metrics | {"policy/skipped", "tokens/trained"}
    assert steps[0]["tokens/trained"] == 0
    assert steps[2]["tokens/trained"] == sum(map(sum, SHAPE))
    # The policy's own warm-up begins with its first step.
    assert steps[2]["policy/lr"] == pytest.approx((0.5e-3 + 1e-3) / 2)
    assert policy.version == 1
    assert not any(tensor.equal(before[name]) for name, tensor in weights_of(policy).items())


@both
def test_values_learn_what_the_rows_pay(make: MakePolicy, backbone: str) -> None:
    policy = make(critic=backbone)
    objective = build({**PPO, "critic": {"warmup_steps": 100, "value_clip": None}})
    history = [train(policy, objective, scored_batch(SHAPE)) for _ in range(12)]
    assert history[0]["critic/explained_variance"] == 0
    assert history[-1]["critic/explained_variance"] > 0.3
    assert history[-1]["critic/loss"] < 0.5 * history[0]["critic/loss"]


@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_critic_goes_on_bit_for_bit(make: MakePolicy, tmp_path: Path, backbone: str, dtype: str) -> None:
    spec = {**PPO, "critic": {"warmup_steps": 1}, "minibatches": 2}
    first, objective = make(critic=backbone, dtype=dtype), build(spec)
    train(first, objective, scored_batch(SHAPE, 0))
    folder = tmp_path / "saved"
    first.save(folder)
    second, resumed = make(critic=backbone, dtype=dtype), build(spec)
    second.load(folder)
    resumed.load_state_dict(objective.state_dict())
    for seed in (1, 2):
        one = train(first, objective, scored_batch(SHAPE, seed))
        other = train(second, resumed, scored_batch(SHAPE, seed))
        assert one == other
    assert one["policy/grad_norm"] > 0
    assert_same(weights_of(second), weights_of(first))


def test_bfloat16_keeps_head_and_values_in_float32(make: MakePolicy) -> None:
    policy, batch = make(critic="own", dtype="bfloat16"), scored_batch(SHAPE)
    train(policy, build(PPO), batch)
    policy.annotate(batch, build(PPO))
    assert policy._critic.head.weight.dtype == batch.values.dtype == torch.float32
    assert policy._critic._backbone.dtype == torch.bfloat16
    assert not batch.values.equal(batch.values.bfloat16().float())


@both
def test_a_step_that_is_not_finite_leaves_the_critic_alone(
    make: MakePolicy, backbone: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy, objective = make(critic=backbone), build(PPO)
    batch = prepared(policy, objective, scored_batch(SHAPE))
    batch.returns[batch.loss_mask.nonzero()[0]] = math.nan
    before = weights_of(policy)
    metrics = policy.update(batch, objective)
    assert "a gradient of the critic is not finite" in caplog.text
    assert "critic/grad_norm" not in metrics
    assert all(tensor.equal(before[name]) for name, tensor in weights_of(policy).items() if "critic" in name)
    # A shared backbone is the policy's too: its step is skipped, and counted.
    assert metrics["policy/skipped"] == (backbone == "shared")


def test_explained_variance_worked_by_hand() -> None:
    batch = replace(scored_batch(((2, 1),)), values=torch.zeros(0))
    size, mask = batch.num_tokens, batch.loss_mask

    def explained(returns: list[float], values: list[float]) -> float:
        filled = [torch.full((size,), math.nan).masked_scatter(mask, torch.tensor(x)) for x in (returns, values)]
        return explained_variance(replace(batch, returns=filled[0], values=filled[1]))

    assert explained([0.0, 1.0, 2.0], [5.0, 6.0, 7.0]) == 1.0
    assert explained([0.0, 1.0, 2.0], [3.0, 3.0, 3.0]) == 0.0
    assert explained([0.0, 1.0, 2.0], [0.0, 0.5, 1.0]) == pytest.approx(0.75)
    assert explained([0.0, 1.0, 2.0], [2.0, 1.0, 0.0]) == pytest.approx(-3.0)
    assert math.isnan(explained([1.0, 1.0, 1.0], [0.0, 1.0, 2.0]))


def test_an_objective_without_a_critic_trains_none(make: MakePolicy) -> None:
    policy = with_values(make(critic="own"))
    before = weights_of(policy)
    metrics = train(policy, build({}), scored_batch(SHAPE))
    assert not [name for name in metrics if name.startswith("critic")]
    assert all(tensor.equal(before[name]) for name, tensor in weights_of(policy).items() if "critic" in name)
