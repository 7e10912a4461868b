"""Evaluation against Python's own exact arithmetic, and its bounds."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlvr.verifiers.answers import values
from rlvr.verifiers.answers.expressions import evaluate
from rlvr.verifiers.answers.values import TooLargeError, UndefinedError, UnreadableError

numbers = st.integers(0, 50).map(lambda n: (str(n), Fraction(n)))


def combined(parts):
    """A bigger expression: (its LaTeX, its value worked out with fractions)."""

    def join(operator, left, right):
        (a, x), (b, y) = left, right
        if operator == "+":
            return rf"({a}+{b})", x + y
        if operator == "-":
            return rf"({a}-{b})", x - y
        if operator == "*":
            return rf"{a} \cdot {b}", x * y
        if operator == "power":
            return rf"({a})^{{2}}", x * x
        return rf"\frac{{{a}}}{{{b}}}", (x / y if y else None)

    return st.builds(join, st.sampled_from(["+", "-", "*", "/", "power"]), parts, parts).filter(
        lambda pair: pair[1] is not None
    )


@given(st.recursive(numbers, combined, max_leaves=8))
def test_arithmetic_is_exact(expression):
    text, expected = expression
    assert evaluate(text).exact == expected


@given(a=st.integers(-99, 99), b=st.integers(-99, 99), c=st.integers(-99, 99))
def test_polynomials_are_told_apart_by_their_coefficients(a, b, c):
    factored = evaluate(rf"(x+({a}))(x+({b}))")
    assert values.equal(factored, evaluate(rf"x^2+({a + b})x+({a * b})")) is True
    assert values.equal(factored, evaluate(rf"x^2+({a + b})x+({c})")) is (c == a * b)


@given(st.integers(1, 10**6), st.integers(2, 10**6))
def test_mixed_numbers(whole, bottom):
    top = bottom - 1
    for text in (rf"{whole}\frac{{{top}}}{{{bottom}}}", f"{whole} {top}/{bottom}"):
        assert evaluate(text).exact == whole + Fraction(top, bottom)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=8, min_value=0, max_value=10**12))
def test_decimals(number):
    assert evaluate(f"{number:f}").exact == Fraction(number)


@given(st.fractions(min_value=-(10**30), max_value=10**30), st.fractions(min_value=-(10**30), max_value=10**30))
def test_different_rationals_are_never_equal(a, b):
    assume(a != b)
    assert values.equal(evaluate(f"({a})"), evaluate(f"({b})")) is False


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"-x^2", r"-(x^2)"),
        ("2^10", "1024"),
        (r"\frac12", "0.5"),
        (r"\frac12x", r"\frac{x}{2}"),
        (r"\sqrt12", r"2\sqrt{3}"),
        (r"\sqrt[3]{-8}", "-2"),
        (r"\sin^2 x+\cos^2 x", "1"),
        (r"\sin^{-1}1", r"\frac{\pi}{2}"),
        (r"\sin 30\degree", "0.5"),
        (r"\log_2 8", "3"),
        (r"\ln e^5", "5"),
        ("5!", "120"),
        (r"\binom{10}{3}", "120"),
        (r"|3-5|", "2"),
        (r"2|x|", r"|2x|"),
        (r"\lfloor -1.5 \rfloor", "-2"),
        ("i^2", "-1"),
        (r"e^{i\pi}", "-1"),
        ("3e2", "300"),
        ("50\\%", "0.5"),
        ("n!", r"n \cdot (n-1)!"),
    ],
)
def test_readings(text, same):
    assert values.equal(evaluate(text), evaluate(same)) is True


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("2^{-99}", "2^{-98}"),
        ("e^{-100}", "e^{-101}"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        ("10^{20}", "10^{20}+1"),
        (r"\sqrt{10^{20}}", r"\sqrt{10^{20}+1}"),
        ("2^{10^9}", "2^{10^9+1}"),
        ("e^{-1000}", "0"),
        (r"\lfloor n/2 \rfloor", r"\lfloor n/3 \rfloor"),
        ("x", "y"),
        ("x_1", "x_2"),
        (r"\sqrt{x^2}", "-x"),
    ],
)
def test_close_is_not_equal(a, b):
    assert values.equal(evaluate(a), evaluate(b)) is not True


def test_what_holds_for_positive_symbols_only_is_left_open():
    assert values.equal(evaluate(r"\sqrt{x^2}"), evaluate("x")) is None


def test_decimals_with_six_places_stand_for_what_they_round():
    def alike(a, b):
        return values.equal_as_written(evaluate(a), evaluate(b))

    assert alike("0.333333", r"\frac13")
    assert alike(r"\pi", "3.141593")
    assert not alike(r"\pi", "3.14159")
    assert not alike("2", "1.999999")
    assert not alike("0.000000", r"10^{-9}")


@pytest.mark.parametrize("text", ["1/0", r"\frac{1}{0}", r"0^{-1}", r"(-3)!", r"\ln 0"])
def test_undefined(text):
    with pytest.raises(UndefinedError):
        evaluate(text)


@pytest.mark.parametrize(
    "text", ["", "1+", "(1", "1)", "1 2", "5_3", "word", r"\text{x}", r"\foo", "^2", r"\frac1", "|1", "<"]
)
def test_unreadable(text):
    with pytest.raises(UnreadableError):
        evaluate(text)


@pytest.mark.parametrize(
    "text",
    ["9^{9^{9^{9}}}", r"((10^{10})!)!", "(" * 100 + "1" + ")" * 100, r"\sqrt" * 200 + "2", "1e9999999", "5!!!!!!!"],
)
def test_too_large(text):
    with pytest.raises(TooLargeError):
        evaluate(text)
