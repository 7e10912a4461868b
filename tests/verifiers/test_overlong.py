"""DAPO's soft overlong punishment against the paper's formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.validation import validate
from rlvr.verifiers.base import Case
from rlvr.verifiers.overlong import Overlong, overlong_penalty

lengths = st.integers(1, 30_000)


@pytest.mark.parametrize(
    ("num_tokens", "penalty"), [(1, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (20481, -1.0), (10**6, -1.0)]
)
def test_the_papers_setting(num_tokens, penalty):
    assert overlong_penalty(num_tokens, 20480, 4096) == penalty


@given(num_tokens=lengths, max_tokens=lengths, share=st.floats(0, 1))
def test_continuous_non_increasing_and_between_minus_one_and_zero(num_tokens, max_tokens, share):
    cache = int(share * max_tokens)
    here, next_one = (overlong_penalty(n, max_tokens, cache) for n in (num_tokens, num_tokens + 1))
    assert -1.0 <= next_one <= here <= 0.0
    if cache:
        assert here - next_one <= 1 / cache + 1e-12


@given(num_tokens=lengths, max_tokens=lengths)
def test_without_a_cache_it_is_all_or_nothing(num_tokens, max_tokens):
    assert overlong_penalty(num_tokens, max_tokens, 0) == (0.0 if num_tokens <= max_tokens else -1.0)


def test_the_cache_is_a_fifth_unless_given():
    case = Case("", None, num_tokens=90)
    assert Overlong(max_tokens=100)(case).reward == Overlong(max_tokens=100, cache_tokens=20)(case).reward == -0.5


def test_an_unknown_length_is_a_fault():
    assert Overlong()(Case("", None)).status == "error"


@pytest.mark.parametrize(
    "options", [{"max_tokens": 10, "cache_tokens": 11}, {"max_tokens": 0}, {"cache_tokens": -1}, {"max_tokens": 1.5}]
)
def test_impossible_options(options):
    with pytest.raises(ConfigError, match="tokens"):
        validate(Overlong, options, "verifier.overlong")
