"""Words, sentences, scripts and languages."""

import time

import pytest

from rlvr.verifiers.instructions.texts import (
    count_capital_words,
    count_sentences,
    count_words,
    script_share,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One", 1),
        ("One. Two! Three? Four", 4),
        ("Dr. Who met Mr. A. Smith at 5 p.m. on Monday.", 1),
        ("It cost $3.50, i.e. little. Wait... what?!", 3),
        ('He said: "No." Then he left.', 2),
        ("We left at 5 p.m. Then it rained.", 2),
        ("1. First one.\n2. Second one.", 2),
        ("Really?!?! Yes (so it is.) Good", 3),
        ("今天天气好。我们走吧！", 2),
        ("*** --- ...", 0),
    ],
)
def test_sentences(text, count):
    assert count_sentences(text) == count


def test_words():
    assert count_words("Don't stop: 3 well-known_ones.") == 6
    assert count_capital_words("NASA sent a CO2-free ROCKET; I'm A1 ok") == 3


def test_scripts():
    assert script_share("12 + 3", "en") is None
    assert script_share("ひらがな カタカナー 漢字", "ja") == 1.0
    assert script_share("ひらがな", "zh") == 0.0


@pytest.mark.parametrize("text", [".", "!?", "a. ", "A.", '."', "。", "\n", "1.\n"])
def test_long_texts_take_linear_time(text):
    started = time.process_time()
    count_sentences(text * 100_000)
    assert time.process_time() - started < 2.0
