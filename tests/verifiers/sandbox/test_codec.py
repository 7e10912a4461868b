"""Values survive the crossing or are refused; no message does more than make plain data."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.verifiers.sandbox import codec

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    hashable | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
        | st.tuples(inner)
    ),
    max_leaves=20,
)


def refuse(value):
    raise AssertionError(f"{value!r} was taken for an object of the program")


@given(values)
def test_values_come_back_as_they_went(value):
    back = codec.loads(codec.dumps(value, refuse), refuse)
    assert back == value
    assert repr(back) == repr(value) or isinstance(value, (set, frozenset, dict, list, tuple))


@given(st.integers(min_value=-(10**40), max_value=10**40))
def test_integers_are_exact(number):
    back = codec.loads(codec.dumps([number], refuse), refuse)
    assert back == [number]
    assert type(back[0]) is int


def test_subclasses_lose_their_behaviour():
    class Equal(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Words(list):
        def __eq__(self, other):
            return True

    back = codec.loads(codec.dumps([Equal(1), Words([2]), {Equal(3)}], refuse), refuse)
    assert [type(back[0]), type(back[1])] == [int, list]
    assert back[0] != 7
    assert back[1] != 7


def test_other_objects_are_numbered():
    kept = []

    def number(value):
        kept.append(value)
        return len(kept) - 1

    thing = object()
    data = codec.dumps([thing, (len,)], number)
    assert codec.loads(data, kept.__getitem__) == [thing, (len,)]
    first, _ = codec.loads(data, codec.Opaque)
    assert first != thing


@pytest.mark.parametrize(
    "message",
    [
        {"z": 1},
        {},
        {"t": [1], "s": [2]},
        {"s": [[1]]},
        {"d": [[[1], 2]]},
        {"d": [1]},
        {"y": "eval"},
        {"y": "__build_class__"},
        {"i": "x"},
        {"b": "zz"},
        {"r": [0, 10**15, 1]},
        {"r": [0, 1, 0]},
        {"n": "1e999999999"},
        {"n": "no"},
        {"c": [1, 2, 3]},
        {"o": "x"},
    ],
)
def test_what_is_no_value_is_refused(message):
    with pytest.raises((ValueError, TypeError, KeyError, ArithmeticError)):
        codec.loads(json.dumps(message).encode(), codec.Opaque)


def test_deep_nesting_is_refused():
    with pytest.raises(RecursionError):
        codec.loads(b"[" * 100_000 + b"]" * 100_000, codec.Opaque)
