"""Shapes of the Qwen2.5 models, with random weights: what a step costs does not depend on the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config


@dataclass(frozen=True)
class Shape:
    """What a model's config.json says."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    """Head and embedding are one matrix."""


SHAPES = {
    "0.5B": Shape(896, 24, 14, 2, 4864, 151936, tied=True),
    "1.5B": Shape(1536, 28, 12, 2, 8960, 151936, tied=True),
    "7B": Shape(3584, 28, 28, 4, 18944, 152064, tied=False),
    "toy": Shape(128, 2, 4, 2, 256, 300, tied=True),
}


def config_of(shape: Shape) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=32768,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=shape.vocabulary - 1,
    )


def write_model(shape: Shape, folder: Path, device: str) -> PreTrainedTokenizerFast:
    """Writes a Hugging Face folder; the last token is the end, which random weights sample once in a vocabulary."""
    words = {f"w{number}": number for number in range(shape.vocabulary)}
    end = f"w{shape.vocabulary - 1}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), eos_token=end)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer
