"""Rollouts as parquet: written, read back, compared; hostile text; no torn files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlvr.errors import DataError
from rlvr.observe.rollouts import read_rollouts, recorded_steps, rollouts_file, write_rollouts
from rlvr.records import Completion, Group, Prompt, Rollout, Verdict


def group(text: str, reference: object = "2") -> Group:
    prompt = Prompt(id="ab12", text="<user>1+1", token_ids=[1], reference=reference, source="sums", question="1+1")
    first = Rollout(
        Completion([5, 6], [-1.0, -2.0], text, "stop", 3),
        Verdict(1.0, "correct", {"math": 1.0, "format": 0.0}, extracted="2", detail="equal"),
    )
    second = Rollout(Completion([], [], "", "length", 3), Verdict(0.0, "truncated", {"math": 0.0}))
    return Group(prompt, [first, second])


def test_round_trip(tmp_path: Path) -> None:
    file = write_rollouts(tmp_path, 12, [group("= 2"), group("two", {"tests": ["a", "é"]})])
    assert file == rollouts_file(tmp_path, 12) == tmp_path / "rollouts" / "step-000012.parquet"
    rows = read_rollouts(tmp_path, 12)
    assert rows[0] == {
        "group": 0,
        "sample": 0,
        "prompt_id": "ab12",
        "source": "sums",
        "question": "1+1",
        "prompt": "<user>1+1",
        "response": "= 2",
        "reference": '"2"',
        "reward": 1.0,
        "reward/format": 0.0,
        "reward/math": 1.0,
        "status": "correct",
        "extracted": "2",
        "detail": "equal",
        "finish_reason": "stop",
        "num_tokens": 2,
        "mean_logprob": -1.5,
        "policy_version": 3,
    }
    assert [(row["group"], row["sample"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (rows[1]["reward/format"], rows[1]["extracted"], rows[1]["mean_logprob"]) == (None, None, None)
    assert json.loads(rows[2]["reference"]) == {"tests": ["a", "é"]}


def test_columns_do_not_depend_on_the_rows(tmp_path: Path) -> None:
    only_empty = Group(group("").prompt, group("").rollouts[1:])
    first = pq.read_schema(write_rollouts(tmp_path, 1, [group("x")]))
    second = pq.read_schema(write_rollouts(tmp_path, 2, [only_empty]))
    assert {f.name: f.type for f in second} == {f.name: f.type for f in first if f.name != "reward/format"}


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "🙂" * 10, "\n\r\t"])
def test_any_text_can_be_kept(tmp_path: Path, text: str) -> None:
    write_rollouts(tmp_path, 1, [group(text, reference=text)])
    assert read_rollouts(tmp_path, 1)[0]["response"] == text.encode("utf-8", "replace").decode()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_rollouts(tmp_path, 1, [group("old")])

    def full(table: object, where: Path, compression: str) -> None:
        where.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        write_rollouts(tmp_path, 1, [group("new")])
    monkeypatch.undo()
    assert read_rollouts(tmp_path, 1)[0]["response"] == "old"
    assert recorded_steps(tmp_path) == [1]
    assert file.exists()


def test_a_step_that_was_not_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no rollouts of step 3; it kept none \(log.rollouts=false\?\)"):
        read_rollouts(tmp_path, 3)
    write_rollouts(tmp_path, 1, [group("x")])
    write_rollouts(tmp_path, 2, [group("x")])
    with pytest.raises(DataError, match="no rollouts of step 3; there are those of steps 1 to 2"):
        read_rollouts(tmp_path, 3)
