"""`rlvr verify` from the command line to the file of scores."""

import json

import pytest

from rlvr import cli

ROWS = [
    {"id": 1, "response": r"<think>a</think> \boxed{\frac12}", "reference": "0.5", "num_tokens": 20},
    {"id": "b", "response": r"\boxed{3}", "reference": "0.5", "num_tokens": 90, "level": 5},
    {"id": None, "response": "cut", "reference": 4, "finish_reason": "length", "num_tokens": 100},
    {"id": [4], "response": r"\boxed{}", "reference": "", "num_tokens": 1},
    {"id": 5, "response": "\\boxed{4\ud800}", "reference": "4", "prompt": "What is 4?", "num_tokens": 1},
    {"id": 6, "response": r"\boxed{1+3}", "reference": "4", "prompt": "What is 1+3?", "num_tokens": 1},
]


@pytest.fixture
def files(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return rows, tmp_path / "out" / "scores.jsonl"


def run(files, *overrides):
    rows, scores = files
    return cli.main(["verify", f"input={rows}", f"output={scores}", "scoring.workers=1", *overrides])


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_in_scores_out_in_the_same_order(files, capsys):
    assert run(files, "verifier=math") == 0
    scores = read(files[1])
    assert [row["id"] for row in scores] == [row["id"] for row in ROWS]
    assert all(list(row) == ["id", "reward", "status", "parts", "extracted"] for row in scores)
    statuses = ["correct", "wrong", "truncated", "unparseable_gold", "wrong", "wrong"]
    assert [row["status"] for row in scores] == statuses
    assert [row["reward"] for row in scores] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert (scores[0]["parts"], scores[0]["extracted"]) == ({"math": 1.0}, r"\frac12")
    output = capsys.readouterr()
    assert output.out == ""
    for text in ("6 rows, mean reward 0.1667", "unparseable_gold", "p50", "p95", "max", "part math"):
        assert text in output.err


def test_several_verifiers_and_their_options(files):
    overrides = ["verifier=[math,format,overlong]", "verifier.format.weight=0.5", "verifier.overlong.max_tokens=100"]
    assert run(files, *overrides) == 0
    first, second, *_ = read(files[1])
    assert (first["reward"], first["parts"]) == (1.5, {"math": 1.0, "format": 1.0, "overlong": 0.0})
    assert (second["reward"], second["parts"]["overlong"]) == (-0.5, -0.5)


def test_shaping_alone_needs_no_reference(files):
    files[0].write_text('{"id": 1, "response": "<think>a</think>b"}\n\n')
    assert run(files, "verifier=format") == 0
    assert read(files[1]) == [
        {"id": 1, "reward": 0.1, "status": "correct", "parts": {"format": 1.0}, "extracted": None}
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "verifier=None: name one or several of arithmetic_steps, "),
        (["verifier=mth"], "did you mean math?"),
        (
            ["verifier=math", "verifier.math.wight=2"],
            "verifier.math.wight=2: there is no such key; did you mean weight",
        ),
        (["verifier=math", "verifier.math.weight=x"], "verifier.math.weight='x': should be a valid number"),
        (["verifier=math", "scoring.workers=0"], "scoring.workers=0: should be greater than 0"),
        (["verifier=math", "+typo=1"], "typo=1: there is no such key"),
        (["verifier=math", "input=none.jsonl"], "input='none.jsonl': there is no such file"),
        (["verifier=math", "input=pyproject.toml"], "input='pyproject.toml': only .parquet, .jsonl"),
        (["verifier=math", "output=."], "output='.': is a folder"),
    ],
)
def test_wrong_options_name_key_value_and_mend(files, overrides, message, capsys):
    assert run(files, *overrides) == 2
    assert message in capsys.readouterr().err
    assert not files[1].exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: not a JSON object"),
        ("[1]", "line 2: not a JSON object"),
        ('{"response": "a", "reference": "b"}', "line 2: the field 'id' is missing"),
        ('{"id": 1, "reference": "b"}', "line 2: the field 'response' is missing"),
        ('{"id": 1, "response": "a"}', "line 2: the field 'reference' is missing"),
        ('{"id": 1, "response": 3, "reference": "b"}', "line 2: 'response' must be text, not 3"),
        ('{"id": 1, "response": null, "reference": "b"}', "line 2: 'response' must be text, not None"),
        ('{"id": 1, "response": "a", "reference": "b", "num_tokens": "9"}', "'num_tokens' must be a whole number"),
        ('{"id": 1, "response": "a", "reference": "b", "num_tokens": true}', "'num_tokens' must be a whole number"),
        ('{"id": 1, "response": "a", "reference": "b", "finish_reason": "eos"}', "must be stop or length, not 'eos'"),
        ('{"id": 1, "response": "a", "reference": "b", "prompt": []}', "'prompt' must be text, not []"),
    ],
)
def test_a_broken_row_is_named_by_file_line_and_field(files, line, message, capsys):
    files[0].write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    assert run(files, "verifier=math") == 2
    error = capsys.readouterr().err
    assert str(files[0]) in error
    assert message in error
    assert not files[1].exists()


def test_an_empty_file_and_an_unwritable_output(files, capsys):
    files[0].write_text("")
    assert run(files, "verifier=math") == 2
    assert "there is no row in it" in capsys.readouterr().err
    files[0].write_text(json.dumps(ROWS[0]))
    assert run(files, "verifier=math", "output=/proc/scores.jsonl") == 2
    assert "output=/proc/scores.jsonl: cannot be written" in capsys.readouterr().err


def test_the_input_is_never_overwritten(files, capsys):
    assert run((files[0], files[0]), "verifier=math") == 2
    assert "is the input; name another file" in capsys.readouterr().err
    assert len(read(files[0])) == len(ROWS)


def test_help_names_every_option(capsys):
    assert cli.main(["verify", "--help"]) == 0
    text = capsys.readouterr().out
    for key in ("input", "output", "scoring.workers", "verifier.math.thinking", "verifier.overlong.cache_tokens"):
        assert f"  {key} " in text
