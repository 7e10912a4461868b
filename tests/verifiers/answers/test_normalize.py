"""One spelling for all."""

import pytest

from rlvr.verifiers.answers.normalize import join_thousands, normalize
from rlvr.verifiers.answers.values import UnreadableError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$\dfrac{1}{2}$", r"\frac {1}{2}"),
        (r"\( \left( 3, \frac{\pi}{2} \right) \)", r"( 3, \frac{\pi}{2} )"),
        (r"10,\!080", "10080"),
        (r"10{,}080", "10080"),
        ("10 080", "10080"),
        ("1 2", "1 2"),
        ("123 45", "123 45"),
        (r"90^{\circ}", r"90 \degree"),
        ("90°", r"90\degree"),
        (r"\text{5 hours}", r"5 \text{hours}"),
        (r"\mathrm{e}", "e"),
        (r"\text{C}", r"\text{C}"),
        (r"\operatorname{arcsin} x", r"\asin x"),
        ("x² + x₁₀", "x^{2} + x_{10}"),
        ("√2", r"\sqrt 2"),
        ("0.\\overline{3}", r"\frac{3}{9}"),
        ("1.2\\overline{34}", r"\frac{1222}{990}"),
        ("2\\\\frac{1}{3}", r"2\frac{1}{3}"),
        (".5.", ".5"),
        ("4\u200b2", "42"),
        ("４２", "42"),
    ],
)
def test_spellings(text, expected):
    assert normalize(text) == expected


@pytest.mark.parametrize("text", ["4\x002", "\ud800", "4\u202e2", "\x1b[31m42", "\ue000"])
def test_what_nobody_writes_is_refused(text):
    with pytest.raises(UnreadableError):
        normalize(text)


def test_thousands_are_joined_outside_brackets_only():
    assert join_thousands("1,234,567.5") == "1234567.5"
    assert join_thousands("1,23") == "1,23"
    assert join_thousands("(1,234)") == "(1,234)"
