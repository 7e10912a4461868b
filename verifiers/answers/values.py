"""Numbers that answers evaluate to: exact fractions where possible, else 100-digit values at fixed points.

A symbol stands for fixed values at three points, so that two expressions are equal when they agree at all of them
(identity testing by evaluation, Schwartz 1980 and Zippel 1979). Nothing here is slow for any input: what would be
raises `TooLarge`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mpmath import MPContext  # type: ignore[import-untyped]

MP = MPContext()  # a context of our own: mpmath's global one belongs to sympy
MP.dps = 100

MAX_BITS = 100_000
"""Largest numerator or denominator kept exact."""
MAX_FACTORIAL = 5000
"""Largest n whose factorial is exact."""
MAX_MAGNITUDE = 10**12
"""Largest argument of exp, of a factorial, or exponent of a power."""
SIXTH_PLACE = Fraction(1, 10**6)
CANCELLED = MP.mpf(10) ** -80
"""A sum this much smaller than its largest term is zero."""

Number = Any
"""mpmath's mpf or mpc; mpmath has no type hints."""


class UnreadableError(ValueError):
    """The text is not an expression this package evaluates."""


class UndefinedError(UnreadableError):
    """An expression without a value: a division by zero."""


class TooLargeError(ValueError):
    """Evaluating the text would take more time or memory than an answer is worth."""


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression evaluates to, with the notation of a bare number."""

    exact: Fraction | None
    """Its exact value, when it is rational and small enough."""
    numeric: tuple[Number, ...] = ()
    """Its value at each point (one entry when it holds no symbol); empty when `exact` is set."""
    last_place: Fraction = Fraction(1)
    """Unit of the last decimal of a bare decimal numeral."""
    significant_digits: int = 0
    """Of a bare decimal numeral."""
    is_percent: bool = False
    is_degree: bool = False

    @property
    def points(self) -> tuple[Number, ...]:
        if self.exact is None:
            return self.numeric
        return (MP.mpf(self.exact.numerator) / self.exact.denominator,)

    @property
    def is_constant(self) -> bool:
        return self.exact is not None or len(self.numeric) == 1


def rational(number: Fraction | int) -> Value:
    """An exact value, or its 100 digits when it is too long to go on with."""
    fraction = Fraction(number)
    if max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) > MAX_BITS:
        return Value(None, (MP.mpf(fraction.numerator) / fraction.denominator,))
    return Value(fraction)


@lru_cache(maxsize=512)
def symbol(name: str) -> Value:
    """One positive point, one of either sign, one negative, fixed by the name."""
    digest = hashlib.blake2b(name.encode(), digest_size=48).digest()
    first, second, third = (MP.mpf(int.from_bytes(digest[i : i + 16], "big")) / MP.mpf(2) ** 128 for i in (0, 16, 32))
    sign = 1 if digest[0] & 1 else -1
    return Value(None, (first * 3 + MP.mpf("0.3"), sign * (second * 40 + 5), -third * 4 - MP.mpf("0.2")))


def unknown_function(name: str, argument: Value) -> Value:
    """A function without identities of its own: equal arguments give equal values, others do not."""
    shift = symbol(name).numeric[0]
    return apply(lambda z: MP.sin(z * shift) + z * shift, argument)


def apply(function: Callable[..., Number], *arguments: Value) -> Value:
    """`function` at each point.

    Raises:
        UndefinedError: no value there (division by zero, logarithm of zero).
        TooLargeError: the result leaves all bounds.
    """
    columns = [argument.points for argument in arguments]
    length = max(len(column) for column in columns)
    rows = zip(*(column * length if len(column) == 1 else column for column in columns), strict=True)
    try:
        results = tuple(function(*row) for row in rows)
    except TooLargeError:
        raise
    except (ZeroDivisionError, ValueError, TypeError, ArithmeticError, MP.NoConvergence) as error:
        raise UndefinedError(str(error)) from None
    except MemoryError:
        raise TooLargeError("out of bounds") from None
    if any(not MP.isfinite(result) for result in results):
        raise UndefinedError("not finite")
    return Value(None, results)


def _sum(a: Number, b: Number) -> Number:
    total = a + b
    return MP.zero if abs(total) < CANCELLED * max(abs(a), abs(b)) else total


def add(a: Value, b: Value) -> Value:
    return rational(a.exact + b.exact) if a.exact is not None and b.exact is not None else apply(_sum, a, b)


def negate(a: Value) -> Value:
    """Keeps the notation: -0.5 is as much a decimal numeral as 0.5."""
    return replace(a, exact=None if a.exact is None else -a.exact, numeric=tuple(-z for z in a.numeric))


def multiply(a: Value, b: Value) -> Value:
    if a.exact is not None and b.exact is not None:
        return rational(a.exact * b.exact)
    return apply(lambda x, y: x * y, a, b)


def divide(a: Value, b: Value) -> Value:
    if b.exact == 0:
        raise UndefinedError("division by zero")
    if a.exact is not None and b.exact is not None:
        return rational(a.exact / b.exact)
    return apply(lambda x, y: x / y, a, b)


def power(base: Value, exponent: Value) -> Value:
    if base.exact is not None and exponent.exact is not None and exponent.exact.denominator == 1:
        whole = int(exponent.exact)
        if base.exact == 0 and whole < 0:
            raise UndefinedError("division by zero")
        bits = max(base.exact.numerator.bit_length(), base.exact.denominator.bit_length())
        if abs(whole) * bits <= MAX_BITS:
            return rational(base.exact**whole)
    return apply(_power, base, exponent)


def _power(base: Number, exponent: Number) -> Number:
    if base == 0:
        return MP.zero**exponent
    if abs(exponent) * max(1, abs(MP.mag(base))) > MAX_MAGNITUDE:
        raise TooLargeError("exponent")
    return _clean(MP.power(base, exponent))


def exponential(argument: Value) -> Value:
    return power(Value(None, (+MP.e,)), argument)


def factorial(argument: Value) -> Value:
    if argument.exact is not None:
        if argument.exact.denominator == 1 and 0 <= argument.exact <= MAX_FACTORIAL:
            return rational(math.factorial(int(argument.exact)))
        if argument.exact < 0:
            raise UndefinedError("factorial of a negative number")
    return apply(lambda z: MP.gamma(_bounded(z) + 1), argument)


def binomial(n: Value, k: Value) -> Value:
    if n.exact is not None and k.exact is not None and n.exact.denominator == k.exact.denominator == 1:
        if not 0 <= k.exact <= n.exact:
            return rational(0)
        if n.exact <= MAX_FACTORIAL:
            return rational(math.comb(int(n.exact), int(k.exact)))
    return divide(factorial(n), multiply(factorial(k), factorial(add(n, negate(k)))))


def root(radicand: Value, degree: Value) -> Value:
    """Principal root; exact when the radicand is a perfect power, real for odd roots of negative numbers."""
    if degree.exact is not None and degree.exact.denominator == 1 and 1 <= degree.exact <= 64:
        order = int(degree.exact)
        if radicand.exact is not None:
            exact = _exact_root(radicand.exact, order)
            if exact is not None:
                return rational(exact)
        if order % 2 and radicand.is_constant and MP.im(radicand.points[0]) == 0 and MP.re(radicand.points[0]) < 0:
            return negate(root(negate(radicand), degree))
    return power(radicand, divide(rational(1), degree))


def _exact_root(number: Fraction, order: int) -> Fraction | None:
    if number < 0 and order % 2 == 0:
        return None
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > 2000:
        return None
    top, bottom = _integer_root(abs(number.numerator), order), _integer_root(number.denominator, order)
    if top is None or bottom is None:
        return None
    return Fraction(-top if number < 0 else top, bottom)


def _integer_root(number: int, order: int) -> int | None:
    guess = math.isqrt(number) if order == 2 else int(MP.nint(MP.mpf(number) ** (MP.one / order)))
    return guess if guess**order == number else None


def absolute(argument: Value) -> Value:
    return rational(abs(argument.exact)) if argument.exact is not None else apply(abs, argument)


def rounded(argument: Value, name: str) -> Value:
    """`floor` or `ceil`: of a constant its value, of anything else a function without identities."""
    if argument.exact is not None:
        return rational(math.floor(argument.exact) if name == "floor" else math.ceil(argument.exact))
    if not argument.is_constant or MP.im(argument.points[0]) != 0:
        return unknown_function(name, argument)
    return apply(lambda z: getattr(MP, name)(_bounded(z)), argument)


def function(name: str, argument: Value) -> Value:
    """An elementary function by its mpmath name; degrees are turned into radians."""
    if argument.is_degree:
        argument = multiply(replace(argument, is_degree=False), Value(None, (MP.pi / 180,)))

    def at_point(z: Number) -> Number:
        result = getattr(MP, name)(_bounded(z))
        # cos(pi/2) leaves a rounding error; the sine of something tiny is truly tiny.
        return MP.zero if abs(result) < CANCELLED < abs(z) else _clean(result)

    return apply(at_point, argument)


def logarithm(argument: Value, base: Value | None) -> Value:
    natural = apply(lambda z: MP.log(z), argument)
    return natural if base is None else divide(natural, apply(lambda z: MP.log(z), base))


def _bounded(z: Number) -> Number:
    if abs(z) > MAX_MAGNITUDE:
        raise TooLargeError("argument")
    return z


def _clean(z: Number) -> Number:
    """Drops a real or imaginary part that is only the other's rounding error, as in e^(i pi)."""
    real, imaginary = MP.re(z), MP.im(z)
    if abs(imaginary) < CANCELLED * abs(real):
        return real
    return MP.mpc(MP.zero if abs(real) < CANCELLED * abs(imaginary) else real, imaginary)


