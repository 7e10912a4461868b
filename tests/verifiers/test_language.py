"""Language consistency: letters of the target script, prose alone."""

import pytest
from languages import SENTENCES

from rlvr.errors import ConfigError
from rlvr.verifiers.base import Case
from rlvr.verifiers.instructions.texts import is_in_language, script_share
from rlvr.verifiers.language import Language
from rlvr.verifiers.registry import build


def share(response, **options):
    return Language(**options)(Case(response, None)).reward


@pytest.mark.parametrize(
    ("response", "language", "expected"),
    [
        ("All of it is here.", "en", 1.0),
        ("ab 数学", "en", 0.5),
        ("ab 数学", "zh", 0.5),
        ("<think>先加后乘</think>答案是 $x+y$，\\(ab\\) \\[cd\\] \\boxed{4} `code`", "zh", 1.0),
        ("```python\nprint(1)\n```好", "zh", 1.0),
        ("Привет", "ru", 1.0),
        ("Привет", "en", 0.0),
        ("1 + 1 = 2", "zh", 1.0),
        ("", "en", 1.0),
    ],
)
def test_share_of_letters(response, language, expected):
    assert share(response, language=language) == expected


def test_a_share_below_the_least_earns_nothing():
    assert share("ab 数学", least=0.6) == 0.0
    assert share("ab 数学", least=0.5) == 0.5


def test_an_unknown_language_is_refused():
    with pytest.raises(ConfigError, match=r"language='xx' is not known; known: .*zh"):
        build({"language": {"language": "xx"}})


def test_long_responses_are_quick():
    for text in ("$", "`", "<", "\\(", "```", "\\a", "<a"):
        share(text * 50_000)


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_is_in_its_own_language_and_in_no_other(code):
    assert is_in_language(SENTENCES[code], code)
    assert not is_in_language(SENTENCES[code], "de" if code != "de" else "en")
    assert script_share(SENTENCES[code], code) == 1.0
