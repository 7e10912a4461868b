"""The smallest parts of an answer: one expression with its unit, a word, a choice, a numeral in another base."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlvr.verifiers.answers.expressions import evaluate
from rlvr.verifiers.answers.units import canonical_unit
from rlvr.verifiers.answers.values import UndefinedError, UnreadableError, Value


@dataclass(frozen=True)
class Leaf:
    """One expression, word or numeral."""

    source: str
    """As it stands in the normalised answer."""
    spelling: str
    """Without fonts, spaces and needless braces; what is spelled alike is the same."""
    value: Value | None = None
    """None for words, numerals in another base and what only sympy may know."""
    unit: str | None = None
    is_words: bool = False
    """Nothing but its own spelling equals it."""


_CHOICE = re.compile(
    r"\(?\s*(?:\\text\s*\{\s*)?(?:(?i:option|choice|answer)\s*:?\s*)?\(?([A-J])\)?\}?\s*\)?(?:[.:)]\s*(.*))?$",
    re.DOTALL,
)
_NUMERAL = re.compile(r"\(?(-?[0-9A-Fa-f]*\d[0-9A-Fa-f]*)\)?\s*_\s*(?:\{\s*(\d+)\s*\}|(\d+)|\{?\\text\{(\w+)\}\}?)$")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "twelve": 12}
_UNIT = re.compile(r"(.+?)\s*\\text\{([A-Za-z .'-]+)\}(?:\s*\^\s*\{?([23])\}?)?$", re.DOTALL)
_BARE_UNIT = re.compile(r"(.*[\d})])\s*((?:[A-Za-z]{2,}\.?[ -]?){1,4})(?:\s*\^\s*\{?([23])\}?)?$", re.DOTALL)
_LOGICAL = {"yes", "no", "true", "false", "odd", "even", "all", "none"}  # short words that could be products
_ARTICLE = re.compile(r"(?:an?|the)\s+(?=\w{2})", re.IGNORECASE)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_RATIO_OF_UNITS = re.compile(r"(\\text\{[A-Za-z .]+)\}\s*/\s*\\text\{([A-Za-z .]+\})")


def choice(text: str) -> str | None:
    r"""The letter of `C`, `(C)`, `\text{C}` or `(C) 42`: a lettered option, with at most its value behind it."""
    match = _CHOICE.match(text)
    if match is None:
        return None
    content = _value(match[2]) if match[2] else None
    return None if match[2] and (content is None or not content.is_constant) else match[1]


def spelling(text: str) -> str:
    r"""Without fonts, braces around single characters, and spaces but those between digits.

    >>> spelling(r"52_{8} \text{Monday}")
    '52_8Monday'
    """
    text = _TEXT.sub(r"\1", text)
    text = re.sub(r"\{\s*(\w|\\[A-Za-z]+)\s*\}", r"\1", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def leaf(text: str) -> Leaf:
    r"""Reads a normalised answer that has no structure.

    Raises:
        UnreadableError: nothing there.
        TooLargeError: an expression too big to evaluate.

    >>> leaf(r"\frac{1}{2} \text{cm}").unit
    'centimeter'
    """
    text = text.lstrip(" ,;:+").rstrip(" .,;:")
    if not text:
        raise UnreadableError("empty")
    numeral = _NUMERAL.match(text)
    if numeral is not None:
        base = numeral[2] or numeral[3] or str(_BASES.get(numeral[4], numeral[4]))
        if base == "10":
            return leaf(numeral[1])
        return Leaf(text, f"{numeral[1].upper()}_{base}", is_words=True)
    letter = choice(text)
    if letter is not None:
        return Leaf(text, letter, _value(letter))
    number, unit = _split_unit(text)
    try:
        value = _value(rf"{{{number}}}\%" if unit == "percent" else number)
    except UndefinedError:
        return Leaf(text, spelling(number), is_words=True)
    is_logical = number.casefold() in _LOGICAL
    if is_logical or (value is None and (r"\text" in number or re.fullmatch(r"[A-Za-z][A-Za-z '.-]{2,}", number))):
        return Leaf(text, _plain_words(text), is_words=True)
    return Leaf(text, spelling(number), value, unit or ("degree" if value is not None and value.is_degree else None))


def _plain_words(text: str) -> str:
    r"""Words without article, closing mark and plural.

    >>> _plain_words(r"\text{No solutions.}"), _plain_words("an ellipse")
    ('Nosolution', 'ellipse')
    """
    words = _ARTICLE.sub("", _TEXT.sub(r"\1", text).strip(" .!"))
    return spelling(re.sub(r"(?<=[A-Za-z]{3}[^s\W])s$", "", words))


def _value(text: str) -> Value | None:
    try:
        return evaluate(text)
    except UndefinedError:
        raise
    except UnreadableError:
        return None


def _split_unit(text: str) -> tuple[str, str | None]:
    text = _RATIO_OF_UNITS.sub(r"\1 per \2", text)
    for pattern in (_UNIT, _BARE_UNIT):
        match = pattern.match(text)
        unit = canonical_unit(match[2]) if match is not None else None
        if match is not None and unit is not None and _value(match[1]) is not None:
            return match[1], unit + (f"^{match[3]}" if match[3] else "")
    return text, None
