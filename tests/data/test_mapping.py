from __future__ import annotations

from typing import Any

import pytest

from rlvr.config import DataConfig
from rlvr.data.mapping import BrokenRowError, RowMapping
from rlvr.errors import ConfigError, DataError
from rlvr.validation import validate


def mapped(row: dict[str, Any], **keys: Any) -> Any:
    return RowMapping(validate(DataConfig, keys), [row])(row)


def user_text(row: dict[str, Any], **keys: Any) -> str:
    return str(mapped(row, **keys).messages[-1]["content"])


@pytest.mark.parametrize(
    ("answer", "keys", "reference"),
    [
        ("6*7=42\n#### 42", {"answer_after": "####"}, "42"),
        ("#### 1\n#### 1,234", {"answer_after": "####"}, "1,234"),
        (r"so $\boxed{1}$, no: $\boxed{\frac{1}{\sqrt{2}}}$.", {"answer_boxed": True}, r"\frac{1}{\sqrt{2}}"),
        (r"so $\boxed 9$.", {"answer_boxed": True}, "9"),
        (r"\boxed{\{1, 2\}}", {"answer_boxed": True}, r"\{1, 2\}"),
        (" 145.0 ", {}, "145.0"),
        (27.0, {}, "27"),
        (0.5, {}, "0.5"),
        (0, {}, "0"),
        (["assert f(1) == 2"], {}, ["assert f(1) == 2"]),
        (["7"], {"answer": "answer.0"}, "7"),
        ({"truth": {"value": "8"}}, {"answer": "answer.truth.value"}, "8"),
    ],
)
def test_answers(answer: Any, keys: dict[str, Any], reference: Any) -> None:
    assert mapped({"question": "q", "answer": answer}, **keys).reference == reference


def test_a_column_may_have_a_dot_in_its_name() -> None:
    assert mapped({"question": "q", "final.answer": "7"}, answer="final.answer").reference == "7"


@pytest.mark.parametrize(
    ("change", "keys", "told"),
    [
        ({"question": None}, {}, "'question' holds None"),
        ({"question": "  "}, {}, "'question' is empty"),
        ({"question": 5}, {}, "'question' holds int 5, not text"),
        ({"answer": None}, {}, "'answer' holds None"),
        ({"answer": ""}, {}, "'answer' is empty"),
        ({"answer": float("nan")}, {}, "'answer' holds nan"),
        ({"answer": b"7"}, {}, "'answer' holds bytes b'7', not an answer"),
        ({"answer": "7"}, {"answer_after": "####"}, "'answer' has no '####'"),
        ({"answer": "#### "}, {"answer_after": "####"}, "'answer' gives an empty answer"),
        ({"answer": ["7"]}, {"answer_after": "####"}, "not text to take the answer from"),
        ({"answer": "7"}, {"answer_boxed": True}, r"'answer' has no whole \\boxed\{\}"),
        ({"answer": r"\boxed{1"}, {"answer_boxed": True}, "has no whole"),
        ({"answer": r"\boxed{}"}, {"answer_boxed": True}, "'answer' gives an empty answer"),
        ({"hint": None}, {"user": "{hint} {question}"}, "'hint' holds None"),
    ],
)
def test_broken_rows_name_the_column(change: dict[str, Any], keys: dict[str, Any], told: str) -> None:
    good = {"question": "q", "answer": "#### \\boxed{7}", "hint": "h"}
    mapping = RowMapping(validate(DataConfig, keys), [good])
    mapping(good)
    with pytest.raises(BrokenRowError, match=told):
        mapping({**good, **change})
    for column in change:
        with pytest.raises(BrokenRowError, match=f"{column!r} is missing"):
            mapping({name: value for name, value in good.items() if name != column})


@pytest.mark.parametrize(
    "messages",
    [
        "text",
        [],
        ["text"],
        [{"role": "user"}],
        [{"role": "user", "content": " "}],
        [{"role": "oracle", "content": "q"}],
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    ],
)
def test_broken_messages(messages: Any) -> None:
    good = {"messages": [{"role": "user", "content": "q"}], "answer": "7"}
    mapping = RowMapping(DataConfig(messages="messages"), [good])
    with pytest.raises(BrokenRowError, match="'messages'"):
        mapping({**good, "messages": messages})


