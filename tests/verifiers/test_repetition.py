"""The repetition penalty: repeated n-grams and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.verifiers.base import Case
from rlvr.verifiers.repetition import Repetition, repeated_share


def penalty(response, **options):
    return Repetition(**options)(Case(response, None)).reward


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("", 0.0),
        ("a b", 0.0),
        ("a b c d e f", 0.0),
        ("a b c a b c", -1 / 4),
        ("A b c, a B c,", -1 / 3),
        ("a a a a a a", -3 / 4),
        ("好好好好好好", -3 / 4),
    ],
)
def test_share_of_repeated_trigrams(response, expected):
    assert penalty(response, ngram=3) == pytest.approx(expected)


def test_scale_and_free_share():
    assert penalty("a b c a b c", ngram=3, max_penalty=0.2) == pytest.approx(-0.05)
    assert penalty("a b c a b c", ngram=3, free_share=0.25) == 0.0


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_the_share_is_that_of_n_grams_seen_before(numbers, n):
    tokens = [str(number) for number in numbers]
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    again = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repeated_share(tokens, n) == pytest.approx(again / len(grams) if grams else 0.0)


@given(st.integers(2, 20))
def test_the_more_often_a_passage_comes_the_larger_the_penalty(times):
    passage = "so we add them and look at the sum again "
    assert penalty(passage * (times + 1), ngram=5) < penalty(passage * times, ngram=5) < 0
