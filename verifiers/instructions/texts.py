"""Words, sentences, scripts and the language of a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

SCRIPTS: Mapping[str, frozenset[str]] = {
    code: frozenset(scripts.split())
    for codes, scripts in {
        "af ca cs cy da de en es et fi fr hr hu id it lt lv nl no pl pt ro sk sl so sq sv sw tl tr vi": "LATIN",
        "bg mk ru uk": "CYRILLIC",
        "ar fa ur": "ARABIC",
        "hi mr ne": "DEVANAGARI",
        "zh": "CJK",
        "ja": "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA",
        "ko": "HANGUL",
        "el": "GREEK",
        "he": "HEBREW",
        "th": "THAI",
        "bn": "BENGALI",
        "gu": "GUJARATI",
        "kn": "KANNADA",
        "ml": "MALAYALAM",
        "pa": "GURMUKHI",
        "ta": "TAMIL",
        "te": "TELUGU",
    }.items()
    for code in codes.split()
}
"""ISO 639-1 code -> the first words of its letters' Unicode names."""

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+(?:[-'’]\w+)*")
_SENTENCE_END = re.compile(r"(?<![.!?।])[.!?।]++[\"'”’)\]*_]*+(?=\s|$)|(?<=[。！？])")
_LAST_WORD = re.compile(r"[\w.]+$")
_TITLE = re.compile(r"mrs?|ms|dr|prof|st|vs|e\.g|i\.e|cf|fig|gen|rep|sen|gov|capt|lt|approx", re.IGNORECASE)
_ABBREVIATION = re.compile(r"etc|al|inc|ltd|co|corp|[js]r|[ap]\.m|u\.[sk]|jan|feb|aug|sept|oct|nov|dec", re.IGNORECASE)


def count_words(text: str) -> int:
    """Runs of letters, digits and underscores, as IFEval counts them: `don't` is two."""
    return len(_WORD.findall(text))


def count_capital_words(text: str) -> int:
    """Words without a small letter, hyphens and apostrophes within a word included.

    >>> count_capital_words("A NASA-funded TEST, it's I'M")
    3
    """
    return sum(word.isupper() for word in _TOKEN.findall(text))


def count_sentences(text: str) -> int:
    """Sentences by their closing marks; a last one may lack its own. Abbreviations and initials close none.

    >>> count_sentences("Dr. Who paid $3.50, e.g. at 5 p.m. on Monday! Did he? Yes")
    3
    """
    count, start = 0, 0
    for match in _SENTENCE_END.finditer(text):
        before, after = text[max(start, match.start() - 20) : match.start()], text[match.end() : match.end() + 2]
        if match[0] == "." and _is_abbreviation(before, after.lstrip()):
            continue
        count += bool(_WORD.search(text, start, match.end()))
        start = match.end()
    return count + bool(_WORD.search(text, start))


def _is_abbreviation(before: str, after: str) -> bool:
    """Whether a full stop belongs to the word before it: a title, an initial, a list's number, or `etc.` in midst."""
    match = _LAST_WORD.search(before)
    if match is None:
        return False
    word, line = match[0], before[: match.start()].rpartition("\n")[2]
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    is_list_number = word.isdecimal() and not line.strip()
    is_amid = _ABBREVIATION.fullmatch(word) is not None and not after[:1].isupper()
    return _TITLE.fullmatch(word) is not None or is_initial or is_list_number or is_amid


@lru_cache(maxsize=65536)
def script(letter: str) -> str:
    """First word of a letter's Unicode name: LATIN, CJK, CYRILLIC..."""
    return unicodedata.name(letter, "").partition(" ")[0]


def script_share(text: str, language: str) -> float | None:
    """Share of the letters that belong to the language's scripts; None without a letter.

    >>> script_share("x = 4 值", "en")
    0.5
    """
    letters = [character for character in text if character.isalpha()]
    if not letters:
        return None
    return sum(script(letter) in SCRIPTS[language] for letter in letters) / len(letters)


def is_in_language(text: str, language: str) -> bool:
    """Whether langdetect takes the text for this language (ISO 639-1), seeded; a text without letters passes."""
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0
    try:
        found: str = detect(text)
    except LangDetectException:
        return True
    return found.partition("-")[0] == language.partition("-")[0]
