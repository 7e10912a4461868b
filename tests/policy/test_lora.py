"""Adapters: what is trained, what stays, what the reference is, and that a run goes on bit for bit."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from rlvr.config import LoraConfig, ModelConfig
from rlvr.errors import ConfigError
from rlvr.lora import adapted_layers, add_adapters, without_adapters
from rlvr.objectives import build
from rlvr.policy.logprobs import Head, token_logprobs
from rlvr.policy.reference import Reference

from .examples import scored_batch, tiny_llama
from .training import SHAPE, MakePolicy, assert_same, gradients, named_weights, train, weights_of

LORA = LoraConfig(rank=4, alpha=8)
GRPO = {"aggregate": "token_mean", "minibatches": 2}
WITH_KL = {**GRPO, "kl": {"placement": "loss", "estimator": "exact", "coef": 0.5}}
LAYERS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def is_adapter(name: str) -> bool:
    return ".lora_" in name


def test_a_new_adapter_changes_no_bit(make: MakePolicy) -> None:
    batch = scored_batch(SHAPE)
    for dtype in ("float32", "bfloat16"):
        assert make(dtype=dtype, lora=LORA).logprobs(batch).equal(make(dtype=dtype).logprobs(batch))


def test_the_seed_draws_the_adapters_and_leaves_the_callers_random_state() -> None:
    first, second, third = (tiny_llama() for _ in range(3))
    before = torch.get_rng_state()
    for model, seed in ((first, 0), (second, 0), (third, 1)):
        add_adapters(model, LORA, seed)
    assert torch.get_rng_state().equal(before)
    down = "model.layers.0.mlp.down_proj.lora_A.default.weight"
    weights = [dict(model.named_parameters())[down] for model in (first, second, third)]
    assert weights[0].shape == (4, 64)
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_adapters_have_gradients_optimizer_state_and_new_values(make: MakePolicy, dtype: str) -> None:
    policy = make(dtype=dtype, lora=LORA)
    before = weights_of(policy)
    seen = gradients(policy, build(WITH_KL), scored_batch(SHAPE))
    adapters = {name for name in before if is_adapter(name)}
    assert len(adapters) == 2 * 2 * len(LAYERS)
    assert seen.keys() == adapters
    assert all(gradient.dtype == torch.float32 and gradient.any() for gradient in seen.values())
    for name, weight in named_weights(policy).items():
        assert weight.dtype == getattr(torch, dtype), name
        assert weight.equal(before[name]) != is_adapter(name), name
        assert weight.grad is None, name
    states = policy._optimizer.state_dict()["slots"]
    assert len(states) == len(adapters)
    assert policy.num_trained_parameters == sum(before[name].numel() for name in adapters)
    assert dict(policy.weights()).keys() == adapters


def test_gradients_are_those_of_the_merged_weights(make: MakePolicy) -> None:
    """W + s B A has gradient G by W, hence s G A' by B and s B' G by A: G from the policy without adapters, merged."""
    policy, batch = make(lora=LORA), scored_batch(SHAPE)
    train(policy, build(GRPO), batch)
    plain = make()
    with torch.no_grad():
        own = named_weights(policy)
        for name, weight in named_weights(plain).items():
            layer = name.removesuffix(".weight")
            if f"{layer}.base_layer.weight" in own:
                weight += 2 * own[f"{layer}.lora_B.default.weight"] @ own[f"{layer}.lora_A.default.weight"]
    torch.testing.assert_close(policy.logprobs(batch), plain.logprobs(batch), rtol=0, atol=1e-5)
    spec = {**GRPO, "minibatches": 1}
    a, b = ({n: w.clone() for n, w in own.items() if f".lora_{x}." in n} for x in "AB")
    ours, merged = gradients(policy, build(spec), batch), gradients(plain, build(spec), batch)
    for name, matrix in a.items():
        other = name.replace("lora_A", "lora_B")
        by_layer = merged[name.replace("lora_A.default.", "")]
        torch.testing.assert_close(ours[name], 2 * b[other].T @ by_layer, rtol=1e-3, atol=1e-6, msg=name)
        torch.testing.assert_close(ours[other], 2 * by_layer @ matrix.T, rtol=1e-3, atol=1e-6, msg=other)


def test_a_frozen_heads_gradient_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(9, 8, requires_grad=True), torch.randn(31, 8)
    wanted, ids = torch.arange(9) > 0, torch.arange(9)

    def by_hidden(head: Head) -> torch.Tensor:
        return torch.autograd.grad(token_logprobs(hidden, head, ids, wanted)[0].sum(), hidden)[0]

    expected = by_hidden(Head(weight.clone().requires_grad_()))

    def refuse(*_: object, **__: object) -> torch.Tensor:
        raise AssertionError("the head's gradient was computed")

    monkeypatch.setattr(torch.Tensor, "addmm_", refuse)
    assert by_hidden(Head(weight)).equal(expected)
    with pytest.raises(AssertionError, match="was computed"):
        by_hidden(Head(weight.clone().requires_grad_()))


def test_the_reference_is_the_policy_without_adapters(make: MakePolicy) -> None:
    policy, objective, batch = make(lora=LORA), build(WITH_KL), scored_batch(SHAPE)
    start = policy.logprobs(batch)
    for seed in range(2):
        train(policy, objective, scored_batch(SHAPE, seed))
    policy.annotate(batch, objective)
    assert policy._reference._model is None  # no second copy
    assert batch.ref_logprobs is not None
    assert batch.ref_logprobs.equal(start)
    assert not policy.logprobs(batch).equal(start)


def test_gradients_with_a_reference_are_those_with_a_second_copy(make: MakePolicy, tmp_path: Path) -> None:
    copy = Reference(ModelConfig(path=str(tmp_path / "model")))
    batch = scored_batch(SHAPE)
    for checkpointing in (False, True):
        shared, apart = (
            make(lora=LORA, reference=reference, gradient_checkpointing=checkpointing) for reference in (None, copy)
        )
        for policy in (shared, apart):
            train(policy, build(WITH_KL), batch)
        assert_same(gradients(shared, build(WITH_KL), batch), gradients(apart, build(WITH_KL), batch))


@pytest.mark.parametrize("backbone", ["own", "shared"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_policy_goes_on_bit_for_bit(make: MakePolicy, tmp_path: Path, dtype: str, backbone: str) -> None:
    critic = {"advantage": {"baseline": "critic", "scale": "none"}}
    objective = build({**WITH_KL, **critic})
    first, second = (make(dtype=dtype, critic=backbone, lora=LORA) for _ in range(2))
    for seed in range(2):
        train(first, objective, scored_batch(SHAPE, seed))
    first.save(tmp_path / "saved")
    second.load(tmp_path / "saved")
    assert_same(weights_of(second), weights_of(first))
    metrics = [train(policy, objective, scored_batch(SHAPE, 2)) for policy in (first, second)]
    assert metrics[0] == metrics[1]
    assert_same(weights_of(second), weights_of(first))


def test_a_checkpoint_holds_adapters_alone(make: MakePolicy, tmp_path: Path) -> None:
    policy = make(lora=LORA)
    policy.save(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"adapter", "optimizer.pt", "policy.json"}
    with safe_open(tmp_path / "saved/adapter/adapter_model.safetensors", "pt") as file:
        assert all(is_adapter(name) for name in file.keys())  # noqa: SIM118 - not a mapping
        assert len(file.keys()) == len(dict(policy.weights()))


def test_an_own_critic_has_adapters_too(make: MakePolicy) -> None:
    policy = make(critic="own", lora=LORA)
    adapters = sum(weight.numel() for _, weight in policy.weights())
    assert policy.num_trained_parameters == 2 * adapters + 32 + 1


def test_layers_by_name() -> None:
    model = tiny_llama()
    assert adapted_layers(model, LORA) == LAYERS
    add_adapters(model, LoraConfig(rank=1, targets=["q_proj", "v_proj"]))
    trained = {name.split(".")[-4] for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {"q_proj", "v_proj"}
    with without_adapters(model):
        pass
    assert {name.split(".")[-4] for name, weight in model.named_parameters() if weight.requires_grad} == trained


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "q_projj"])
def test_a_layer_that_is_not_there_is_refused_with_those_that_are(make: MakePolicy, target: str) -> None:
    with pytest.raises(ConfigError, match=rf"lora\.targets=.*no linear layer '{target}'; known: .*q_proj"):
        make(lora=LoraConfig(rank=1, targets=["q_proj", target]))
