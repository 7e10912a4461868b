from __future__ import annotations

import string
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rlvr.policy.tiny import MARKUP, UNKNOWN, character_tokenizer, write_tiny_model

PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))
tokenizer = character_tokenizer()


def encode(text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@given(st.lists(st.one_of(st.text(PRINTABLE, max_size=9), st.sampled_from(MARKUP))).map("".join))
def test_printable_text_decodes_back_exactly(text: str) -> None:
    assert tokenizer.decode(encode(text), skip_special_tokens=True) == text


def test_characters_are_single_tokens_and_so_is_the_markup() -> None:
    assert len(encode(PRINTABLE)) == len(set(encode(PRINTABLE))) == len(PRINTABLE)
    assert len(set(string.printable) & set(PRINTABLE)) == len(PRINTABLE)
    assert tokenizer.convert_ids_to_tokens(encode("<think>1 </think>\\boxed{2}")) == [
        "<think>",
        "1",
        " ",
        "</think>",
        "\\boxed{",
        "2",
        "}",
    ]
    assert tokenizer("1")["input_ids"] == encode("1")


def test_an_unknown_character_becomes_one_visible_replacement() -> None:
    assert tokenizer.decode(encode("a\té三b"), skip_special_tokens=True) == f"a{UNKNOWN * 3}b"


def test_the_same_seed_gives_the_same_bytes_and_leaves_the_callers_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_tiny_model(tmp_path / name, seed)
    assert torch.equal(torch.get_rng_state(), state)
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    bytes_of = lambda folder, file: (tmp_path / folder / file).read_bytes()
    assert all(bytes_of("a", file) == bytes_of("b", file) for file in files)
    assert bytes_of("a", "model.safetensors") != bytes_of("c", "model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, seed=0)
    return folder


def test_it_loads_as_an_ordinary_hugging_face_folder(folder: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert 0.9e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.2e6
    assert model.config.vocab_size == len(loaded)
    assert model.config.head_dim == 32
    assert model.generation_config.eos_token_id == loaded.eos_token_id != loaded.pad_token_id
    with torch.no_grad():
        logits = model(torch.tensor([encode("1+1")])).logits
    assert torch.isfinite(logits).all()


def test_the_chat_template_ends_each_assistant_turn(folder: Path) -> None:
    turns = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    loaded = AutoTokenizer.from_pretrained(folder)
    text = loaded.apply_chat_template([*turns, turns[0]], tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>1+1<|assistant|>2<|end|><|user|>1+1<|assistant|>"
