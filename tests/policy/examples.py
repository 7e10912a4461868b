"""Tiny random models and ragged scored groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rlvr.batch import Batch, collate
from rlvr.records import Completion, Group, Prompt, Rollout, Verdict

VOCABULARY = 97


def tiny_llama(seed: int = 0, *, tied: bool = True, kv_heads: int = 2) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        initializer_range=0.2,  # far from uniform: a wrong position or a leak between rows shows
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def write_tiny_llama(folder: Path, seed: int = 0, *, tied: bool = True) -> str:
    tiny_llama(seed, tied=tied).save_pretrained(folder)
    return str(folder)


def scored_groups(shape: Sequence[Sequence[int]], seed: int = 0) -> list[Group]:
    """One group an entry; each number is the length of a completion; prompts, tokens and rewards are random."""
    rng = torch.Generator().manual_seed(seed)

    def tokens(number: int) -> list[int]:
        return torch.randint(2, VOCABULARY, (number,), generator=rng).tolist()

    groups = []
    for number, lengths in enumerate(shape):
        prompt_ids = tokens(int(torch.randint(1, 9, (1,), generator=rng)))
        prompt = Prompt(id=str(number), text="", token_ids=prompt_ids, reference=None, source="random")
        rollouts = []
        for index, length in enumerate(lengths):
            logprobs = (-2 - torch.rand(length, generator=rng)).tolist()
            completion = Completion(tokens(length), logprobs, "", "length" if index == 1 else "stop", 0)
            reward = float(torch.randint(2, (1,), generator=rng))
            reward = float(index == 0) if index < 2 else reward  # no group without signal
            rollouts.append(Rollout(completion, Verdict(reward, "correct" if reward else "wrong")))
        groups.append(Group(prompt, rollouts))
    return groups


def scored_batch(shape: Sequence[Sequence[int]], seed: int = 0) -> Batch:
    return collate(scored_groups(shape, seed), decode=str)
