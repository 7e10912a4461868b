"""Finds the final answer in a completion: the last `\\boxed{}` outside the reasoning, else what follows a mark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Thinking = Literal["optional", "required", "searched"]

_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(?P<bare>\d+)(?![\w.,/^]))|\\.|[{}]", re.DOTALL)


def after_thinking(text: str, thinking: Thinking) -> str | None:
    """What stands outside `<think>...</think>`: after the last closing tag and before any later opening one.

    Returns:
        The text; all of it for `searched`; None when a closing tag is `required` and missing.
    """
    if thinking == "searched":
        return text
    _, closing, tail = text.rpartition("</think>")
    if not closing and thinking == "required":
        return None
    return tail.partition("<think>")[0]


def last_box(text: str) -> str | None:
    """Content of the last balanced `\\boxed{...}` (or `\\fbox`, or bare `\\boxed 2`); of nested ones the outermost.

    >>> last_box(r"First \\boxed{1}, no: \\boxed{\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    >>> last_box(r"never closed \\boxed{42") is None
    True
    """
    stack: list[int | None] = []  # where the content of each open box starts; None for an ordinary brace
    found: tuple[int, int] | None = None
    for match in _BOX_OR_BRACE.finditer(text):
        token = match.group()
        if match["bare"]:
            found = match.span("bare")
        elif token == "{":
            stack.append(None)
        elif token == "}":
            start = stack.pop() if stack else None
            # An enclosing box closes later and so replaces the ones inside it.
            if start is not None:
                found = (start, match.start())
        elif len(token) > 2:
            stack.append(match.end())
    return None if found is None else text[found[0] : found[1]]


def after_mark(text: str, marks: Sequence[str]) -> str | None:
    """The rest of the line after the last of `marks`, or the next line when nothing follows on its own.

    >>> after_mark("So it is.\\n**Answer:** $12$.", ["Answer:"])
    '$12$.'
    """
    position = max((text.rfind(mark) + len(mark) for mark in marks if mark in text), default=None)
    if position is None:
        return None
    lines = [line.strip().removeprefix("**").strip() for line in text[position : position + 10_000].split("\n")]
    return next((line.removesuffix("**").strip() for line in lines[:2] if line), None)


def extract(text: str, thinking: Thinking, marks: Sequence[str]) -> str | None:
    """The final answer as written, or None. The last box counts, whatever other boxes say."""
    outside = after_thinking(text, thinking)
    if outside is None:
        return None
    box = last_box(outside)
    return box if box is not None else after_mark(outside, marks)


def tagged_or_boxed(text: str, thinking: Thinking) -> str | None:
    """What stands in the last `<answer>...</answer>` outside the reasoning, else in the last box; None for nothing.

    >>> tagged_or_boxed("<think><answer>1</answer></think> So <answer> 2 </answer>", "optional")
    '2'
    """
    outside = after_thinking(text, thinking)
    if outside is None:
        return None
    before, closing, _ = outside.rpartition("</answer>")
    _, opening, tagged = before.rpartition("<answer>")
    answer = tagged if closing and opening else last_box(outside)
    return answer.strip() if answer is not None and answer.strip() else None


def tagged(answer: str, thinking: Thinking) -> str:
    """A response from which `tagged_or_boxed` takes the answer."""
    return f"{empty_thought(thinking)}<answer>{answer}</answer>"


def empty_thought(thinking: Thinking) -> str:
    """What a response must begin with where reasoning is required."""
    return "<think>\n</think>\n" if thinking == "required" else ""
