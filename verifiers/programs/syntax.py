"""Parses programs of models and data sets, whose bad escapes are no news to whoever watches the log."""

from __future__ import annotations

import ast
import warnings
from types import CodeType


def parse(text: str) -> ast.Module:
    """Raises SyntaxError, ValueError, RecursionError or MemoryError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def compiled(text: str, name: str) -> CodeType:
    """With its asserts, however this interpreter was started. Raises as `parse` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(text, name, "exec", dont_inherit=True, optimize=0)