def test_messages_keep_their_turns_and_the_last_one_is_the_question() -> None:
    turns = [
        {"role": "system", "content": "Old."},
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2"},
    ]
    problem = mapped({"prompt": turns, "answer": "4"}, messages="prompt", system="New.", user="{question} =")
    assert problem.messages == [
        {"role": "system", "content": "New."},
        *turns[1:3],
        {"role": "user", "content": "2+2 ="},
    ]
    assert problem.question == "2+2"
    assert mapped({"prompt": turns, "answer": "4"}, messages="prompt").messages == turns


def test_the_user_template_fills_known_columns_and_leaves_latex_alone() -> None:
    row = {"question": r"Is {Body} \frac{a}{b}?", "Body": "{question}", "answer": "7"}
    template = r"{Body} {question} Put it in \boxed{}, or \boxed{answer}, \frac{x}{y}, {0}, {unknown}."
    assert user_text(row, user=template) == (
        r"{question} Is {Body} \frac{a}{b}? Put it in \boxed{}, or \boxed{answer}, \frac{x}{y}, {0}, {unknown}."
    )


def test_the_problem_may_be_called_by_its_own_column() -> None:
    assert user_text({"problem": "q", "answer": "7"}, question="problem", user="{problem}?") == "q?"


def test_a_template_may_state_the_problem_out_of_columns_that_the_answer_is_held_to() -> None:
    row = {"target": 29, "nums": [39, 19, 9]}
    problem = mapped(row, question=None, answer=["nums", "target"], user="{target} out of {nums}?")
    assert problem.messages == [{"role": "user", "content": "29 out of [39, 19, 9]?"}]
    assert (problem.question, problem.reference) == ("29 out of [39, 19, 9]?", {"nums": [39, 19, 9], "target": 29})
    with pytest.raises(ConfigError, match=r"the problem is nowhere in it; use one of \{nums\}"):
        mapped(row, question=None, answer="target", user="What is {target}?")


def test_the_reference_answer_never_enters_the_prompt() -> None:
    row = {"question": "q", "reward": {"truth": "secret"}, "answer": "secret"}
    assert "secret" not in user_text(row, user="{question} {answer}")
    assert "secret" not in user_text(row, user="{question} {reward}", answer="reward.truth")


def test_system_and_examples_come_first_and_use_the_same_template() -> None:
    problem = mapped(
        {"question": "1+2", "answer": "3"},
        system="Add.",
        user="{question}=?",
        examples=[{"question": "0+1", "answer": r"\boxed{1}"}],
    )
    assert problem.messages == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "0+1=?"},
        {"role": "assistant", "content": r"\boxed{1}"},
        {"role": "user", "content": "1+2=?"},
    ]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"question": "Qestion"}, r"data\.question=Qestion: .* 'Qestion'; there are question, reward, .*'question'\?"),
        ({"answer": "reward.trut"}, r"data\.answer=reward\.trut: .* 'trut'; there are truth; did you mean 'truth'\?"),
        ({"answer": "question.truth"}, r"no column 'truth'; there are none"),
        ({"messages": "prompt"}, r"data\.messages=prompt"),
    ],
)
def test_missing_columns_name_those_that_are_there(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        mapped({"question": "q", "reward": {"truth": "7"}, "answer": "7"}, **keys)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"user": "Solve this:"}, r"data\.user='Solve this:': .* use one of \{question\}, \{hint\}"),
        ({"answer_after": "####", "answer_boxed": True}, "contradicts data.answer_after"),
        ({"question": None}, r"data\.question=None: name the column"),
        ({"examples": [{"question": "q"}]}, r"data\.examples=.* no answer"),
    ],
)
def test_contradictory_keys(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        mapped({"question": "q", "answer": "7", "hint": "h"}, **keys)
