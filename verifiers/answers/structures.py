"""The shape of an answer around its expressions: lists, tuples, sets, intervals, unions, matrices, relations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from rlvr.verifiers.answers.expressions import MAX_DEPTH
from rlvr.verifiers.answers.leaves import Leaf, choice, leaf, spelling
from rlvr.verifiers.answers.normalize import join_thousands
from rlvr.verifiers.answers.values import TooLargeError, UnreadableError, rounds_to

MAX_ITEMS = 200
"""Longer lists are not compared."""


@dataclass(frozen=True)
class Items:
    """Items between brackets; a bare list has none, `{}` is a set, `()` may also be an open interval."""

    brackets: str
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Interval:
    """An end that is None is infinite."""

    left: Leaf | None
    right: Leaf | None
    left_closed: bool
    right_closed: bool


@dataclass(frozen=True)
class Region:
    """A set of real numbers: intervals, and single points as closed intervals of no length."""

    pieces: tuple[Interval, ...]
    name: str | None = None
    """The variable of the inequality it was written as."""


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True)
class Relation:
    """`left = ... = right`, or an inequality that is not about one variable."""

    left: Leaf
    right: Node
    operator: str = "="
    name: str | None = None
    """Spelling of the left side when it is only a name for the right one: `x`, `f(x)`, `m_{\\max}`."""
    between: tuple[Leaf, ...] = ()
    """Sides of a chain between the first and the last."""


Node = Leaf | Items | Region | Matrix | Relation

_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx)(?![A-Za-z])|[=<>]")
_SEPARATOR = re.compile(r"[,;]|\\text\{(?:and|or)\}|\\(?:lor|vee|land)(?![A-Za-z])|(?<![A-Za-z])(?:and|or)(?![A-Za-z])")
_UNION = re.compile(r"\\cup(?![A-Za-z])|(?<=[\])])\s*U\s*(?=[\[(])")
_BRACKET = re.compile(
    r"\\begin\s*\{\w+\}|\\end\s*\{\w+\}|\\langle|\\rangle|\\[lr]floor|\\[lr]ceil|\\[A-Za-z]+|\\.|[()\[\]{}]"
)
_OPENING = {"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"}
_CLOSING = {")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"}
_MATRIX = re.compile(r"\\begin\{([pb]?matrix|array)\}(?:\{[clr| ]*\})?(.*)\\end\{\1\}$", re.DOTALL)
_WRAPPED_MATRIX = re.compile(r"[(\[]\s*(\\begin\{(matrix|array)\}.*\\end\{\2\})\s*[)\]]$", re.DOTALL)
_LETTERS = r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])"
_NAME = re.compile(
    rf"(?:{_LETTERS}+\s*\)|[A-Za-z]{{1,3}}|\\text\s*\{{[A-Za-z ]+\}}|\\[A-Za-z]+)'*"
    r"(?:\s*_\s*(?:\{[^{}]*\}|\w|\\[A-Za-z]+))?"
    rf"(?:\s*\^\s*\{{\s*-1\s*\}})?(?:\s*{_LETTERS}*\s*\))?$"
)
_NOT_NAMES = {r"\pi", r"\infty", "e", "i"}
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}


def readings(text: str) -> Iterator[Node]:
    """The ways to read a normalised answer: `1,234` is one number or two.

    Raises:
        UnreadableError: nothing there, or brackets that do not match.
        TooLargeError: too many parts, too deep or too big.
    """
    if not text:
        raise UnreadableError("empty")
    split(text, _SEPARATOR)  # brackets first: they decide whether it is an answer at all
    for reading in dict.fromkeys([join_thousands(text), text]):
        try:
            yield read(reading)
        except UnreadableError:
            yield Leaf(reading, spelling(reading))


@lru_cache(maxsize=8192)
def read(text: str) -> Node:
    """The structure of a normalised answer."""
    text = text.lstrip(" ,;:").rstrip(" .,;:")
    if not text:
        raise UnreadableError("empty")
    if choice(text) is not None:
        return leaf(text)
    pieces, _ = split(text, _UNION)
    if len(pieces) > 1:
        return _union([read(piece) for piece in pieces], text)
    parts, separators = split(text, _SEPARATOR)
    parts = [part for part in parts if part.strip()]
    if len(parts) > MAX_ITEMS:
        raise TooLargeError("items")
    if len(parts) > 1:
        return _list([read(part) for part in parts], separators)
    variants = _both_signs(text)
    if variants is not None:
        return Items("", tuple(read(variant) for variant in variants))
    return _constant_set(text) or _bracketed(text) or _relation(text) or leaf(text)


def split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Splits where `separator` matches outside all brackets; returns the parts and the separators.

    Raises:
        UnreadableError: a bracket that is never closed or never opened.
    """
    depth, marks = 0, iter(_BRACKET.finditer(text))
    mark = next(marks, None)
    edges, cuts = [0], []
    for cut in separator.finditer(text):
        while mark is not None and mark.start() < cut.start():
            depth, mark = _deeper(depth, mark[0]), next(marks, None)
        if depth == 0:
            edges += cut.span()
            cuts.append(cut[0])
    while mark is not None:
        depth, mark = _deeper(depth, mark[0]), next(marks, None)
    if depth:
        raise UnreadableError("a bracket is not closed")
    edges.append(len(text))
    return [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)], cuts


