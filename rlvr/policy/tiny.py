"""The embedded default model: a Llama of about one million parameters that reads and writes single characters."""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
# One token each, which makes completions about twenty tokens shorter; they decode as the very same text.
MARKUP = ("<think>", "</think>", "\\boxed{")
CHARACTERS = "\n" + string.digits + string.ascii_letters + string.punctuation + " "

# A user turn needs no end mark, as the next role follows; an assistant's turn ends as its completions do.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(folder: str | Path, seed: int) -> None:
    """Writes the model with random weights, and its tokenizer, as an ordinary Hugging Face folder.

    The same seed gives the same bytes; the caller's random state is left alone.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    tokenizer = character_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,  # head size 32: the smallest that vLLM's CPU attention takes
        num_key_value_heads=4,
        intermediate_size=512,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character of printable ASCII and newline; any other character becomes a visible `UNKNOWN`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    special = [PAD, EOS, *ROLES]
    vocabulary = {token: i for i, token in enumerate([*special, *MARKUP, UNKNOWN, *CHARACTERS])}
    # BPE without merges: every character is its own token, and no pre-tokenizer could swallow a space.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKUP])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
