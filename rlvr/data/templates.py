"""The one place where chat messages become text, and text becomes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.errors import ConfigError, ModelError
from rlvr.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_TEXTS = 2048


class ChatTemplate:
    """Renders messages and tokenises the result; every prompt of a run passes here exactly once.

    Args:
        tokenizer: the model's.
        chat_template: None for the tokenizer's own template, a Jinja file, or `none` for base models, which read the
            turns' text alone, a blank line between turns.

    Raises:
        ModelError: the tokenizer has no chat template and none is given.
        ConfigError: the template file cannot be read.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template: str | None = None
        self._bos = ""
        if chat_template == "none":
            self._bos = _own_bos(tokenizer)
        elif chat_template is not None:
            self._template = _read_template(chat_template)
        elif tokenizer.chat_template is not None:
            self._template = tokenizer.get_chat_template()
        else:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path} has no chat template: set model.chat_template=none for a "
                "base model, or model.chat_template=FILE.jinja"
            )

    def render(self, messages: Sequence[Message]) -> str:
        """The text the model reads, up to where its completion begins; special tokens are part of the text."""
        if self._template is None:
            return self._bos + "\n\n".join(message["content"] for message in messages)
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(
                f"the chat template of {self._tokenizer.name_or_path} refuses turns of the roles {roles} ({error}); "
                "unset data.system or data.examples, or set model.chat_template"
            ) from error
        return str(text)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of rendered texts: nothing is added, as the template has written its own BOS."""
        ids: list[list[int]] = []
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = list(texts[start : start + _BATCH_TEXTS])
            ids += self._tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


def _own_bos(tokenizer: PreTrainedTokenizerBase) -> str:
    """The BOS token where the tokenizer's own encoding puts one before plain text, else nothing."""
    ids = tokenizer("a")["input_ids"]
    return str(tokenizer.bos_token) if tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id else ""


def _read_template(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "model.chat_template", file, f"name a readable Jinja file, or `none` for base models ({error})"
        ) from error