def _deeper(depth: int, mark: str) -> int:
    depth += (mark in _OPENING or mark.startswith(r"\begin")) - (mark in _CLOSING or mark.startswith(r"\end"))
    if depth < 0:
        raise UnreadableError("a bracket is not opened")
    if depth > MAX_DEPTH:
        raise TooLargeError("nesting")
    return depth


def _both_signs(text: str) -> list[str] | None:
    """`a \\pm b` as `a + b` and `a - b`; every sign in one answer is taken together."""
    parts = re.split(r"\\(pm|mp)(?![A-Za-z])", text)
    if len(parts) == 1:
        return None
    upper = "".join({"pm": "+", "mp": "-"}.get(part, part) if i % 2 else part for i, part in enumerate(parts))
    lower = "".join({"pm": "-", "mp": "+"}.get(part, part) if i % 2 else part for i, part in enumerate(parts))
    return [upper, lower]


def _list(nodes: list[Node], separators: Sequence[str]) -> Node:
    if all(isinstance(node, Region) for node in nodes) and not any("and" in mark for mark in separators):
        return _union(nodes, "")
    flat: list[Node] = []
    for node in nodes:
        flat += node.items if isinstance(node, Items) and not node.brackets else [node]
    return Items("", tuple(flat))


def _union(nodes: list[Node], text: str) -> Region:
    regions = [region for region in map(as_region, nodes) if region is not None]
    names = {region.name for region in regions}
    if len(regions) < len(nodes) or len(names) > 1:
        raise UnreadableError(f"not a union of sets of numbers: {text}")
    return Region(tuple(piece for region in regions for piece in region.pieces), names.pop())


def as_region(node: Node) -> Region | None:
    """`(a, b)` as an open interval, `{a, b}` as points; None when it is no set of numbers."""
    if isinstance(node, Region):
        return node
    if not isinstance(node, Items):
        return None
    leaves = [item for item in node.items if isinstance(item, Leaf)]
    if len(leaves) < len(node.items):
        return None
    if node.brackets == "{}":
        return Region(tuple(Interval(item, item, True, True) for item in leaves))
    if node.brackets in {"()", "[)", "(]", "[]"} and len(leaves) == 2:
        return Region((_interval(leaves[0], leaves[1], node.brackets[0] == "[", node.brackets[1] == "]"),))
    return None


def _interval(left: Leaf, right: Leaf, left_closed: bool, right_closed: bool) -> Interval:
    lower = None if left.spelling == r"-\infty" else left
    upper = None if right.spelling in {r"\infty", r"+\infty"} else right
    return Interval(lower, upper, left_closed, right_closed)


def _constant_set(text: str) -> Region | None:
    if re.sub(r"\s", "", text) in {r"\emptyset", r"\{\}"}:
        return Region(())
    if text == r"\mathbb{R}":
        return Region((Interval(None, None, False, False),))
    without = re.match(r"\\mathbb\{R\}\s*(?:\\setminus(?![A-Za-z])|-)\s*\\\{(.*)\\\}$", text)
    if without is None:
        return None
    points = [leaf(part) for part in split(without[1], _SEPARATOR)[0]]
    order = {id(point): point.value.exact for point in points if point.value is not None}
    if any(order.get(id(point)) is None for point in points):
        raise UnreadableError("a difference of sets")
    ends = [None, *sorted(points, key=lambda point: order[id(point)] or Fraction(0)), None]
    return Region(tuple(Interval(a, b, False, False) for a, b in pairwise(ends)))


