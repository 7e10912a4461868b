"""Brings the many spellings of an answer (Unicode, fonts, spacing, synonyms) to one LaTeX spelling."""

from __future__ import annotations

import re
import unicodedata

from rlvr.verifiers.answers.values import UnreadableError

_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))

_SUPERSCRIPTS_FROM, _SUBSCRIPTS_FROM = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉"
_SUPERSCRIPTS = str.maketrans(_SUPERSCRIPTS_FROM, "0123456789+-n")
_SUBSCRIPTS = str.maketrans(_SUBSCRIPTS_FROM, "0123456789")
_FORBIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn"}

_SYMBOLS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∗": "*",
    "÷": r"\div ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "∞": r"\infty ",
    "°": r"\degree ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "∖": r"\setminus ",
    "ℝ": r"\mathbb{R}",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "⌊": r"\lfloor ",
    "⌋": r"\rfloor ",
    "⌈": r"\lceil ",
    "⌉": r"\rceil ",
    "∠": "",
    "′": "'",
    "¢": r"\text{ cents}",
    "€": r"\$",
    "£": r"\$",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
}
GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
_SYMBOLS |= {
    unicodedata.lookup(f"GREEK SMALL LETTER {'LAMDA' if name == 'lambda' else name.upper()}"): rf"\{name} "
    for name in GREEK.split()
}

_SPELLINGS = {
    "dfrac": r"\frac",
    "tfrac": r"\frac",
    "cfrac": r"\frac",
    "dbinom": r"\binom",
    "tbinom": r"\binom",
    "leq": r"\le",
    "leqslant": r"\le",
    "geq": r"\ge",
    "geqslant": r"\ge",
    "lt": "<",
    "gt": ">",
    "neq": r"\ne",
    "varnothing": r"\emptyset",
    "R": r"\mathbb{R}",
    "Reals": r"\mathbb{R}",
    "reals": r"\mathbb{R}",
    "bigcup": r"\cup",
    "times": r"\cdot",
    "ast": r"\cdot",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "lbrack": "[",
    "rbrack": "]",
    "lvert": "|",
    "rvert": "|",
    "vert": "|",
    "mid": "|",
    "degrees": r"\degree",
    "angle": "",
    "colon": ":",
    "varphi": r"\phi",
    "varepsilon": r"\epsilon",
    "imath": "i",
    "quad": " ",
    "qquad": " ",
    "thinspace": " ",
    "displaystyle": "",
    "textstyle": "",
    "limits": "",
    "boxed": "",
    "fbox": "",
    "rm": "",
    "bf": "",
    "it": "",
    "euro": r"\$",
    "pounds": r"\$",
    "arccos": r"\acos",
    "arcsin": r"\asin",
    "arctan": r"\atan",
    "backslash": r"\setminus",
}
_SPELLING = re.compile(r"\\(" + "|".join(sorted(_SPELLINGS, key=len, reverse=True)) + r")(?![A-Za-z])")

FUNCTIONS = (
    "sinh",
    "cosh",
    "tanh",
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "asin",
    "acos",
    "atan",
    "log",
    "ln",
    "exp",
)
_BARE_COMMANDS = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "infinity": "infty"} | {
    name: name for name in (*FUNCTIONS, "sqrt", "pi", "infty")
}
_BARE = re.compile(r"(?<![\\A-Za-z])(" + "|".join(sorted(_BARE_COMMANDS, key=len, reverse=True)) + r")(?![A-Za-z])")

_SIZES = re.compile(r"\\(?:left|right|middle)(?![A-Za-z])\s*\.?|\\[bB]igg?[lrm]?(?![A-Za-z])")
_FONTS = re.compile(
    r"\\(text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|math(?:rm|bf|it|sf|tt|cal)|operatorname\*?|emph|underline)\s*\{([^{}]*)\}"
)
_WORDS = re.compile(r"[A-Za-z](?:[A-Za-z .'-]*[A-Za-z.])?")
_SPACES = re.compile(r"(?<!\\)\\[,;:> \n]|~")
_MATH_MARKS = re.compile(r"(?<!\\)\\[()\[\]]|\*\*|(?<!\\)\$")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))")
_THOUSANDS_BY_SPACE = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d)")
_THOUSANDS_BY_COMMA = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)")
_THOUSANDS_BY_TIGHT_COMMA = re.compile(r"(?<=\d)\s*(?:,\s*\\[!,]|\{,\})\s*(?=\d{3}(?!\d))")
_MODULO = re.compile(
    r"\(?\s*(?:\\[pb]?mod|\\text\{\s*mod\s*\}|(?<![A-Za-z\\])mod)(?![A-Za-z])\s*\{?\s*(\w+)\s*\}?\s*\)?"
)
_ANY_INTEGER = re.compile(
    r"(?<=\S)\s*(?:[,;(]|\\text\{\s*(?:for|where)[a-z ]*\})\s*[A-Za-z]\s*\\in\s*\\mathbb\{Z\}\s*\)?\s*$"
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d{1,30})\}")


