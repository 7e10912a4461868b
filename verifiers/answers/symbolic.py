"""The last resort: math-verify (sympy) on two expressions that nothing simpler could decide, behind guards."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from rlvr.verifiers.answers.normalize import GREEK
from rlvr.verifiers.answers.values import TooLargeError

MAX_CHARACTERS = 300
"""Longer expressions are not handed to sympy."""

_NAMES = """
frac sqrt binom cdot div pi infty sum prod int lim to det max min gcd log ln exp sin cos tan sec csc cot asin acos atan
sinh cosh tanh lfloor rfloor lceil rceil bmod pmod prime pm
"""
_COMMANDS = frozenset(rf"\{name}" for name in [*_NAMES.split(), *GREEK.split()])
_EXPRESSION = re.compile(r"[A-Za-z0-9+\-*/^_!{}()|.='\s\\]*")
_FOR_SYMPY = {r"\asin": r"\arcsin", r"\acos": r"\arccos", r"\atan": r"\arctan"}
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")
_LONG_NUMBER = re.compile(r"\d{5,}")
_HUGE = re.compile(r"\^\s*\{?\s*[-+]?\d{4,}|\^\s*(?:\{[^}]*|\w+\s*)\^|\d{4,}\s*!|!\s*!|\\binom\s*\{\s*\d{4,}")


def can_handle(text: str) -> bool:
    """Whether `text` is one expression whose commands sympy knows; words, relations and hedges never are."""
    is_expression = _EXPRESSION.fullmatch(text) is not None and not re.search(r"\d\s+\d", text)
    return is_expression and all(command in _COMMANDS for command in _COMMAND.findall(text))


def check_size(text: str) -> None:
    """Refuses what sympy would choke on.

    Raises:
        TooLargeError: long, with a tower of exponents, a huge power, factorial or bound.
    """
    if len(text) > MAX_CHARACTERS or _HUGE.search(text):
        raise TooLargeError("too large for sympy")
    if re.search(r"\\(?:sum|prod|int|lim|det|gcd)", text) and _LONG_NUMBER.search(text):
        raise TooLargeError("too large for sympy")


@lru_cache(maxsize=1024)
def read(text: str) -> tuple[Any, ...]:
    """What math-verify reads in a normalised expression."""
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the time limits it does not have here
    text = _COMMAND.sub(lambda match: _FOR_SYMPY.get(match[0], match[0]), text)
    # No time limits of its own: they are signals, and the worker process has a deadline.
    return tuple(parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None))


@lru_cache(maxsize=1024)
def try_out(gold: str) -> None:
    """Compares a reference with some number: returns unless it is the reference that keeps sympy busy."""
    equal(gold, r"\frac{7}{13}")


def equal(gold: str, answer: str) -> bool:
    """math-verify's verdict on two normalised expressions; slow or endless for some input: run it under a deadline."""
    from math_verify import verify

    left, right = read(gold), read(answer)
    if not left or not right or not verify(list(left), list(right), timeout_seconds=None):
        return False
    a, b = _number(left[0]), _number(right[0])
    # math-verify rounds to six absolute places, so that all tiny numbers are alike to it.
    return a is None or b is None or abs(a - b) <= 1e-6 * max(abs(a), abs(b))


@lru_cache(maxsize=1024)
def _number(expression: Any) -> complex | None:
    try:
        return complex(expression)
    except (TypeError, ValueError, OverflowError):
        return None
