from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvr.config import DataConfig
from rlvr.data.prompts import Report, load_prompts
from rlvr.data.templates import ChatTemplate
from rlvr.errors import DataError
from rlvr.records import Prompt

Write = Callable[[str, list[dict[str, Any]]], str]
SHARED = Path(__file__).parents[2].parent / "shared" / "data"
DAPO = {"messages": "prompt", "answer": "reward_model.ground_truth", "max_prompt_tokens": 4096}


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"{i}+1", "answer": str(i + 1), "level": i} for i in range(count)]


def load(template: ChatTemplate, path: str, **keys: Any) -> tuple[list[Prompt], Report]:
    return load_prompts(DataConfig(path=path, **keys), template)


def test_a_prompt_carries_text_tokens_reference_question_and_the_other_columns(
    template: ChatTemplate, write: Write
) -> None:
    [prompt], report = load(template, write("set/rows.jsonl.gz", rows(1)), user="{question}=?")
    assert prompt.text == "<|user|>0+1=?<|assistant|>"
    assert template.encode([prompt.text]) == [prompt.token_ids]
    assert (prompt.reference, prompt.question, prompt.source) == ("1", "0+1", "set/rows.jsonl.gz")
    assert prompt.extra == {"level": 0}
    assert report.summary() == "set/rows.jsonl.gz: 1 rows -> 1 prompts; 7 tokens a prompt, at most 7"
    assert report.warnings() == []


def test_ids_depend_on_source_and_content_only(template: ChatTemplate, write: Write) -> None:
    first, _ = load(template, write("a/rows.jsonl", rows(5)))
    moved, _ = load(template, write("elsewhere/a/rows.jsonl", rows(5)[::-1]))
    assert [prompt.id for prompt in first] == [prompt.id for prompt in moved][::-1]
    assert len({prompt.id for prompt in first}) == 5
    others = [
        load(template, write("b/rows.jsonl", rows(5)))[0],
        load(template, write("a/rows.jsonl", [{**row, "answer": "9"} for row in rows(5)]))[0],
        load(template, write("a/rows.jsonl", rows(5)), system="Add.")[0],
    ]
    for other in others:
        assert not {prompt.id for prompt in first} & {prompt.id for prompt in other}


def test_repeated_rows_are_merged_and_counted(template: ChatTemplate, tmp_path: Path) -> None:
    once = pq.read_table(SHARED / "dapo_math" / "train.parquet").slice(0, 200)
    many = tmp_path / "train.parquet"
    pq.write_table(pa.concat_tables([once] * 100), many)
    pq.write_table(once, tmp_path / "once.parquet")
    prompts, report = load(template, str(many), **DAPO)
    assert (report.num_rows, report.num_prompts, report.num_repeated) == (20000, 200, 19800)
    alone, _ = load(template, str(tmp_path / "once.parquet"), **DAPO)
    assert [prompt.token_ids for prompt in prompts] == [prompt.token_ids for prompt in alone]
    assert "19800 repeated" in report.summary()


def test_prompts_with_two_answers_are_dropped_and_counted(template: ChatTemplate, write: Write) -> None:
    conflict = [{"question": "0+1", "answer": "2"}, {"question": "0+1", "answer": "1"}]
    prompts, report = load(template, write("rows.parquet", rows(3) + conflict))
    assert [prompt.question for prompt in prompts] == ["1+1", "2+1"]
    assert (report.num_conflicting, report.num_repeated) == (1, 1)
    assert "1 prompts with two different answers were dropped" in report.warnings()[0]


def test_the_same_question_with_another_story_is_another_problem(template: ChatTemplate, write: Write) -> None:
    file = write("rows.jsonl", [{"body": str(i), "question": "How many?", "answer": str(i)} for i in range(3)])
    prompts, _ = load(template, file, user="{body} {question}")
    assert [prompt.text for prompt in prompts] == [f"<|user|>{i} How many?<|assistant|>" for i in range(3)]


def test_broken_rows_are_named_and_counted(template: ChatTemplate, write: Write) -> None:
    broken = [{"question": "2+2"}, {"question": "", "answer": "4"}, {"question": ["2+2"], "answer": "4"}]
    file = write("rows.jsonl", rows(2) + broken + [{"question": "9", "answer": None}] * 9)
    with Path(file).open("a") as lines:
        lines.write("{not json}\n")
    prompts, report = load(template, file)
    assert (len(prompts), report.num_broken, report.num_rows) == (2, 13, 15)
    [warning] = report.warnings()
    assert f"13 of 15 rows are broken and were dropped: {file} row 3: column 'answer' is missing" in warning
    assert f"{file} row 4: column 'question' is empty" in warning
    assert f"{file} row 5: column 'question' holds list ['2+2'], not text" in warning
    assert warning.endswith("and 8 more")


def test_long_prompts_are_dropped_never_cut(template: ChatTemplate, write: Write) -> None:
    question = "1+1" * 10
    file = write("rows.jsonl", [*rows(2), {"question": question, "answer": "7"}])
    exact = 2 + len(question)
    assert load(template, file, max_prompt_tokens=exact)[1].num_too_long == 0
    prompts, report = load(template, file, max_prompt_tokens=exact - 1)
    assert [prompt.question for prompt in prompts] == ["0+1", "1+1"]
    assert report.num_too_long == 1
    assert f"1 prompts longer than data.max_prompt_tokens={exact - 1} were dropped" in report.warnings()[0]


def test_the_limit_counts_prompts_that_are_left(template: ChatTemplate, write: Write) -> None:
    long = {"question": "1+1" * 10, "answer": "7"}
    prompts, report = load(template, write("rows.jsonl", [long, *rows(5)]), max_prompt_tokens=20, limit=2)
    assert [prompt.question for prompt in prompts] == ["0+1", "1+1"]
    assert (report.num_too_long, report.num_over_limit) == (1, 3)


def test_when_nothing_is_left_each_filter_says_how_many_it_took(template: ChatTemplate, write: Write) -> None:
    file = write(
        "set/rows.jsonl",
        [
            {"question": "1+1", "answer": ""},
            {"question": "2+2", "answer": "4"},
            {"question": "2+2", "answer": "5"},
            {"question": "3" * 50, "answer": "6"},
        ],
    )
    with pytest.raises(DataError) as caught:
        load(template, file, max_prompt_tokens=40)
    message = str(caught.value)
    assert "no prompt is left of set/rows.jsonl: 4 rows -> 0 prompts" in message
    assert "(1 broken, 1 prompts with two answers, 1 prompts over 40 tokens)" in message
    assert f"{file} row 1: column 'answer' is empty" in message


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_empty_data(template: ChatTemplate, write: Write, name: str) -> None:
    with pytest.raises(DataError, match=r"the data is empty: no row at all \(data\.path="):
        load(template, write(name, []))


def test_a_file_that_is_no_json_at_all(template: ChatTemplate, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("question,answer\n1+1,2\n")
    with pytest.raises(DataError, match="none of the first 2 lines is a JSON object"):
        load(template, str(tmp_path / "rows.jsonl"))


def test_a_missing_column_stops_before_anything_is_tokenised(template: ChatTemplate, write: Write) -> None:
    with pytest.raises(DataError, match="no column 'problem'; there are question, answer, level"):
        load(template, write("rows.parquet", rows(2)), question="problem")


def test_generated_data_carries_its_worked_completion(template: ChatTemplate) -> None:
    prompts, _ = load(template, "procedural:arithmetic", limit=3)
    assert all(re.fullmatch(r"<think>.+</think>\\boxed\{\d+\}", prompt.extra["completion"]) for prompt in prompts)
