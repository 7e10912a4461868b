"""Reads the shape of an answer around its expressions (`rlvr.verifiers.answers.nodes`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from rlvr.verifiers.answers.expressions import MAX_DEPTH
from rlvr.verifiers.answers.leaves import Leaf, choice, leaf, spelling
from rlvr.verifiers.answers.nodes import Interval, Items, Matrix, Node, Region, Relation
from rlvr.verifiers.answers.normalize import join_thousands
from rlvr.verifiers.answers.values import TooLargeError, UnreadableError, rounds_to

MAX_ITEMS = 200
"""Longer lists are not compared."""

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
_SCALED_MATRIX = re.compile(r"([^&]+?)(?:\\cdot|\*)?\s*([(\[]?\s*\\begin\{(?:[pb]?matrix|array)\}.*)$", re.DOTALL)
_DISTANCE = re.compile(r"\|\s*([A-Za-z])\s*(?:([+-])\s*([^|]+))?\|")
_LETTERS = r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])"
_NAME = re.compile(
    rf"(?:{_LETTERS}+\s*\)|[A-Za-z]{{1,3}}|\\text\s*\{{[A-Za-z ]+\}}|\\[A-Za-z]+)'*"
    r"(?:\s*_\s*(?:\{[^{}]*\}|\w|\\[A-Za-z]+))?"
    rf"(?:\s*\^\s*\{{\s*-1\s*\}})?(?:\s*{_LETTERS}*\s*\))?$"
)
_LABEL = re.compile(
    r"[A-Za-z](?:\s*[+-]\s*[A-Za-z])+|[A-Za-z]\s*\(\s*-?[\d.]+\s*\)|\|\s*[A-Z]{2}\s*\||\[[A-Z]{3,6}\]"
    r"|\\(?:overline|vec|overrightarrow)\s*\{[A-Za-z]{1,3}\}"
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
    yield from _short_hand(text)


def _short_hand(text: str) -> Iterator[Node]:
    """`ACD` as options, `6:8` as 3:4, `P(1,2)` as a point, `all real numbers`; besides what else these may be."""
    letters = re.fullmatch(r"(?:\\text\s*\{)?([A-H]{2,6})\}?", text)
    if letters is not None and list(letters[1]) == sorted(set(letters[1])):
        yield Items("", tuple(leaf(letter) for letter in letters[1]))
    terms = [term.strip() for term in text.split(":")]
    if len(terms) == 2 and all(terms) and "(" not in text:
        value = leaf(rf"\frac{{{terms[0]}}}{{{terms[1]}}}").value
        if value is not None and value.exact is not None:
            yield Items(":", (leaf(str(value.exact.numerator)), leaf(str(value.exact.denominator))))
    point = re.fullmatch(r"[A-Z]\s*(\([^()]*,[^()]*\))", text)
    if point is not None:
        yield read(point[1])
    if spelling(text).casefold() in {"allrealnumbers", "allreals"}:
        yield read(r"\mathbb{R}")


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
        name, member, first = pieces[0].rpartition(r"\in ")
        union = _union([read(piece) for piece in [first, *pieces[1:]]], text)
        return replace(union, name=spelling(name)) if member else union
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
    half_line = re.fullmatch(r"\\mathbb\{R\}\s*(?:\^\s*\{?\s*([+-])\s*\}?)?", text)
    if half_line is not None:
        zero = leaf("0")
        ends = {"+": (zero, None), "-": (None, zero), None: (None, None)}[half_line[1]]
        return Region((Interval(*ends, False, False),))
    described = re.fullmatch(r"\\\{\s*(\w+)\s*(?:\\in\s*\\mathbb\{R\}\s*)?[|:]\s*(.+)\\\}", text, re.DOTALL)
    if described is not None and is_name(described[1]):
        region = read(described[2])
        return region if isinstance(region, Region) and region.name == described[1] else None
    without = re.match(r"(.+?)\s*(?:\\setminus(?![A-Za-z])|-)\s*\\\{(.*)\\\}$", text, re.DOTALL)
    whole = None if without is None else as_region(read(without[1]))
    if without is None or whole is None:
        return None
    pieces = list(whole.pieces)
    for part in split(without[2], _SEPARATOR)[0]:
        pieces = [half for piece in pieces for half in _without(piece, leaf(part))]
    return Region(tuple(pieces), whole.name)


def _without(piece: Interval, point: Leaf) -> list[Interval]:
    """An interval without a point: two where it lies inside."""
    at, (low, high) = _exact(point), (None if end is None else _exact(end) for end in (piece.left, piece.right))
    if (low is not None and at < low) or (high is not None and at > high):
        return [piece]
    halves = []
    if low is None or low < at:
        halves.append(Interval(piece.left, point, piece.left_closed, False))
    if high is None or at < high:
        halves.append(Interval(point, piece.right, False, piece.right_closed))
    return halves


def _exact(end: Leaf) -> Fraction:
    if end.value is None or end.value.exact is None:
        raise UnreadableError("a difference of sets")
    return end.value.exact


def _bracketed(text: str) -> Node | None:
    wrapped = _WRAPPED_MATRIX.match(text)
    matrix = _MATRIX.match(wrapped[1] if wrapped is not None else text)
    if matrix is not None:
        rows = [row for row in matrix[2].split(r"\\") if row.strip()]
        return Matrix(tuple(tuple(read(cell) for cell in row.split("&")) for row in rows))
    scaled = _SCALED_MATRIX.match(text)
    if scaled is not None:
        return _scaled(scaled[1], _bracketed(scaled[2]))
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


def _scaled(factor: str, matrix: Node | None) -> Node | None:
    """A number times a matrix."""
    factor = "-1" if factor.strip() == "-" else factor
    if not isinstance(matrix, Matrix) or leaf(factor).value is None:
        return None
    cells = [[cell.source for cell in row if isinstance(cell, Leaf)] for row in matrix.rows]
    return Matrix(tuple(tuple(leaf(rf"({factor}) \cdot ({cell})") for cell in row) for row in cells))


def _relation(text: str) -> Node | None:
    sides, operators = split(text, _RELATION)
    if not operators:
        return None
    if operators[-1] == r"\approx":
        return _approximation(text[: text.rindex(r"\approx")], sides[-1])
    if set(operators) == {"="}:
        return _equation(sides)
    if operators == [r"\in"] and is_name(sides[0]):
        members = read(sides[1])
        region = as_region(members)
        return members if region is None else replace(region, name=spelling(sides[0]))
    if r"\in" in operators or r"\approx" in operators:
        raise UnreadableError("a chain of relations")
    return _inequality(sides, operators)


def _equation(sides: list[str]) -> Node:
    if not sides[0].strip():
        return read("=".join(sides[1:]))
    first, right, between = sides[0], read(sides[-1]), tuple(leaf(side) for side in sides[1:-1])
    name, is_label = spelling(first) if is_name(first) else None, _LABEL.fullmatch(first.strip()) is not None
    return Relation(leaf(first), right, name=name, between=between, is_label=is_label)


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
        distance = _DISTANCE.fullmatch(left.strip())
        if distance is not None and operator in {"<", r"\le", ">", r"\ge"}:
            return _ball(distance[1], f"{distance[2] or '+'} ({distance[3] or '0'})", operator, right)
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


def _ball(name: str, shift: str, operator: str, radius: str) -> Region:
    """`|x + shift| < radius` and the like."""
    low, high = leaf(f"-({radius}) - (0 {shift})"), leaf(f"({radius}) - (0 {shift})")
    if low.value is None or not low.value.is_constant:
        raise UnreadableError("an inequality in several variables")
    closed = operator in {r"\le", r"\ge"}
    if operator in {"<", r"\le"}:
        return Region((Interval(low, high, closed, closed),), name)
    return Region((Interval(None, low, False, closed), Interval(high, None, closed, False)), name)


def _half_lines(name: str, operator: str, bound: Leaf) -> Region:
    closed = operator in {r"\le", r"\ge"}
    below, above = Interval(None, bound, False, closed), Interval(bound, None, closed, False)
    return Region(
        {"<": (below,), r"\le": (below,), ">": (above,), r"\ge": (above,)}.get(operator, (below, above)), name
    )


def is_name(text: str) -> bool:
    """Whether `text` only names an answer: a symbol, or a function of symbols."""
    return text.strip() not in _NOT_NAMES and _NAME.match(text.strip()) is not None