def normalize(text: str) -> str:
    """One LaTeX spelling of `text`; `\\text{...}` remains only around letters.

    Raises:
        UnreadableError: control characters, lone surrogates or direction marks: nobody writes an answer so.

    >>> normalize(r"$\\dfrac{1}{2}\\,\\mbox{ cm}$.")
    '\\\\frac {1}{2} \\\\text{cm}'
    >>> normalize("x² ≤ 10{,}000")
    'x^{2} \\\\le 10000'
    """
    text = _plain_unicode(text)
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)  # backslashes doubled by someone's escaping
    text = _MATH_MARKS.sub(" ", text.replace(r"\$", " "))
    text = _THOUSANDS_BY_TIGHT_COMMA.sub("", text).replace("{,}", ",").replace(r"\!", "")
    text = _SPACES.sub(" ", text)
    text = _SIZES.sub(" ", text)
    text = _FONTS.sub(_plain_font, text)
    text = re.sub(r"(?<![A-Za-z])m\s*(?=\\angle(?![A-Za-z]))", "", text)  # the measure of an angle
    text = _SPELLING.sub(lambda match: _SPELLINGS[match[1]] + " ", text).replace(r"\$", " ")
    text = _DEGREES.sub(r" \\degree ", text)
    text = _BARE.sub(lambda match: "\\" + _BARE_COMMANDS[match[1]] + " ", text)
    text = re.sub(r"(?<!\\)%", r"\\%", text)
    text = re.sub(r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\mathbb{\1}", text)
    text = _REPEATING.sub(_repeating_decimal, text)
    text = _MODULO.sub(r" \\pmod \1", text)
    if r"\pmod" in text:
        text = re.sub(r"\\equiv(?![A-Za-z])", "=", text)
    text = _ANY_INTEGER.sub("", text)
    text = re.sub(r"\s+", " ", text)
    text = _THOUSANDS_BY_SPACE.sub(lambda match: match[0].replace(" ", ""), text)
    return text.lstrip(" ,;:").rstrip(" .,;:")


def join_thousands(text: str) -> str:
    """`1,234` as one number, outside brackets; the caller keeps the reading as a list as well.

    >>> join_thousands("10,080"), join_thousands("(10,080)")
    ('10080', '(10,080)')
    """
    if re.search(r"[(\[]|\\\{", text):
        return text
    return _THOUSANDS_BY_COMMA.sub(lambda match: match[0].replace(",", ""), text)


def _plain_unicode(text: str) -> str:
    text = text.translate(_INVISIBLE)
    if text.isascii() and text.isprintable():
        return text
    text = re.sub(f"[{_SUPERSCRIPTS_FROM}]+", lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub(f"[{_SUBSCRIPTS_FROM}]+", lambda m: "_{" + m[0].translate(_SUBSCRIPTS) + "}", text)
    text = text.replace("√", r"\sqrt ")
    text = "".join(_SYMBOLS.get(character, character) for character in text)
    text = unicodedata.normalize("NFKC", text)
    for character in text:
        if unicodedata.category(character) in _FORBIDDEN_CATEGORIES and character not in "\n\t\r":
            raise UnreadableError(f"character U+{ord(character):04X}")
    return text


def _plain_font(match: re.Match[str]) -> str:
    """Digits and signs leave the command; a lone letter is a symbol in a mathematical font, a word in a text one."""
    command, content = match[1], match[2].strip()
    if content in _BARE_COMMANDS:
        return f"\\{_BARE_COMMANDS[content]} "
    if command.startswith("math") and len(match[2]) == 1:  # `\mathrm{ m}` is a unit
        return content
    return _WORDS.sub(lambda words: rf"\text{{{words[0]}}}", match[2])


def _repeating_decimal(match: re.Match[str]) -> str:
    whole, fixed, cycle = match[1] or "0", match[2], match[3]
    shift, nines = 10 ** len(fixed), 10 ** len(cycle) - 1
    numerator = int(whole + fixed) * nines + int(cycle)
    return rf"\frac{{{numerator}}}{{{nines * shift}}}"
