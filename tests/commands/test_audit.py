"""`rlvr verify --audit`: references that cannot be trusted are listed with file and row, and so is what we know of."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rlvr import cli

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
KNOWN = yaml.safe_load((Path(__file__).parents[2] / "verifiers" / "defective_rows.yaml").read_text())
ROWS = [
    {"question": "a", "answer": r"\frac12"},
    {"question": "b", "answer": ""},
    {"question": "c", "answer": r"\frac{1}{2"},
    {"question": "d", "answer": "east"},
    {"question": "e"},
]


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def audit(*overrides):
    return cli.main(["verify", "--audit", "scoring.workers=1", *overrides])


def test_rows_that_fail_are_listed_with_file_and_row(data, capsys):
    output = data.parent / "defects.jsonl"
    assert audit("verifier=math", f"data={data}", f"output={output}") == 0
    printed = capsys.readouterr().out
    assert "5 rows, 2 sound, 3 with defects" in printed
    assert f"{data} row 3: its own reference" in printed
    failures = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(failure["file"], failure["row"]) for failure in failures] == [(str(data), row) for row in (2, 3, 5)]


def test_a_verifier_without_a_test_of_its_own_shows_what_it_cannot_read(data, capsys):
    row = {"prompt": "a", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    rows = [row, {**row, "instruction_id_list": ["no:such"]}, {**row, "kwargs": []}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert audit("verifier=constraints", "data=ifeval", f"data.path={data}") == 0
    printed = capsys.readouterr().out
    assert "3 rows, 1 sound, 2 with defects" in printed
    assert "row 2: an empty answer '' is unparseable_gold: there is no constraint 'no:such'" in printed


def test_rows_without_a_solution_are_counted_apart(data, capsys):
    row = {"text": "Square x.", "test_list": ["assert f(3) == 9"], "test_setup_code": "", "code": ""}
    rows = [row, {**row, "code": "def f(x): return x * x"}, {**row, "test_list": ["assert True"]}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert audit("verifier=code", "data=mbpp", f"data.path={data}") == 0
    printed = capsys.readouterr().out
    assert "3 rows, 1 sound, 1 with defects, 1 without a right answer" in printed
    assert "row 3: a wrong answer" in printed


@pytest.mark.parametrize(("data_set", "file"), [("math500", "math500/test_first_half"), ("amc23", "amc23/test")])
def test_a_sound_data_set_passes(data_set, file, capsys):
    assert audit("verifier=math", f"data={data_set}", f"data.path={SHARED}/{file}.parquet") == 0
    assert " 0 with defects" in capsys.readouterr().out


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known['data']}-{known['row']}")
def test_a_row_of_the_table_of_defects_fails(known, tmp_path, capsys):
    row = pq.read_table(SHARED / known["data"] / known["file"]).slice(known["row"] - 1, 1).to_pylist()[0]
    assert row[known["shows"]].startswith(known["begins"])
    sound = {"problem": "a", "solution": r"\boxed{1}"}  # or none would show which columns there are
    rows = [sound, row] if known["verifier"] == "math" else [row]
    (tmp_path / "row.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    audit(f"verifier={known['verifier']}", f"data={known['data']}", f"data.path={tmp_path}/row.jsonl")
    assert ", 1 with defects" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=math500"], "verifier=None: name a verifier: verifier=NAME, one of arithmetic_steps"),
        (["verifier=math"], "data=None: name a data set: data=NAME, one of"),
        (["verifier=math", "data=mth"], "data='mth': there is no such choice; did you mean math?"),
        (["verifier=math", "data=math", "steps=3"], "steps=3: there is no such key"),
        (["verifier=math", "data=math", "data.path=none.parquet"], "there is no such file or folder"),
        (["verifier=math", "data=math", "output=/no/such/file.jsonl"], "output='/no/such/file.jsonl': its folder"),
    ],
)
def test_wrong_options(overrides, message, capsys):
    assert audit(*overrides) == 2
    assert message in capsys.readouterr().err
