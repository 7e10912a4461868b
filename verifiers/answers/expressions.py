"""Evaluates normalised LaTeX of elementary mathematics while reading it, without sympy.

Numbers, symbols (one letter each, or a Greek name, with subscripts), + - * / ^ !, juxtaposition, mixed numbers,
fractions, roots, binomials, absolute value, floor and ceiling, elementary functions, percent and degree signs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from rlvr.verifiers.answers import values
from rlvr.verifiers.answers.normalize import FUNCTIONS, GREEK
from rlvr.verifiers.answers.values import MP, TooLargeError, UnreadableError, Value

MAX_DEPTH = 40
"""Nesting beyond which nothing is read: Python's own stack is the limit otherwise."""

_TOKEN = re.compile(
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,7}(?![\w.]))?)|(?P<command>\\(?:[A-Za-z]+|.))"
    r"|(?P<letter>[A-Za-z]'*)|(?P<mark>\S)"
)
_ACCENTS = {r"\overline", r"\bar", r"\vec", r"\hat", r"\tilde"}
_MORE_SYMBOLS = "ell hbar Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
_SYMBOLS = {rf"\{name}" for name in [*GREEK.split(), *_MORE_SYMBOLS.split()]} - {r"\pi"}
_FUNCTIONS = {rf"\{name}" for name in FUNCTIONS}
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan"}
_GROUPS = {"(": ")", "{": "}", "[": "]", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_FACTOR_STARTS = {"(", "{", "[", r"\lfloor", r"\lceil", r"\frac", r"\sqrt", r"\binom", r"\pi"} | _SYMBOLS | _ACCENTS


@lru_cache(maxsize=8192)
def evaluate(text: str) -> Value:
    r"""The value of a normalised expression.

    Raises:
        UnreadableError: not such an expression, or undefined.
        TooLargeError: too deep or too big.

    >>> evaluate(r"2\frac{1}{3}").exact
    Fraction(7, 3)
    >>> evaluate(r"\sqrt{12}") == evaluate(r"12^{1/2}")
    True
    """
    parser = _Parser(text)
    value = parser.sum()
    if parser.token:
        raise UnreadableError(f"unexpected {parser.token!r}")
    return value


class _Parser:
    """Recursive descent; `token` is the one being looked at, empty at the end."""

    def __init__(self, text: str) -> None:
        matches = list(_TOKEN.finditer(text))
        self.tokens = [match.group() for match in matches] + [""]
        self.kinds = [match.lastgroup for match in matches] + ["end"]
        self.starts = [match.start() for match in matches] + [len(text)]
        self.position = 0
        self.depth = 0
        self.bars = 0

    @property
    def token(self) -> str:
        return self.tokens[self.position]

    @property
    def kind(self) -> str | None:
        return self.kinds[self.position]

    def take(self) -> str:
        token = self.token
        if not token:
            raise UnreadableError("incomplete")
        self.position += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise UnreadableError(f"missing {token!r}")

    def signs(self) -> bool:
        """Skips signs; True when they negate."""
        negative = False
        while self.token in {"+", "-"}:
            negative ^= self.take() == "-"
        return negative

    def sum(self) -> Value:
        total = self.signed_term()
        while self.token in {"+", "-"}:
            total = values.add(total, self.signed_term())
        return total

    def signed_term(self) -> Value:
        negative = self.signs()
        term = self.term()
        return values.negate(term) if negative else term

    def term(self) -> Value:
        product = self.factor()
        while True:
            if self.token in {"*", r"\cdot"}:
                self.take()
                product = values.multiply(product, self.signed_factor())
            elif self.token in {"/", r"\div"}:
                self.take()
                product = values.divide(product, self.signed_factor())
            elif self.starts_factor():
                product = values.multiply(product, self.factor())
            else:
                return product

    def signed_factor(self) -> Value:
        negative = self.signs()
        factor = self.factor()
        return values.negate(factor) if negative else factor

    def starts_factor(self) -> bool:
        if self.kind == "number":
            return self.kinds[self.position - 1] != "number"  # "4 2" is not a product
        if self.token == "|":
            return self.bars == 0
        return self.kind == "letter" or self.token in _FACTOR_STARTS or self.token in _FUNCTIONS

    def factor(self) -> Value:
        base = self.primary()
        while True:
            if self.token == "^":
                self.take()
                base = values.power(base, self.exponent())
            elif self.token == "!":
                self.take()
                base = values.factorial(base)
            elif self.token == r"\%":
                self.take()
                base = replace(values.divide(base, values.rational(100)), is_percent=True)
            elif self.token == r"\degree":
                self.take()
                base = replace(base, is_degree=True)
            else:
                return base

    def exponent(self) -> Value:
        negative = self.signs()
        exponent = self.primary()
        if self.token == "^":
            self.take()
            self.depth += 1
            exponent = values.power(exponent, self.exponent())
            self.depth -= 1
        return values.negate(exponent) if negative else exponent

    def primary(self) -> Value:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLargeError("nesting")
        value = self.unguarded_primary()
        self.depth -= 1
        return value

    def unguarded_primary(self) -> Value:
        kind, token = self.kind, self.take()
        if kind == "number":
            return self.number(token)
        if kind == "letter":
            return self.letters(token)
        if token in _GROUPS:
            return self.group(token)
        if token == "|":
            self.bars += 1
            inside = self.sum()
            self.bars -= 1
            self.expect("|")
            return values.absolute(inside)
        if token in _FUNCTIONS:
            return self.function(token[1:])
        return self.command(token)

    def command(self, token: str) -> Value:
        if token == r"\frac":
            return values.divide(self.argument(), self.argument())
        if token == r"\binom":
            return values.binomial(self.argument(), self.argument())
        if token == r"\sqrt":
            degree = values.rational(2)
            if self.token == "[":
                self.take()
                degree = self.sum()
                self.expect("]")
            return values.root(self.primary(), degree)
        if token == r"\pi":
            return Value(None, (+MP.pi,))
        if token in _SYMBOLS:
            return values.symbol(token + self.subscript())
        if token in _ACCENTS:
            return values.symbol(token + self.raw_argument())
        raise UnreadableError(f"unexpected {token!r}")

    def group(self, opening: str) -> Value:
        bars, self.bars = self.bars, 0
        inside = self.sum()
        self.bars = bars
        self.expect(_GROUPS[opening])
        if opening in {r"\lfloor", r"\lceil"}:
            return values.rounded(inside, opening[2:])
        return inside

    def argument(self) -> Value:
        """Of \\frac and \\binom: a group, or one digit or symbol as in `\\frac12`."""
        if self.kind == "number" and len(self.token) > 1:
            if not self.token.isdigit():
                raise UnreadableError("a decimal without braces")
            digit, rest = self.token[0], self.token[1:]
            self.tokens[self.position] = rest
            return values.rational(int(digit))
        return self.signed_primary()

    def signed_primary(self) -> Value:
        negative = self.signs()
        value = self.primary()
        return values.negate(value) if negative else value

    def number(self, token: str) -> Value:
        if self.token == "_":
            raise UnreadableError("a numeral in another base")
        if token.isdigit():
            return values.rational(int(token) + (self.fraction_part() or 0))
        mantissa, _, exponent = token.lower().partition("e")
        shift = int(exponent or 0)
        if abs(shift) > values.MAX_BITS // 4:
            raise TooLargeError("exponent")
        decimals = len(mantissa.partition(".")[2])
        last_place = Fraction(10) ** (shift - decimals)
        digits = mantissa.replace(".", "").lstrip("0")
        number = Fraction(int(digits or 0)) * last_place
        return Value(number, last_place=last_place, significant_digits=len(digits))

    def fraction_part(self) -> Fraction | None:
        """Of a mixed number: `\\frac{1}{3}`, `\\frac13` or ` 1/3` right after a whole number, and below one."""
        text = " ".join(self.tokens[self.position : self.position + 7])
        match = re.match(r"\\frac \{ (\d+) \} \{ (\d+) \}|\\frac (\d)(\d)(?= |$)|(\d+) / (\d+)(?= |$)", text)
        if match is None:
            return None
        top, bottom = (int(group) for group in match.groups() if group is not None)
        if not 0 < top < bottom:
            return None
        self.position += 7 if match[1] else 2 if match[3] else 3
        return Fraction(top, bottom)

    def letters(self, token: str) -> Value:
        run = self.position
        while self.kinds[run] == "letter" and self.starts[run] == self.starts[run - 1] + len(self.tokens[run - 1]):
            run += 1
        if run - self.position >= 3:
            raise UnreadableError("a word")
        subscript = self.subscript()
        if token == "e" and not subscript:
            return Value(None, (+MP.e,))
        if token == "i" and not subscript:
            return Value(None, (MP.mpc(0, 1),))
        return values.symbol(token + subscript)

    def subscript(self) -> str:
        if self.token != "_":
            return ""
        self.take()
        return "_" + self.raw_argument()

    def raw_argument(self) -> str:
        if self.token != "{":
            return self.take()
        self.take()
        tokens: list[str] = []
        while self.token != "}":
            if self.token == "{":
                raise UnreadableError("nested subscript")
            tokens.append(self.take())
        self.take()
        return "".join(tokens)

    def function(self, name: str) -> Value:
        base = None
        if name == "log" and self.token == "_":
            self.take()
            base = self.argument()
        exponent = None
        if self.token == "^":
            self.take()
            exponent = self.exponent()
            if exponent.exact == -1 and name in _INVERSES:
                name, exponent = _INVERSES[name], None
        argument = self.function_argument()
        if name in {"log", "ln"}:
            result = values.logarithm(argument, base)
        elif name == "exp":
            result = values.exponential(argument)
        else:
            result = values.function(name, argument)
        return result if exponent is None else values.power(result, exponent)

    def function_argument(self) -> Value:
        """A bracketed group, or the product that follows up to an operator or another function."""
        if self.token in _GROUPS:
            return self.primary()
        argument = self.factor()
        while self.starts_factor() and self.token not in _FUNCTIONS:
            argument = replace(values.multiply(argument, self.factor()), is_degree=argument.is_degree)
        return argument
