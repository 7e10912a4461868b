from pathlib import Path

import pytest
import torch

from rlvr.config import ModelConfig
from rlvr.errors import ModelError
from rlvr.objectives import build
from rlvr.policy.reference import Reference
from rlvr.policy.trainer import Policy

from .examples import VOCABULARY, scored_batch, tiny_llama, write_tiny_llama
from .training import SHAPE, MakePolicy, assert_same, gradients, prepared, train, weights_of

WITH_KL = {"aggregate": "token_mean", "kl": {"placement": "loss", "estimator": "exact", "coef": 0.5}}


def refreshed(tmp_path: Path, every: int) -> Reference:
    return Reference(ModelConfig(path=str(tmp_path / "model")), refresh_every=every)


def reference_logprobs(policy: Policy) -> torch.Tensor:
    batch = scored_batch(SHAPE)
    policy.annotate(batch, build(WITH_KL))
    return batch.ref_logprobs


def test_a_reference_of_its_own_folder(make: MakePolicy, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "other", seed=5)
    policy = make(reference=Reference(ModelConfig(path=path), key="reference.path"))
    other = Policy(ModelConfig(path=path), policy._options, total_updates=1, temperature=0.8)
    assert reference_logprobs(policy).equal(other.logprobs(scored_batch(SHAPE)))


def test_it_is_loaded_only_where_it_is_read(make: MakePolicy, tmp_path: Path) -> None:
    policy = make(reference=Reference(ModelConfig(path=str(tmp_path / "nowhere/at/all")), key="reference.path"))
    train(policy, build({"kl": {"placement": "loss", "coef": 0.0}}), scored_batch(SHAPE))
    with pytest.raises(ModelError, match=r"reference\.path=.*nowhere/at/all.*no such folder"):
        reference_logprobs(policy)


def test_another_vocabulary_is_refused(make: MakePolicy, tmp_path: Path) -> None:
    small = tiny_llama()
    small.resize_token_embeddings(VOCABULARY - 8)
    small.save_pretrained(tmp_path / "small")
    policy = make(reference=Reference(ModelConfig(path=str(tmp_path / "small")), key="reference.path"))
    with pytest.raises(ModelError, match=r"reference\.path=.*89 tokens, the policy's 97.*tokenizer"):
        reference_logprobs(policy)


def test_another_architecture_cannot_be_refreshed(make: MakePolicy, tmp_path: Path) -> None:
    tiny_llama(kv_heads=4).save_pretrained(tmp_path / "other")
    source = ModelConfig(path=str(tmp_path / "other"))
    reference_logprobs(make(reference=Reference(source, key="reference.path")))
    with pytest.raises(ModelError, match=r"reference\.path=.*architecture.*reference\.refresh_every=0"):
        reference_logprobs(make(reference=Reference(source, key="reference.path", refresh_every=1)))


def test_every_so_many_batches_it_becomes_the_policy(make: MakePolicy, tmp_path: Path) -> None:
    policy = make(reference=refreshed(tmp_path, 2))
    objective, batch = build({**WITH_KL, "minibatches": 2}), scored_batch(SHAPE)
    start, references, policies = policy.logprobs(batch), [], []
    for seed in range(4):
        references.append(reference_logprobs(policy))
        train(policy, objective, scored_batch(SHAPE, seed))
        policies.append(policy.logprobs(batch))
    assert references[0].equal(start)
    assert references[1].equal(start)
    assert references[2].equal(policies[1])
    assert references[3].equal(policies[1])
    assert reference_logprobs(policy).equal(policies[3])
    assert not policies[3].equal(policies[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("every", [0, 2])
def test_a_loaded_policy_has_the_same_reference_bit_for_bit(
    make: MakePolicy, tmp_path: Path, dtype: str, every: int
) -> None:
    objective = build({**WITH_KL, "minibatches": 2})
    first, second = (make(dtype=dtype, reference=refreshed(tmp_path, every)) for _ in range(2))
    for seed in range(3):
        train(first, objective, scored_batch(SHAPE, seed))
    first.save(tmp_path / "saved")
    assert (tmp_path / "saved/reference").exists() == bool(every)
    second.load(tmp_path / "saved")
    for path in (tmp_path / "saved").rglob("*"):
        path.unlink(missing_ok=True) if path.is_file() else None  # later checkpoints take its place
    assert reference_logprobs(second).equal(reference_logprobs(first))
    # The next batch is the fourth: it reads the old reference and then refreshes it.
    for seed in (3, 4):
        metrics = [train(policy, objective, scored_batch(SHAPE, seed)) for policy in (first, second)]
        assert metrics[0] == metrics[1]
        assert reference_logprobs(second).equal(reference_logprobs(first))
    assert_same(weights_of(second), weights_of(first))


@pytest.mark.parametrize("tokens", [10_000, 60])
def test_the_exact_kls_gradient_is_that_of_the_plain_formula(make: MakePolicy, tmp_path: Path, tokens: int) -> None:
    """The difference that coef makes is coef mean_t sum_v p (log p - log q), here in float64 by plain transformers."""
    path = write_tiny_llama(tmp_path / "other", seed=5)
    seen = []
    for coef in (0.5, 1e-30):
        policy = make(tokens_per_microbatch=tokens, reference=Reference(ModelConfig(path=path)))
        spec = {**WITH_KL, "kl": {**WITH_KL["kl"], "coef": coef}}
        seen.append(gradients(policy, build(spec), scored_batch(SHAPE)))
    model, reference = tiny_llama().double(), tiny_llama(5).double()
    batch = prepared(make(reference=Reference(ModelConfig(path=path))), build(WITH_KL), scored_batch(SHAPE))
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(batch.num_rows):
        part = batch.select(torch.tensor([row]))
        ours, theirs = (m(input_ids=part.token_ids[None]).logits[0, :-1] / 0.8 for m in (model, reference))
        p, q = ours.log_softmax(-1), theirs.detach().log_softmax(-1)
        loss = loss + 0.5 * (p.exp() * (p - q)).sum(-1)[part.loss_mask[1:]].sum() / batch.loss_mask.sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        of_kl = (seen[0][name] - seen[1][name]).double()
        torch.testing.assert_close(of_kl, parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
