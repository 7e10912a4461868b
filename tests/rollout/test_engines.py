"""What both engines promise, tried on both."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlvr.errors import ConfigError, HandoverError
from rlvr.records import Completion
from rlvr.rollout.engine import Request, RolloutEngine, Sampling

from .reference import MAX_NEW_TOKENS, forward_logprobs

SAMPLING = Sampling(max_new_tokens=24)


def run(engine: RolloutEngine, requests: list[Request], sampling: Sampling = SAMPLING) -> list[list[Completion]]:
    """All completions, in the order of the requests; refuses one that is answered twice."""
    answers = list(engine.generate(requests, sampling))
    found = dict(answers)
    assert len(found) == len(answers) == len(requests)
    return [found[i] for i in range(len(requests))]


def tokens(completions: list[list[Completion]]) -> list[list[list[int]]]:
    return [[c.token_ids for c in group] for group in completions]


def test_each_request_gets_one_completion_a_seed(engine: RolloutEngine, requests_: list[Request]) -> None:
    ragged = [Request(r.token_ids, r.seeds[: i % 4]) for i, r in enumerate(requests_)]
    completions = run(engine, ragged)
    assert [len(group) for group in completions] == [0, 1, 2, 3]
    for completion in (c for group in completions for c in group):
        assert 1 <= len(completion.token_ids) <= SAMPLING.max_new_tokens
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.policy_version == 7


def test_seeds_repeat_samples_and_differ_from_each_other(engine: RolloutEngine, requests_: list[Request]) -> None:
    first, second = run(engine, requests_), run(engine, requests_)
    assert first == second
    assert len({tuple(c.token_ids) for group in first for c in group}) > 12
    other = [Request(r.token_ids, [seed + 1 for seed in r.seeds]) for r in requests_]
    # The seeds of a prompt overlap with its shifted ones: sample j of one run is sample j - 1 of the other.
    shifted = tokens(run(engine, other))
    assert [group[:-1] for group in shifted] == [group[1:] for group in tokens(first)]


def test_samples_do_not_depend_on_what_is_sampled_beside_them(engine: RolloutEngine, requests_: list[Request]) -> None:
    together = tokens(run(engine, requests_))
    reversed_ = tokens(run(engine, requests_[::-1]))[::-1]
    alone = [tokens(run(engine, [request]))[0] for request in requests_]
    assert together == reversed_ == alone


@pytest.mark.parametrize(
    "sampling",
    [SAMPLING, Sampling(24, temperature=0.6), Sampling(24, temperature=1.3, top_p=0.7), Sampling(24, temperature=0.0)],
    ids=["plain", "cool", "nucleus", "greedy"],
)
def test_logprobs_are_those_of_the_sampled_distribution(
    engine: RolloutEngine, model: PreTrainedModel, requests_: list[Request], sampling: Sampling
) -> None:
    differences = []
    for request, group in zip(requests_, run(engine, requests_, sampling), strict=True):
        for completion in group:
            sequence = request.token_ids + completion.token_ids
            scale = sampling.temperature or 1.0
            rows = forward_logprobs(model, sequence, scale)[len(request.token_ids) - 1 :]
            chosen = rows.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            if sampling.temperature == 0:
                assert completion.token_ids == rows.argmax(-1).tolist()
            if sampling.top_p < 1:  # the smallest set of likeliest tokens with at least top_p of the mass
                for row, logprob in zip(rows, chosen, strict=True):
                    ordered = row.exp().sort(descending=True).values
                    size = int((ordered.cumsum(0) < sampling.top_p).sum()) + 1
                    assert logprob.exp() >= ordered[size - 1] - 1e-6
                masses = [
                    float(p[: int((p.cumsum(0) < sampling.top_p).sum()) + 1].sum())
                    for p in (row.exp().sort(descending=True).values for row in rows)
                ]
                chosen = chosen - torch.tensor(masses).log()
            differences.append((chosen - torch.tensor(completion.logprobs)).abs())
    assert torch.cat(differences).mean() < 1e-4


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_the_likeliest_tokens_are_those_of_the_sampled_distribution(
    engine: RolloutEngine, model: PreTrainedModel, requests_: list[Request], top_p: float
) -> None:
    k = 5
    for request, group in zip(
        requests_, run(engine, requests_, Sampling(24, temperature=1.3, top_p=top_p, topk=k)), strict=True
    ):
        for completion in group:
            rows = forward_logprobs(model, request.token_ids + completion.token_ids, 1.3)[len(request.token_ids) - 1 :]
            expected, order = rows.topk(k)
            if top_p < 1:
                probabilities = expected.exp()
                inside = probabilities.cumsum(-1) - probabilities < top_p
                mass = rows.exp().sort(descending=True).values
                mass = (mass * (mass.cumsum(-1) - mass < top_p)).sum(-1, keepdim=True)
                expected = (expected - mass.log()).masked_fill(~inside, -torch.inf)
            assert completion.topk_ids is not None
            assert completion.topk_ids.shape == (len(completion.token_ids), k)
            torch.testing.assert_close(torch.from_numpy(completion.topk_logprobs).double(), expected, atol=1e-4, rtol=0)
            told = torch.isfinite(expected)
            assert (torch.from_numpy(completion.topk_ids)[told] == order[told]).float().mean() > 0.95  # ties apart
            assert len(completion.logprobs) == len(completion.token_ids)


def test_engine_logprobs_equal_a_plain_forward(
    engine: RolloutEngine, model: PreTrainedModel, requests_: list[Request]
) -> None:
    sequences = [request.token_ids for request in requests_ if len(request.token_ids) > 1]
    for sequence, values in zip(sequences, engine.logprobs(sequences), strict=True):
        expected = forward_logprobs(model, sequence).gather(-1, torch.tensor(sequence)[1:, None])[:, 0]
        assert len(values) == len(sequence) - 1
        assert (expected - torch.tensor(values)).abs().mean() < 1e-4


def test_finish_reason_says_whether_a_stop_token_was_sampled(
    engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase, requests_: list[Request]
) -> None:
    digits = tuple(tokenizer.convert_tokens_to_ids(list("0123456789abcdefgh")))
    stops = {tokenizer.eos_token_id, *digits}
    completions = [c for group in run(engine, requests_, Sampling(8, stop_token_ids=digits)) for c in group]
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for completion in completions:
        assert not stops & set(completion.token_ids[:-1])
        if completion.finish_reason == "stop":
            assert completion.token_ids[-1] in stops
        else:
            assert completion.token_ids[-1] not in stops
            assert len(completion.token_ids) == 8


def test_the_tokenizers_end_stops_and_is_not_in_the_text(
    engine: RolloutEngine, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, requests_: list[Request]
) -> None:
    with torch.no_grad():  # tied weights: a long embedding row makes its token likely
        model.model.embed_tokens.weight[tokenizer.eos_token_id] *= 3
    engine.load_weights(model.named_parameters(), 8)
    ended = [c for group in run(engine, requests_) for c in group if c.finish_reason == "stop"]
    assert ended
    for completion in ended:
        assert completion.token_ids[-1] == tokenizer.eos_token_id
        assert completion.text == tokenizer.decode(completion.token_ids[:-1], skip_special_tokens=True)


def test_new_weights_are_the_ones_sampled_from(
    engine: RolloutEngine, model: PreTrainedModel, requests_: list[Request]
) -> None:
    before = engine.logprobs([requests_[1].token_ids])[0]
    run(engine, requests_)  # fills whatever cache the engine keeps under the old weights
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight.mul_(1.7)
        model.model.embed_tokens.weight.mul_(1.1)
    engine.load_weights(model.named_parameters(), 9)
    after = engine.logprobs([requests_[1].token_ids])[0]
    assert (torch.tensor(before) - torch.tensor(after)).abs().mean() > 1e-3
    for request, group in zip(requests_, run(engine, requests_), strict=True):
        for completion in group:
            assert completion.policy_version == 9
            rows = forward_logprobs(model, request.token_ids + completion.token_ids)[len(request.token_ids) - 1 :]
            chosen = rows.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            assert (chosen - torch.tensor(completion.logprobs)).abs().mean() < 1e-4


def test_an_abandoned_generation_leaves_the_engine_usable(engine: RolloutEngine, requests_: list[Request]) -> None:
    whole = run(engine, requests_)
    started = engine.generate(requests_, SAMPLING)
    next(started)
    started.close()
    assert run(engine, requests_) == whole


def test_what_does_not_fit_the_context_is_refused(engine: RolloutEngine) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_new_tokens=48: with a prompt of 2040 tokens"):
        list(engine.generate([Request([9] * 2040, [1])], Sampling(MAX_NEW_TOKENS)))


def test_weights_in_another_dtype_are_converted(
    engine: RolloutEngine, model: PreTrainedModel, requests_: list[Request]
) -> None:
    engine.load_weights([(name, p.bfloat16()) for name, p in model.named_parameters()], 8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    sequence = requests_[1].token_ids
    expected = forward_logprobs(model, sequence).gather(-1, torch.tensor(sequence)[1:, None])[:, 0]
    assert (expected - torch.tensor(engine.logprobs([sequence])[0])).abs().mean() < 1e-4


def test_tied_weights_may_come_under_either_name(
    engine: RolloutEngine, model: PreTrainedModel, requests_: list[Request]
) -> None:
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.5)
    renamed = [
        ("lm_head.weight" if name == "model.embed_tokens.weight" else name, tensor)
        for name, tensor in model.named_parameters()
    ]
    engine.load_weights(renamed, 8)
    sequence = requests_[1].token_ids
    expected = forward_logprobs(model, sequence).gather(-1, torch.tensor(sequence)[1:, None])[:, 0]
    assert (expected - torch.tensor(engine.logprobs([sequence])[0])).abs().mean() < 1e-4


def test_every_completion_is_of_full_length_where_the_end_is_ignored(
    engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, requests_: list[Request]
) -> None:
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer.eos_token_id] *= 3  # likely
    engine.load_weights(model.named_parameters(), 8)
    completions = [c for group in run(engine, requests_, Sampling(12, ignore_eos=True)) for c in group]
    assert {(len(c.token_ids), c.finish_reason) for c in completions} == {(12, "length")}
    assert any(tokenizer.eos_token_id in c.token_ids[:-1] for c in completions)


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("sabotage", "message"),
    [
        (lambda pairs: {k: v for k, v in pairs.items() if k != NORM}, rf"incomplete: 1 of \d+ .* {NORM}"),
        (lambda pairs: dict(list(pairs.items())[:7]), r"incomplete: \d+ of \d+ parameters"),
        (lambda pairs: pairs | {"model.layers.9.mlp.up_proj.weight": pairs[NORM]}, r"no parameter 'model\.layers\.9"),
        (lambda pairs: pairs | {NORM: pairs[NORM][:-1]}, rf"'{NORM}' has shape \[127\], the engine's has \[128\]"),
        (lambda pairs: {}, "incomplete"),
    ],
    ids=["one missing", "half", "unknown", "wrong shape", "empty"],
)
def test_an_incomplete_or_foreign_handover_is_refused_and_not_sampled_from(
    engine: RolloutEngine, model: PreTrainedModel, requests_: list[Request], sabotage: object, message: str
) -> None:
    whole = run(engine, requests_)
    assert callable(sabotage)
    with pytest.raises(HandoverError, match=message):
        engine.load_weights(sabotage(dict(model.named_parameters())).items(), 8)
    with pytest.raises(HandoverError, match="did not end"):
        run(engine, requests_)
    engine.load_weights(model.named_parameters(), 7)
    assert run(engine, requests_) == whole
