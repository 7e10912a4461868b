from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rlvr.data.templates import ChatTemplate
from rlvr.errors import ConfigError, ModelError

TURNS = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]


def base_tokenizer(adds_bos: bool) -> PreTrainedTokenizerFast:
    """A tokenizer without a chat template, whose own encoding begins with BOS or does not."""
    inner = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "Add.": 2, "1+1": 3, "a": 4, "?": 5}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_bos:
        inner.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def test_the_own_template_is_applied_and_nothing_is_added(tiny_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    template = ChatTemplate(tokenizer)
    text = template.render(TURNS)
    assert text == "<|system|>Add.<|user|>1+1<|assistant|>"
    [ids] = template.encode([text])
    assert tokenizer.decode(ids) == text
    assert len(ids) == 3 + len("Add.") + len("1+1")


def test_a_bos_written_by_the_template_is_not_doubled(tmp_path: Path) -> None:
    tokenizer = base_tokenizer(adds_bos=True)
    file = tmp_path / "chat.jinja"
    file.write_text("{{ bos_token }} {% for m in messages %}{{ m['content'] }} {% endfor %}")
    template = ChatTemplate(tokenizer, str(file))
    assert template.encode([template.render(TURNS)]) == [[0, 2, 3]]


@pytest.mark.parametrize(("adds_bos", "expected"), [(True, [0, 2, 3]), (False, [2, 3])])
def test_base_models_get_plain_text_and_bos_only_where_their_encoding_puts_one(
    adds_bos: bool, expected: list[int]
) -> None:
    template = ChatTemplate(base_tokenizer(adds_bos), "none")
    text = template.render(TURNS)
    assert text.removeprefix("<s>") == "Add.\n\n1+1"
    assert template.encode([text]) == [expected]


def test_no_chat_template_is_a_model_error_with_both_mends() -> None:
    with pytest.raises(ModelError, match=r"no chat template: set model\.chat_template=none .* FILE|chat_template=FILE"):
        ChatTemplate(base_tokenizer(adds_bos=False))


def test_a_missing_template_file_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"model\.chat_template='gone\.jinja'"):
        ChatTemplate(base_tokenizer(adds_bos=False), "gone.jinja")


def test_a_template_that_refuses_a_role_says_which_turns(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}")
    with pytest.raises(ModelError, match=r"roles system, user \(no system role\); unset data\.system"):
        ChatTemplate(base_tokenizer(adds_bos=False), str(file)).render(TURNS)
