"""Structures compared part by part; the labelled table is run in test_math.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.verifiers.answers.compare import same
from rlvr.verifiers.answers.normalize import normalize
from rlvr.verifiers.answers.structures import Items, Matrix, Region, Relation, read, readings
from rlvr.verifiers.answers.values import TooLargeError, UnreadableError

LE, GE = r"\le", r"\ge"
FLIPPED = {"<": ">", LE: GE}


def never(gold, answer):
    raise AssertionError(f"sympy was asked about {gold} and {answer}")


def alike(gold, answer):
    return any(same(a, b, never) for a in readings(normalize(gold)) for b in readings(normalize(answer)))


integers = st.lists(st.integers(-99, 99), min_size=2, max_size=6)


@given(items=integers, data=st.data())
def test_lists_and_sets_in_any_order_tuples_in_theirs(items, data):
    shuffled = data.draw(st.permutations(items))
    text, other = ", ".join(map(str, items)), ", ".join(map(str, shuffled))
    assert alike(text, other)
    assert alike(rf"\{{{text}\}}", rf"\{{{other}\}}")
    assert alike(f"({text})", f"({other})") == (items == shuffled)


@given(items=integers, position=st.integers(0, 5), change=st.integers(1, 9))
def test_one_changed_item_is_seen(items, position, change):
    changed = list(items)
    changed[position % len(items)] += 1000 * change
    assert not alike(", ".join(map(str, items)), ", ".join(map(str, changed)))


@given(a=st.integers(-50, 50), width=st.integers(1, 50), left=st.booleans(), right=st.booleans())
def test_intervals_and_inequalities_are_one_thing(a, width, left, right):
    b = a + width
    below, above = (LE if left else "<"), (LE if right else "<")
    interval = f"{'[' if left else '('}{a},{b}{']' if right else ')'}"
    inequality = f"{a} {below} x {above} {b}"
    flipped = f"{b} {FLIPPED[above]} x {FLIPPED[below]} {a}"
    assert alike(interval, inequality)
    assert alike(inequality, interval)
    assert alike(inequality, flipped)
    assert not alike(interval, f"{a} {'<' if left else LE} x {above} {b}")


@given(a=st.integers(1, 9), b=st.integers(-9, 9), c=st.integers(-9, 9), k=st.integers(2, 5))
def test_multiples_of_an_equation_are_the_same_line(a, b, c, k):
    line = f"{a}x+({b})y={c}"
    assert alike(line, f"{k * a}x+({k * b})y={k * c}")
    assert alike(line, f"{-a}x-({b})y={-c}")
    assert not alike(line, f"{a}x+({b})y={c + 1}")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1,2", Items),
        ("(1,2)", Items),
        (r"\{1\}", Items),
        ("x<1", Region),
        (r"(1,2)\cup(3,4)", Region),
        (r"\emptyset", Region),
        ("x=1", Relation),
        ("x+y<1", Relation),
        (r"\begin{pmatrix}1&2\end{pmatrix}", Matrix),
    ],
)
def test_shapes(text, kind):
    assert isinstance(read(normalize(text)), kind)


@pytest.mark.parametrize("text", ["(1", "1)", "{1", r"\{1", "((1)", ")(", ""])
def test_brackets_that_do_not_match(text):
    with pytest.raises(UnreadableError):
        list(readings(text))


@pytest.mark.parametrize("text", ["(" * 60 + "1" + ")" * 60, ",".join("1" * 300)])
def test_too_deep_or_too_many(text):
    with pytest.raises(TooLargeError):
        list(readings(text))


_PIECES = r"""
\frac \sqrt \binom { } ( ) [ ] \{ \} | ^ _ ! + - * / = < > \le \ne \in \cup , ; : 1 42 0 .5 1e9 x y e i \pi \infty
\sin \log \ln \exp \lfloor \rfloor \pm \cdot \% ° \text{cm} \text{or} \begin{pmatrix} \end{pmatrix} & \\ \sum
\mathbb{R} \setminus \emptyset \langle \rangle \overline A \approx ' \left \right or and √ ² ½ ∪
"""
PIECES = _PIECES.split()


@given(st.lists(st.sampled_from([*PIECES, " "]), max_size=40).map("".join))
def test_any_text_is_read_or_refused(text):
    try:
        nodes = list(readings(normalize(text)))
    except (UnreadableError, TooLargeError):
        return
    for node in nodes:
        same(node, node, lambda a, b: False)
