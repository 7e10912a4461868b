"""The reasoning format: each tag once, in order, then an answer."""

import pytest

from rlvr.verifiers.base import Case
from rlvr.verifiers.format import Format


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("<think>a</think>b", 1.0),
        ("  \n<think>\na\n</think>\n\nb", 1.0),
        ("<think></think>b", 1.0),
        ("<think>a</think>", 0.0),
        ("<think>a</think>  \n", 0.0),
        ("<think>a", 0.0),
        ("a</think>b", 0.0),
        ("b", 0.0),
        ("", 0.0),
        ("x<think>a</think>b", 0.0),
        ("</think>a<think>b", 0.0),
        ("<think>a</think>b<think>c</think>d", 0.0),
        ("<think><think>a</think>b", 0.0),
        ("<think>a</think></think>b", 0.0),
        ("<THINK>a</THINK>b", 0.0),
        ("<think >a</think>b", 0.0),
    ],
)
def test_tags(response, reward):
    verdict = Format()(Case(response, None))
    assert verdict.reward == reward
    assert bool(verdict.detail) == (reward == 0.0)


def test_a_prompt_that_opens_the_reasoning():
    verify = Format(opened_by_prompt=True)
    assert verify(Case("a</think>b", None)).reward == 1.0
    assert verify(Case("<think>a</think>b", None)).reward == 0.0
    assert verify(Case("b", None)).reward == 0.0


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (r"<think>a</think>\boxed{4}", 1.0),
        (r"<think>\boxed{4}</think>b", 0.0),
        (r"<think>a</think>\boxed{}", 0.0),
        (r"<think>a</think>\boxed{4", 0.0),
    ],
)
def test_a_box_can_be_required(response, reward):
    assert Format(boxed=True)(Case(response, None)).reward == reward
