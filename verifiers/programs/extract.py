"""Finds the program in a completion: the last fenced block outside the reasoning."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from rlvr.verifiers.answers.extract import Thinking, after_thinking
from rlvr.verifiers.programs.syntax import parse

MAX_CHARACTERS = 200_000
"""Longest program that is run."""

_FENCE = re.compile(r"^ {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<tag>[\w+#.-]*)[^\n`]*$", re.MULTILINE)


def find_program(response: str, thinking: Thinking, tags: Collection[str]) -> str | None:
    """The last closed block that is tagged as the language, else the last without a tag.

    A response without any fence is a program itself when it has the syntax of one and defines, imports or calls
    something (base models complete the prompt's code, indented as it is).

    >>> find_program("First:\\n```python\\nx = 1\\n```\\nNo:\\n```python\\nx = 2\\n```", "optional", ["python"])
    'x = 2\\n'
    >>> find_program("```text\\nx = 1\\n```", "optional", ["python"]) is None
    True
    >>> find_program("I think that it is 42.", "optional", ["python"]) is None
    True
    """
    outside = after_thinking(response, thinking)
    if outside is None:
        return None
    blocks = list(_blocks(outside))
    if not blocks:
        bare = outside.strip("\n") + "\n"
        return bare if "```" not in bare and _is_program(bare) else None
    for wanted in (tags, ("",)):
        chosen = [text for tag, text in blocks if tag.lower() in wanted]
        if chosen:
            return chosen[-1]
    return None


def _blocks(text: str) -> list[tuple[str, str]]:
    """(tag, content) of every closed block."""
    found: list[tuple[str, str]] = []
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence["marks"].startswith(opening["marks"]) and not fence["tag"]:
            found.append((opening["tag"], text[opening.end() + 1 : fence.start()]))
            opening = None
    return found


def _is_program(text: str) -> bool:
    if len(text) > MAX_CHARACTERS:
        return False
    is_body = text[:1] in (" ", "\t")
    try:
        statements = parse(f"def function():\n{text}" if is_body else text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if is_body:
        return any(isinstance(node, (ast.Return, ast.Assign, ast.If, ast.For)) for node in ast.walk(statements[0]))
    defining = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    calls = (node for node in statements if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    return any(isinstance(node, defining) for node in statements) or next(calls, None) is not None
