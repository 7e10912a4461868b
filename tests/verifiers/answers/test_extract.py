"""Where the final answer is looked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.verifiers.answers.extract import after_mark, after_thinking, extract, last_box


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{42}", "42"),
        (r"\boxed {42}", "42"),
        (r"\fbox{42}", "42"),
        (r"\boxed{41} no, \boxed{42}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{x=\boxed{5}}", r"x=\boxed{5}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right."),
        (r"\boxed{41} and \boxed{42", "41"),
        (r"} \boxed{42} {", "42"),
        (r"\boxed{}", ""),
        (r"\boxed{42", None),
        (r"$\boxed 42$.", "42"),
        (r"\boxed 4.2", None),
        (r"\boxed x", None),
        ("boxed{42}", None),
        (r"\mboxed{42}", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_counts(text, expected):
    assert last_box(text) == expected


@given(st.lists(st.sampled_from(["{", "}", r"\boxed{", r"\{", "x", "\\"]), max_size=60).map("".join))
def test_a_box_found_is_balanced_and_stands_in_the_text(text):
    content = last_box(text)
    if content is not None:
        assert rf"{{{content}}}" in text
        plain = content.replace("\\\\", "").replace(r"\{", "").replace(r"\}", "")
        assert plain.count("{") == plain.count("}")


def test_a_hundred_thousand_open_boxes_are_read_in_one_pass():
    assert last_box(r"\boxed{" * 100_000 + "1}") == "1"


@pytest.mark.parametrize(
    ("text", "optional", "required", "searched"),
    [
        ("a", "a", None, "a"),
        ("<think>a</think>b", "b", "b", "<think>a</think>b"),
        ("a</think>b", "b", "b", "a</think>b"),
        ("<think>a", "", None, "<think>a"),
        ("a</think>b</think>c", "c", "c", "a</think>b</think>c"),
        ("a</think>b<think>c", "b", "b", "a</think>b<think>c"),
        ("a</think>", "", "", "a</think>"),
    ],
)
def test_reasoning_is_cut_off(text, optional, required, searched):
    assert after_thinking(text, "optional") == optional
    assert after_thinking(text, "required") == required
    assert after_thinking(text, "searched") == searched


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: 42", "42"),
        ("Answer: 41\nAnswer: 42", "42"),
        ("**Answer:** 42", "42"),
        ("**Answer: 42**", "42"),
        ("Answer:\n42\nThat is all.", "42"),
        ("Answer:\n\n42", None),
        ("Answer:", None),
        ("answer 42", None),
        ("#### 42", "42"),
    ],
)
def test_the_line_after_the_last_mark(text, expected):
    assert after_mark(text, ["Answer:", "####"]) == expected


def test_a_box_comes_before_a_mark_and_a_mark_in_the_reasoning_does_not_count():
    assert extract(r"\boxed{1} Answer: 2", "optional", ["Answer:"]) == "1"
    assert extract("<think>Answer: 2</think>", "optional", ["Answer:"]) is None
    assert extract("Answer: 2", "optional", []) is None
