from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.data.sources import Row, is_local, read_rows, source_name
from rlvr.errors import DataError

Write = Callable[[str, list[dict[str, Any]]], str]
ROWS = [{"question": f"{i}+{i}", "answer": str(2 * i)} for i in range(3)]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.jsonl.gz"])
def test_every_file_form_gives_the_same_numbered_rows(write: Write, name: str) -> None:
    file = write(name, ROWS)
    assert list(read_rows(file)) == [Row(file, i, row) for i, row in enumerate(ROWS, 1)]


def test_a_folder_gives_only_the_files_of_the_split(write: Write, tmp_path: Path) -> None:
    write("set/train-0.parquet", ROWS[:1])
    write("set/more/train-1.jsonl", ROWS[1:2])
    write("set/test.jsonl", ROWS[2:])
    folder = str(tmp_path / "set")
    assert sorted(row.values["question"] for row in read_rows(folder, split="train") if row.values) == ["0+0", "1+1"]
    assert [row.values for row in read_rows(folder, split="test")] == ROWS[2:]
    with pytest.raises(DataError, match=r"begins with the split 'validation'.*train-1\.jsonl, test\.jsonl"):
        list(read_rows(folder, split="validation"))


def test_a_blank_line_is_nothing_and_a_broken_line_keeps_its_number(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a": 1}\n\n{"a": \n[1]\n"\xff"\n{"a": 2}')
    assert [(row.number, row.values) for row in read_rows(str(file))] == [
        (1, {"a": 1}),
        (3, None),
        (4, None),
        (5, None),
        (6, {"a": 2}),
    ]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("./nowhere.parquet", "there is no such file or folder"),
        ("/nowhere/at/all", "there is no such file or folder"),
        ("rows.csv", "only .parquet, .jsonl, .jsonl.gz"),
        ("empty_folder", "no .parquet / .jsonl / .jsonl.gz file at all"),
        ("damaged.parquet", "not a readable parquet file"),
        ("damaged.jsonl.gz", "cannot be read"),
        ("cut.jsonl.gz", "cannot be read"),
        ("procedural:nothing", "no such generator; known: arithmetic"),
    ],
)
def test_unreadable_data_is_named(
    path: str, told: str, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty_folder").mkdir()
    for name in ("rows.csv", "damaged.parquet", "damaged.jsonl.gz"):
        (tmp_path / name).write_bytes(b"question,answer\n1,2\n")
    whole = Path(write("cut.jsonl.gz", ROWS * 100))
    whole.write_bytes(whole.read_bytes()[:60])
    with pytest.raises(DataError, match=told):
        list(read_rows(path))


def run_offline(code: str, tmp_path: Path) -> str:
    """In a process of its own, as the hub's libraries read their settings when they are imported."""
    code = "from rlvr.data import sources\nfrom rlvr.errors import DataError\n" + code
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_a_hub_without_network_says_to_use_a_local_file(tmp_path: Path) -> None:
    told = run_offline(
        "try: next(sources.read_rows('nobody/no-such-data-set', 'main'))\nexcept DataError as error: print(error)",
        tmp_path,
    )
    assert "hub cannot be reached" in told
    assert "data.path=LOCAL" in told


def test_the_hubs_library_gives_the_same_numbered_rows(write: Write, tmp_path: Path) -> None:
    write("set/train.jsonl", ROWS)
    told = run_offline(
        f"print([(row.number, row.values) for row in sources._from_hub({str(tmp_path / 'set')!r}, None, 'train')])\n"
        f"try: next(sources._from_hub({str(tmp_path / 'set')!r}, None, 'tset'))\n"
        "except DataError as error: print(error)",
        tmp_path,
    )
    assert str([(i, row) for i, row in enumerate(ROWS, 1)]) in told
    assert "data.split=tset: the hub's data set does not load (Unknown split" in told


def test_source_names_do_not_depend_on_where_one_stands(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("gsm8k/train.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    assert source_name(file) == source_name("gsm8k/train.jsonl") == "gsm8k/train.jsonl"
    assert source_name("gsm8k", None, "train") == "gsm8k/train"
    assert source_name("openai/gsm8k", "main", "test") == "openai/gsm8k/main/test"


def test_hub_ids_are_told_from_files(write: Write, tmp_path: Path) -> None:
    assert is_local(str(tmp_path))
    assert is_local("data/gone.jsonl")
    assert is_local("../data/gone")
    assert not is_local("openai/gsm8k")
    assert not is_local("procedural:arithmetic")
