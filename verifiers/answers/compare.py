"""Whether an answer says the same as the reference, part by part."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rlvr.verifiers.answers import values
from rlvr.verifiers.answers.leaves import Leaf
from rlvr.verifiers.answers.nodes import Interval, Items, Matrix, Node, Region, Relation
from rlvr.verifiers.answers.structures import as_region

T = TypeVar("T")

Symbolic = Callable[[str, str], bool]
"""Decides equality of two expressions (reference, answer) that could not be evaluated here."""

_FUNCTION = re.compile(r"\w\(x\)")
_OPPOSITE = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def same(gold: Node, answer: Node, symbolic: Symbolic) -> bool:
    """Not symmetric: the reference decides what form is asked for.

    A name before the answer (`x = 5`) may be there or missing, but two names must agree. Items of a bare list or a
    set come in any order, those of a tuple in theirs. Intervals, inequalities and unions compare as sets of numbers.
    """
    gold, answer = _only_member(gold), _only_member(answer)
    if isinstance(answer, Relation) and not isinstance(gold, Relation):
        return _sides_agree(answer, symbolic) and same(gold, answer.right, symbolic)
    if isinstance(gold, Relation) and not isinstance(answer, Relation):
        return (gold.name is not None or gold.is_label) and same(gold.right, answer, symbolic)
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relation(gold, answer, symbolic)
    if isinstance(gold, Region) or isinstance(answer, Region):
        left, right = as_region(gold), as_region(answer)
        return left is not None and right is not None and _same_region(left, right, symbolic)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return _same_leaf(gold, answer, symbolic)
    return _same_items(gold, answer, symbolic)


def _only_member(node: Node) -> Node:
    """`{x}` as x."""
    return node.items[0] if isinstance(node, Items) and node.brackets == "{}" and len(node.items) == 1 else node


def _sides_agree(relation: Relation, symbolic: Symbolic) -> bool:
    """Every side of `2 + 3 = 5`, or of `x = 2 + 3 = 5` after the name, says what the last one says."""
    if relation.operator != "=":
        return False
    is_named = relation.name is not None or relation.is_label
    sides = relation.between if is_named else (relation.left, *relation.between)
    return all(same(side, relation.right, symbolic) for side in sides)


def _same_relation(gold: Relation, answer: Relation, symbolic: Symbolic) -> bool:
    if gold.name is not None and answer.name is not None:
        if gold.name == answer.name:
            return _sides_agree(answer, symbolic) and same(gold.right, answer.right, symbolic)
        if not (_holds_symbols(gold.right) and _holds_symbols(answer.right)):
            return False  # x = 5 is not y = 5; but y = 2x and 2x = y are one line
        if any(_FUNCTION.fullmatch(a) and b == "y" for a, b in ((gold.name, answer.name), (answer.name, gold.name))):
            return same(gold.right, answer.right, symbolic)  # f(x) = 2x is y = 2x
    if gold.operator == answer.operator and (gold.left.spelling, gold.right) == (answer.left.spelling, answer.right):
        return True
    first, second = _difference(gold), _difference(answer)
    if first is None or second is None or first.is_constant or second.is_constant:
        return False
    ratios = {_sign_of_ratio(first, second)}
    if gold.operator == answer.operator == "=":
        return ratios <= {1, -1}
    return (
        ratios == {1}
        if gold.operator == answer.operator
        else (ratios == {-1} and _OPPOSITE.get(gold.operator) == answer.operator)
    )


def _holds_symbols(node: Node) -> bool:
    return isinstance(node, Leaf) and node.value is not None and not node.value.is_constant


def _difference(relation: Relation) -> values.Value | None:
    if relation.between or not isinstance(relation.right, Leaf):
        return None
    left, right = relation.left.value, relation.right.value
    return None if left is None or right is None else values.add(left, values.negate(right))


def _sign_of_ratio(first: values.Value, second: values.Value) -> int:
    """1 or -1 when one is a positive or negative multiple of the other, else 0."""
    try:
        ratio = values.divide(first, second).points
    except values.UnreadableError:
        return 0
    if not all(values.close(ratio[0], other) for other in ratio) or values.MP.im(ratio[0]) != 0 or ratio[0] == 0:
        return 0
    return 1 if ratio[0] > 0 else -1


def _same_region(gold: Region, answer: Region, symbolic: Symbolic) -> bool:
    if gold.name is not None and answer.name is not None and gold.name != answer.name:
        return False
    return _match(gold.pieces, answer.pieces, lambda a, b: _same_interval(a, b, symbolic))


def _same_interval(gold: Interval, answer: Interval, symbolic: Symbolic) -> bool:
    if (gold.left_closed, gold.right_closed) != (answer.left_closed, answer.right_closed):
        return False
    return all(
        a is b is None or (a is not None and b is not None and _same_leaf(a, b, symbolic))
        for a, b in ((gold.left, answer.left), (gold.right, answer.right))
    )


def _same_items(gold: Node, answer: Node, symbolic: Symbolic) -> bool:
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        return [len(row) for row in gold.rows] == [len(row) for row in answer.rows] and _in_order(
            _cells(gold), _cells(answer), symbolic
        )
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        # A column or row vector may be written as a tuple.
        matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
        is_vector = isinstance(matrix, Matrix) and (len(matrix.rows) == 1 or all(len(row) == 1 for row in matrix.rows))
        if not (is_vector and isinstance(other, Items) and other.brackets == "()"):
            return False
        return _in_order(_cells(gold), _cells(answer), symbolic)
    a, b = _cells(gold), _cells(answer)
    kinds = tuple(node.brackets if isinstance(node, Items) else "" for node in (gold, answer))
    if set(kinds) <= {"", "{}"} and (not _name_different_things(a) or _all_named(b)):
        return _match(a, b, lambda x, y: same(x, y, symbolic))
    if kinds[0] == kinds[1] or set(kinds) == {"()", ""} or kinds == ("", ""):
        return _in_order(a, b, symbolic)
    return False


def _cells(node: Node) -> Sequence[Node]:
    if isinstance(node, Matrix):
        return [cell for row in node.rows for cell in row]
    return node.items if isinstance(node, Items) else (node,)


def _name_different_things(items: Sequence[Node]) -> bool:
    """`x = 1, y = 2`, where the order of bare values matters; not `x = 1, x = 2`."""
    return len({item.name for item in items if isinstance(item, Relation)}) > 1


def _all_named(items: Sequence[Node]) -> bool:
    return all(isinstance(item, Relation) and item.name is not None for item in items)


def _in_order(gold: Sequence[Node], answer: Sequence[Node], symbolic: Symbolic) -> bool:
    return len(gold) == len(answer) and all(same(a, b, symbolic) for a, b in zip(gold, answer, strict=True))


def _match(gold: Sequence[T], answer: Sequence[T], equal: Callable[[T, T], bool]) -> bool:
    """One to one in any order."""
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for item in gold:
        found = next((i for i, other in enumerate(left) if equal(item, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_leaf(gold: Leaf, answer: Leaf, symbolic: Symbolic) -> bool:
    if gold.unit is not None and answer.unit is not None and gold.unit != answer.unit:
        return False
    if gold.spelling == answer.spelling:
        return True
    if gold.is_words or answer.is_words:
        return gold.spelling.casefold() == answer.spelling.casefold()
    if gold.value is not None and answer.value is not None:
        verdict = values.equal_as_written(gold.value, answer.value)
        if verdict is not None:
            return verdict
    return symbolic(gold.source, answer.source)
