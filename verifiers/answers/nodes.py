"""The shapes an answer may have: lists, tuples, sets, intervals, unions, matrices, relations, around leaves."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.verifiers.answers.leaves import Leaf


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
    is_label: bool = False
    """Whether the left side, though no name, only says what the right one is: `m+n`, `f(3)`, `|AB|`, `[ABC]`."""


Node = Leaf | Items | Region | Matrix | Relation