def close(a: Number, b: Number) -> bool:
    """Equal to 70 digits, relative to the larger: 1/2^99 is not 1/2^98, and only zero is zero."""
    return bool(a == b or abs(a - b) <= MP.mpf(10) ** -70 * max(abs(a), abs(b)))


def equal(a: Value, b: Value) -> bool | None:
    """Equality of the mathematical values; None when they agree where symbols are positive only."""
    if a.exact is not None and b.exact is not None:
        return a.exact == b.exact
    left, right = a.points, b.points
    if len(left) != len(right):
        length = max(len(left), len(right))
        left, right = (p * length if len(p) == 1 else p for p in (left, right))
    agree = [close(x, y) for x, y in zip(left, right, strict=True)]
    if all(agree):
        return True
    return None if agree[0] else False


def equal_as_written(a: Value, b: Value) -> bool | None:
    """Equality that also grants what notation leaves open.

    A percentage equals the bare number before its sign (`50\\%`, `50`) as well as its value; a numeral with six or
    more decimals and significant digits equals what it is the rounded or cut form of (`0.333333`, `1/3`).
    """
    verdict = equal(a, b)
    if verdict is not False:
        return verdict
    if a.is_percent != b.is_percent:
        hundred = rational(100)
        return equal(multiply(a, hundred), b) if a.is_percent else equal(a, multiply(b, hundred))
    return any(
        x.significant_digits >= 6 and x.last_place <= SIXTH_PLACE and rounds_to(x, y) for x, y in ((a, b), (b, a))
    )


def rounds_to(numeral: Value, other: Value) -> bool:
    """Whether a numeral is within one unit of its last place of a real value: its rounded or cut form."""
    if not other.is_constant or MP.im(other.points[0]) != 0 or numeral.exact is None:
        return False
    if other.exact is not None:
        return abs(numeral.exact - other.exact) < numeral.last_place
    unit = MP.mpf(numeral.last_place.numerator) / numeral.last_place.denominator
    return bool(abs(numeral.points[0] - other.points[0]) < unit)
