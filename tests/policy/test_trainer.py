from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from rlvr.batch import collate
from rlvr.config import ModelConfig, OptimizerConfig, PolicyConfig
from rlvr.objectives import build
from rlvr.objectives.objective import Objective
from rlvr.policy.microbatches import over_microbatches, over_steps
from rlvr.policy.tiny import character_tokenizer
from rlvr.policy.trainer import Policy

from .examples import scored_batch, tiny_llama, write_tiny_llama
from .training import SHAPE, MakePolicy, assert_same, gradients, train, weights_of

GRPO = {"aggregate": "token_mean"}

OBJECTIVES = {
    "token_mean": GRPO,
    "sequence_mean": {"aggregate": "sequence_mean", "trust": {"kind": "weight_clip", "low": 1.0, "high": 4.0}},
    "prompt_mean with entropy": {"aggregate": "prompt_mean", "entropy": {"coef": 0.1}},
    "constant with kl": {
        "aggregate": "constant",
        "constant_length": 20,
        "kl": {"placement": "loss", "estimator": "k3", "coef": 0.5},
    },
}


@pytest.mark.parametrize("spec", OBJECTIVES.values(), ids=OBJECTIVES)
def test_gradients_do_not_depend_on_the_split_into_microbatches(make: MakePolicy, spec: dict) -> None:
    whole, *others = (
        gradients(make(tokens_per_microbatch=tokens, logprob_chunk_tokens=chunk), build(spec), scored_batch(SHAPE))
        for tokens, chunk in ((10_000, 1000), (60, 7), (1, 3))
    )
    assert max(float(gradient.abs().max()) for gradient in whole.values()) > 1e-3
    for other in others:
        for name, gradient in whole.items():
            torch.testing.assert_close(other[name], gradient, rtol=0, atol=1e-6, msg=name)


def test_gradient_is_that_of_the_plain_formula(make: MakePolicy) -> None:
    """On policy, GRPO's gradient with a token mean is -A grad log pi / tokens, here by plain transformers."""
    batch = scored_batch(SHAPE)
    objective = build(GRPO)
    prepared, _ = objective.prepare(batch)
    model = tiny_llama()
    loss = torch.zeros(())
    for row in range(batch.num_rows):
        part = prepared.select(torch.tensor([row]))
        logits = model(input_ids=part.token_ids[None]).logits[0, :-1] / 0.8
        logprobs = logits.log_softmax(-1).gather(-1, part.token_ids[1:, None])[:, 0]
        loss = loss - (logprobs * part.advantages[1:])[part.loss_mask[1:]].sum() / batch.loss_mask.sum()
    loss.backward()
    ours = gradients(make(tokens_per_microbatch=50), build(GRPO), batch)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_bfloat16_gradients_are_summed_in_float32_and_close_to_exact(make: MakePolicy) -> None:
    exact = gradients(make(), build(GRPO), scored_batch(SHAPE))
    rounded = gradients(make(dtype="bfloat16", tokens_per_microbatch=40), build(GRPO), scored_batch(SHAPE))
    for name, gradient in exact.items():
        assert rounded[name].dtype == torch.float32
        assert (rounded[name] - gradient).norm() < 0.1 * gradient.norm(), name


def test_rows_that_a_filter_dropped_change_nothing(make: MakePolicy) -> None:
    batch = scored_batch(((3, 5), (4, 6)))
    batch.rewards[2:] = 1.0
    batch.correct[2:] = True
    spec = {**GRPO, "filters": {"zero_variance": True}}
    alone = gradients(make(), build(GRPO), batch.select(torch.arange(2)))
    both = gradients(make(), build(spec), batch)
    for name, gradient in alone.items():
        assert both[name].equal(gradient), name


def test_several_steps_a_batch(make: MakePolicy) -> None:
    policy, objective = make(schedule="linear"), build({**GRPO, "minibatches": 3, "epochs": 2})
    metrics = train(policy, objective, scored_batch(SHAPE))
    assert policy.version == 1
    assert objective.state_dict()["num_batches"] == 1
    assert metrics["tokens/trained"] == 2 * sum(map(sum, SHAPE))
    # Steps 0..5 of 100 on the way to 0.
    assert metrics["policy/lr"] == pytest.approx(1e-3 * (1 - 2.5 / 100))
    assert metrics["policy/ratio_max"] > 1.0
    assert metrics["policy/skipped"] == 0