def _bracketed(text: str) -> Node | None:
    wrapped = _WRAPPED_MATRIX.match(text)
    matrix = _MATRIX.match(wrapped[1] if wrapped is not None else text)
    if matrix is not None:
        rows = [row for row in matrix[2].split(r"\\") if row.strip()]
        return Matrix(tuple(tuple(read(cell) for cell in row.split("&")) for row in rows))
    marks = [mark for mark in _BRACKET.finditer(text) if _deeper(1, mark[0]) != 1]
    if not marks or marks[0].start() != 0 or marks[-1].end() != len(text):
        return None
    depth = 0
    for mark in marks[:-1]:
        depth = _deeper(depth, mark[0])
        if depth == 0:
            return None  # the first bracket closes before the end, as in (1)(2)
    opening, closing = marks[0].group(), marks[-1].group()
    content = text[marks[0].end() : marks[-1].start()]
    if opening == "{":
        return read(content)
    if opening not in {"(", "[", r"\{", r"\langle"}:
        return None
    parts, _ = split(content, _SEPARATOR)
    if len(parts) > MAX_ITEMS:
        raise TooLargeError("items")
    if opening == r"\{":
        return Items("{}", tuple(read(part) for part in parts))
    if len(parts) == 1 and opening + closing == "()":
        return read(content)
    return Items("()" if opening == r"\langle" else opening + closing, tuple(read(part) for part in parts))


def _relation(text: str) -> Node | None:
    sides, operators = split(text, _RELATION)
    if not operators:
        return None
    if operators[-1] == r"\approx":
        return _approximation(text[: text.rindex(r"\approx")], sides[-1])
    if set(operators) == {"="}:
        return _equation(sides)
    if operators == [r"\in"] and is_name(sides[0]):
        region = as_region(read(sides[1]))
        return None if region is None else replace(region, name=spelling(sides[0]))
    if r"\in" in operators or r"\approx" in operators:
        raise UnreadableError("a chain of relations")
    return _inequality(sides, operators)


def _equation(sides: list[str]) -> Node:
    if not sides[0].strip():
        return read("=".join(sides[1:]))
    first, right, between = sides[0], read(sides[-1]), tuple(leaf(side) for side in sides[1:-1])
    return Relation(leaf(first), right, name=spelling(first) if is_name(first) else None, between=between)


def _approximation(exact: str, decimal: str) -> Node:
    """`\\sqrt2 \\approx 1.41` is its exact side when the decimal agrees with it; `x \\approx 1.41` is the decimal."""
    if not exact.strip() or is_name(exact):
        return read(f"{exact}={decimal}")
    node, numeral = read(exact), leaf(decimal).value
    value = node.right if isinstance(node, Relation) else node
    if isinstance(value, Leaf) and value.value is not None and numeral is not None and rounds_to(numeral, value.value):
        return node
    raise UnreadableError("an approximation of something else")


def _inequality(sides: list[str], operators: list[str]) -> Node:
    if len(sides) == 2:
        (left, right), (operator,) = sides, operators
        if is_name(right) and not is_name(left):
            left, right, operator = right, left, _FLIPPED[operator]
        if not is_name(left) or is_name(right):
            return Relation(leaf(left), leaf(right), operator)
        return _half_lines(spelling(left), operator, leaf(right))
    if len(sides) == 3 and is_name(sides[1]):
        if operators[0] in {">", r"\ge"}:
            sides, operators = sides[::-1], [_FLIPPED.get(operator, operator) for operator in operators[::-1]]
        if set(operators) <= {"<", r"\le"}:
            left_closed, right_closed = (operator == r"\le" for operator in operators)
            piece = _interval(leaf(sides[0]), leaf(sides[2]), left_closed, right_closed)
            return Region((piece,), spelling(sides[1]))
    raise UnreadableError("a chain of relations")


def _half_lines(name: str, operator: str, bound: Leaf) -> Region:
    closed = operator in {r"\le", r"\ge"}
    below, above = Interval(None, bound, False, closed), Interval(bound, None, closed, False)
    return Region(
        {"<": (below,), r"\le": (below,), ">": (above,), r"\ge": (above,)}.get(operator, (below, above)), name
    )


def is_name(text: str) -> bool:
    """Whether `text` only names an answer: a symbol, or a function of symbols."""
    return text.strip() not in _NOT_NAMES and _NAME.match(text.strip()) is not None
