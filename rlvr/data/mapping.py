"""How one row of a data set becomes chat messages and a reference answer, as the data configuration says."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.config import DataConfig
from rlvr.errors import ConfigError, DataError
from rlvr.records import Message
from rlvr.verifiers.answers.extract import last_box

_ROLES = ("system", "user", "assistant", "tool")
_BRACED = re.compile(r"\{([^{}\s]+)\}")
_BARE_BOX = re.compile(r"\\boxed\s+(\w)")  # some of MATH's golds: TeX boxes one token where there is no brace


@dataclass(frozen=True)
class Problem:
    """A row, mapped."""

    messages: list[Message]
    question: str
    """The problem as the data set states it."""
    reference: Any
    extra: dict[str, Any]
    """The columns that make neither the turns nor the reference."""


class BrokenRowError(Exception):
    """A row that cannot become a prompt; the caller counts it and goes on."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r} {why}")


class RowMapping:
    """Maps rows, once it has seen which columns there are.

    Args:
        data: the configuration.
        sample: the first rows of the data; a column that none of them has is a mistake in the configuration.

    Raises:
        ConfigError: keys of `data` that contradict each other or the template.
        DataError: a column that is not there.
    """

    def __init__(self, data: DataConfig, sample: Sequence[Mapping[str, Any]]) -> None:
        self._data = data
        text_key, self._text_column = _text_column(data)
        answers = [data.answer] if isinstance(data.answer, str) else data.answer
        if not answers:
            raise ConfigError("data.answer", data.answer, "name the column of the reference answer, or several")
        used = [("answer", column) for column in answers]
        shown = []
        if self._text_column is not None:
            used.insert(0, (text_key, self._text_column))
            shown.append("question")
        for key, column in used:
            _check_column(key, column, sample)
        self._used_columns = {_root(column, sample) for _, column in used}
        present = {name for row in sample for name in row}
        # The answer must not leak into the prompt, and a list of messages is no text. A template without a question may
        # show what several columns hold the answer to: the numbers of a countdown are its problem.
        secret = answers[:1] if shown or isinstance(data.answer, str) else []
        hidden = {_root(column, sample) for column in (*secret, data.messages) if column is not None}
        shown += sorted(present - hidden)
        self._placeholders = [
            name
            for name in dict.fromkeys(_BRACED.findall(data.user))
            # A part of the answer (`test_list.0`, one test of several) may be shown: it cannot be meant otherwise.
            if name in shown or ("." in name and name.split(".")[0] in present)
        ]
        if not self._placeholders:
            known = ", ".join("{" + name + "}" for name in shown)
            raise ConfigError("data.user", data.user, f"the problem is nowhere in it; use one of {known}")
        self._opening = self._system_and_examples()

    def __call__(self, row: Mapping[str, Any] | None) -> Problem:
        """Raises `BrokenRowError` for a row without question or answer, with the wrong type in its place, or None."""
        if row is None:
            raise BrokenRowError("(line)", "is not a JSON object")
        turns = self._turns(row)
        content = self._fill(turns[-1]["content"], row)
        question = turns[-1]["content"] or content
        last = {"role": turns[-1]["role"], "content": content}
        earlier = turns[:-1]
        if self._data.system is not None:
            earlier = [turn for turn in earlier if turn["role"] != "system"]
        extra = {name: value for name, value in row.items() if name not in self._used_columns}
        return Problem([*self._opening, *earlier, last], question, self._reference(row), extra)

    def _turns(self, row: Mapping[str, Any]) -> list[Message]:
        """The row's own messages; a question is one user turn, empty where the template states the problem."""
        if self._text_column is None:
            return [{"role": "user", "content": ""}]
        value = _value(row, self._text_column)
        if self._data.messages is None:
            if not isinstance(value, str):
                raise BrokenRowError(self._text_column, f"holds {_kind(value)}, not text")
            return [{"role": "user", "content": value.strip()}]
        if not isinstance(value, list) or not all(_is_message(turn) for turn in value):
            raise BrokenRowError(self._text_column, f"is not a list of messages {{role, content}}: {_kind(value)}")
        if value[-1]["role"] == "assistant":
            raise BrokenRowError(self._text_column, "ends with the assistant's turn")
        return [{"role": turn["role"], "content": turn["content"].strip()} for turn in value]

    def _fill(self, question: str, row: Mapping[str, Any]) -> str:
        """Puts columns into the `user` template; braces of LaTeX and of the problem itself stay as they are."""
        values = {"question": question}
        for name in self._placeholders:
            if name != "question":
                values[name] = "" if row.get(name) == "" else str(_value(row, name))
        return _BRACED.sub(lambda match: values.get(match[1], match[0]), self._data.user)

    def _reference(self, row: Mapping[str, Any]) -> Any:
        column = self._data.answer
        if not isinstance(column, str):
            return self._mapped(row, column)
        value = _value(row, column)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, (str, int, float)):
            return self._extracted(column, str(value))
        if not isinstance(value, (list, dict)):
            raise BrokenRowError(column, f"holds {_kind(value)}, not an answer")
        if self._data.answer_after is not None or self._data.answer_boxed:
            raise BrokenRowError(column, f"holds {_kind(value)}, not text to take the answer from")
        return value

    def _mapped(self, row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
        """Column -> value, as it is; empty ones are left out, which the first must not be."""
        if self._data.answer_after is not None or self._data.answer_boxed:
            raise BrokenRowError(columns[0], "is one of several, not a text to take the answer from")
        reference = {columns[0]: _value(row, columns[0])}
        for column in columns[1:]:
            with contextlib.suppress(BrokenRowError):
                reference[column] = _value(row, column)
        return reference

    def _extracted(self, column: str, text: str) -> str:
        """The part of the answer column that is the answer."""
        after = self._data.answer_after
        if after is not None:
            _, mark, text = text.rpartition(after)
            if not mark:
                raise BrokenRowError(column, f"has no {after!r}")
        if self._data.answer_boxed:
            boxed = last_box(_BARE_BOX.sub(r"\\boxed{\1}", text))
            if boxed is None:
                raise BrokenRowError(column, "has no whole \\boxed{}")
            text = boxed
        if not text.strip():
            raise BrokenRowError(column, "gives an empty answer")
        return text.strip()

    def _system_and_examples(self) -> list[Message]:
        opening: list[Message] = []
        if self._data.system is not None:
            opening.append({"role": "system", "content": self._data.system})
        needed = {*self._placeholders, "question", "answer"}
        for example in self._data.examples:
            if missing := sorted(needed - example.keys()):
                raise ConfigError(
                    "data.examples", example, f"an example needs {', '.join(sorted(needed))}: no {missing[0]}"
                )
            opening.append({"role": "user", "content": self._fill(example["question"], example)})
            opening.append({"role": "assistant", "content": example["answer"]})
        return opening


def _text_column(data: DataConfig) -> tuple[str, str | None]:
    """The key and the column that hold the problem; no column where the `user` template states it."""
    if data.answer_after is not None and data.answer_boxed:
        raise ConfigError("data.answer_boxed", True, "contradicts data.answer_after: use one of the two")
    if data.messages is not None:
        return "messages", data.messages
    if data.question is None and "{question}" in data.user:
        mend = "name the column of the problem, here or as data.messages, or state it in data.user"
        raise ConfigError("data.question", None, mend)
    return "question", data.question


def _check_column(key: str, column: str, sample: Sequence[Mapping[str, Any]]) -> None:
    """Raises a DataError where no row of the sample has the column."""
    here: list[Any] = list(sample)
    if any(column in row for row in here):
        return
    for part in column.split("."):
        below = [_step(value, part) for value in here]
        if all(value is _ABSENT for value in below):
            names = list(dict.fromkeys(name for value in here if isinstance(value, Mapping) for name in value))
            close = difflib.get_close_matches(part, names, n=1, cutoff=0.5)
            guess = f"; did you mean {close[0]!r}?" if close else ""
            known = ", ".join(map(str, names)) or "none"
            raise DataError(f"data.{key}={column}: there is no column {part!r}; there are {known}{guess}")
        here = [value for value in below if value is not _ABSENT]


_ABSENT = object()


def _step(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, _ABSENT)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return _ABSENT


def _value(row: Mapping[str, Any], column: str) -> Any:
    """The value of a dotted column, which is neither absent, null, NaN nor empty text."""
    value: Any = row.get(column, _ABSENT)
    if value is _ABSENT:
        value = row
        for part in column.split("."):
            value = _step(value, part)
    if value is _ABSENT:
        raise BrokenRowError(column, "is missing")
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise BrokenRowError(column, f"holds {value}")
    if value in ("", [], {}) or (isinstance(value, str) and not value.strip()):
        raise BrokenRowError(column, "is empty")
    return value


def _root(column: str, sample: Sequence[Mapping[str, Any]]) -> str:
    return column if any(column in row for row in sample) else column.split(".")[0]


def _is_message(turn: Any) -> bool:
    return (
        isinstance(turn, Mapping)
        and turn.get("role") in _ROLES
        and isinstance(turn.get("content"), str)
        and bool(turn["content"].strip())
    )


def _kind(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