def test_one_step_a_batch_is_on_policy(make: MakePolicy) -> None:
    batch = scored_batch(SHAPE)
    metrics = train(make(), build(GRPO), batch)
    assert batch.old_logprobs is None
    assert metrics["policy/ratio_max"] == 1.0
    assert metrics["policy/clip_fraction"] == 0.0
    assert 0 < metrics["policy/entropy"] < 5
    assert metrics["policy/grad_norm"] > 0


def test_annotate_fills_what_the_objective_reads(make: MakePolicy) -> None:
    policy, batch = make(), scored_batch(SHAPE)
    policy.sft(batch, 1e-2)
    spec = {**GRPO, "minibatches": 2, "kl": {"placement": "loss", "coef": 0.1}}
    policy.annotate(batch, build(spec))
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    assert batch.old_logprobs.equal(policy.logprobs(batch))
    assert batch.ref_logprobs.equal(make().logprobs(batch))
    assert not batch.ref_logprobs.equal(batch.old_logprobs)
    assert batch.old_logprobs[~batch.loss_mask].eq(0).all()


def test_updates_raise_the_probability_of_rewarded_completions(make: MakePolicy) -> None:
    policy, batch = make(learning_rate=3e-3), scored_batch(SHAPE)
    before = policy.logprobs(batch)
    for _ in range(5):
        train(policy, build(GRPO), replace(batch, old_logprobs=None))
    change = torch.zeros(batch.num_rows).index_add(0, batch.row_ids, policy.logprobs(batch) - before)
    assert change[batch.rewards == 1].mean() > 0 > change[batch.rewards == 0].mean()
    assert policy.version == 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_supervised_steps_lower_the_loss(make: MakePolicy, dtype: str) -> None:
    policy, batch = make(dtype=dtype), scored_batch(((5, 6), (7, 8)))
    losses = [policy.sft(batch, 3e-3)["sft/loss"] for _ in range(15)]
    exact = -policy.logprobs(batch).sum() / batch.loss_mask.sum()
    assert losses[-1] < 0.5 * losses[0]
    assert float(exact) < losses[-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_repeat_bit_for_bit(make: MakePolicy, dtype: str) -> None:
    def run() -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        policy, objective = make(dtype=dtype, tokens_per_microbatch=60), build({**GRPO, "minibatches": 2})
        for seed in range(2):
            metrics = train(policy, objective, scored_batch(SHAPE, seed))
        return weights_of(policy), metrics

    (one, one_metrics), (other, other_metrics) = run(), run()
    assert one_metrics == other_metrics
    for name, tensor in one.items():
        assert other[name].equal(tensor), name


STATES = {
    "float32": OptimizerConfig(),
    "int8": OptimizerConfig(moments="int8"),
    "rounded": OptimizerConfig(moments="int8", master_weights="stochastic_rounding"),
    "offload": OptimizerConfig(offload=True),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("state", STATES)
def test_a_loaded_policy_goes_on_bit_for_bit(
    make: MakePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, state: str
) -> None:
    monkeypatch.setattr("rlvr.policy.slot.MIN_QUANTIZED", 100)
    options = {"dtype": dtype, "schedule": "cosine", "warmup_steps": 3, "optimizer": STATES[state]}
    objective = build({**GRPO, "minibatches": 2})
    first = make(**options)
    train(first, objective, scored_batch(SHAPE, 0))
    first.save(tmp_path / "saved")
    second = make(**options)
    second.load(tmp_path / "saved")

    assert second.version == first.version == 1
    metrics = [train(policy, objective, scored_batch(SHAPE, 1)) for policy in (first, second)]
    assert metrics[0] == metrics[1]
    theirs = weights_of(second)
    for name, tensor in weights_of(first).items():
        assert tensor.equal(theirs[name]), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_state_changes_no_bit_of_an_update(make: MakePolicy, dtype: str) -> None:
    """With the head's gradient added directly, several microbatches a step and several steps."""
    here, away = (
        make(dtype=dtype, tokens_per_microbatch=60, optimizer=OptimizerConfig(offload=offload))
        for offload in (False, True)
    )
    metrics = [train(policy, build({**GRPO, "minibatches": 2}), scored_batch(SHAPE)) for policy in (here, away)]
    assert metrics[0] == metrics[1]
    assert_same(weights_of(away), weights_of(here))


def test_offload_on_a_cpu_is_warned_of_and_activations_stay(make: MakePolicy, caplog: pytest.LogCaptureFixture) -> None:
    policy = make(offload_activations=True, optimizer=OptimizerConfig(offload=True))
    assert policy.model.offload is None
    for key in ("policy.optimizer.offload=true", "policy.offload_activations=true"):
        assert key in caplog.text


def test_a_step_that_is_not_finite_is_skipped(make: MakePolicy) -> None:
    policy, objective = make(), build(GRPO)
    before = weights_of(policy)
    batch, _ = objective.prepare(scored_batch(SHAPE))
    batch.advantages[batch.loss_mask.nonzero()[0]] = float("nan")
    metrics = policy.update(batch, objective)
    assert metrics == {"policy/skipped": 1.0, "tokens/trained": 0.0}
    assert policy.version == 0
    for name, tensor in policy.weights():
        assert tensor.equal(before[name]), name


def test_an_empty_batch_is_no_step(make: MakePolicy, caplog: pytest.LogCaptureFixture) -> None:
    policy = make()
    for batch in (collate([], decode=str), replace(scored_batch(SHAPE), loss_mask=torch.zeros(0, dtype=torch.bool))):
        if batch.num_rows:
            batch.loss_mask = torch.zeros(batch.num_tokens, dtype=torch.bool)
            batch.advantages = torch.zeros(batch.num_tokens)
        assert policy.update(batch, build(GRPO)) == {"policy/skipped": 0.0, "tokens/trained": 0.0}
        assert "no row has a loss token" in caplog.text
    assert policy.version == 0


class _NoMemoryAbove:
    """Raises the GPU's out-of-memory error for microbatches that are too large, as the device would."""

    def __init__(self, objective: Objective, most_tokens: int) -> None:
        self._objective, self._most_tokens = objective, most_tokens

    def __getattr__(self, name: str) -> object:
        return getattr(self._objective, name)

    def loss(self, logprobs: torch.Tensor, *rest: object, **named: object) -> object:
        if len(logprobs) > self._most_tokens:
            raise torch.OutOfMemoryError
        return self._objective.loss(logprobs, *rest, **named)


def test_out_of_memory_halves_the_microbatch(
    make: MakePolicy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rlvr.policy.microbatches.MIN_TOKENS", 16)
    batch = scored_batch(SHAPE)
    whole = gradients(make(), build(GRPO), batch)
    again = gradients(make(tokens_per_microbatch=128), _NoMemoryAbove(build(GRPO), 40), batch)
    assert "going on with policy.tokens_per_microbatch=32" in caplog.text
    for name, gradient in whole.items():
        torch.testing.assert_close(again[name], gradient, rtol=0, atol=1e-6, msg=name)
    with pytest.raises(torch.OutOfMemoryError):
        train(make(), _NoMemoryAbove(build(GRPO), 3), batch)


def test_sequence_logprobs_are_the_models_own_at_temperature_1(make: MakePolicy) -> None:
    sequences = [[5, 8, 13, 21], [34, 55, 2]]
    model = tiny_llama()
    for values, sequence in zip(make().sequence_logprobs(sequences), sequences, strict=True):
        ids = torch.tensor(sequence)
        expected = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        assert values == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_carry_the_names_of_the_exported_files(tmp_path: Path, tied: bool) -> None:
    path = write_tiny_llama(tmp_path / "model", tied=tied)
    policy = Policy(ModelConfig(path=path), PolicyConfig(device="cpu"), total_updates=1, temperature=1.0)
    policy.sft(scored_batch(SHAPE), 1e-2)
    tokenizer = character_tokenizer()
    policy.export(tmp_path / "exported", tokenizer)

    names = [name for name, _ in policy.weights()]
    assert len(names) == len(set(names))
    with safe_open(tmp_path / "exported/model.safetensors", "pt") as file:
        assert sorted(names) == sorted(file.keys())
        for name, tensor in policy.weights():
            assert file.get_tensor(name).equal(tensor), name
    assert "rlvr" not in (tmp_path / "exported/config.json").read_text()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.bfloat16)
    assert plain.lm_head.weight.equal(policy.model.head_weight)
    assert (tmp_path / "exported/tokenizer.json").is_file()


def test_metrics_add_over_microbatches_and_average_over_steps() -> None:
    parts = [{"loss": 1.0, "ratio_max": 3.0}, {"loss": 2.0, "ratio_max": 1.0}]
    assert over_microbatches(parts) == {"loss": 3.0, "ratio_max": 3.0}
    assert over_steps(parts) == {"loss": 1.5, "ratio_max": 3.0}
    assert over_steps([]) == {}
