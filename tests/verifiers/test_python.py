"""Reward functions of other trainers: called as they expect, refused early, and never able to stop the scoring."""

import json
from pathlib import Path

import pytest

from rlvr import cli
from rlvr.errors import ConfigError
from rlvr.scoring import Scorer
from rlvr.verifiers.base import Case
from rlvr.verifiers.registry import build, check

REWARDS = Path(__file__).parent / "rewards.py"
CASE = Case("it is 4", "4", prompt="2+2", extra={"level": 3, "data_source": "sums"})


def options(name, **others):
    return {"python": {"path": f"{REWARDS}:{name}", **others}}


def judge(name, case=CASE, **others):
    return build(options(name, **others))(case)


def test_trls_signature():
    assert (judge("trl_reward").reward, judge("trl_reward").status) == (1.0, "correct")
    assert judge("trl_reward", Case("5", "4")).status == "wrong"
    assert judge("trl_columns").reward == 3.0
    assert judge("trl_async").reward == 1.0
    assert judge("partial_reward").reward == 1.0
    assert (judge("trl_none").reward, judge("trl_none").status) == (0.0, "wrong")


def test_trls_messages_and_the_name_of_the_reference():
    verdict = judge("trl_messages", Case("4", "4"), conversational=True, answer="solution", correct_from=0.5)
    assert (verdict.reward, verdict.status) == (0.5, "correct")


def test_verls_signature():
    verdict = judge("compute_score", Case("4", "4", extra=CASE.extra))
    assert (verdict.reward, verdict.parts) == (1.0, {"python": 1.0, "python/length": 1.0})
    assert judge("compute_score", Case("5", "4", extra=CASE.extra)).reward == 0.0
    assert judge("compute_score_only", Case("4", "4")).reward == 2.0


def test_it_can_shape_beside_another_verifier():
    case = Case(r"\boxed{4}", "4")
    shaping = build({"math": {}, **options("trl_reward", outcome=False, weight=0.5)})
    assert (shaping(case).status, shaping(case).reward) == ("correct", 1.0)
    assert build({"math": {}, **options("trl_reward")})(case).status == "wrong"


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("raises", "KeyError: 'level'"),
        ("returns_two", "too many values"),
        ("returns_nan", "nan is no reward"),
        ("returns_text", "ValueError"),
        ("returns_no_score", "no 'score'"),
        ("returns_nothing", "TypeError"),
        ("wants_a_column", "no_such_column"),
    ],
)
def test_a_function_that_fails_is_at_fault_itself(name, detail):
    verdict = judge(name)
    assert verdict.status == "error"
    assert detail in verdict.detail


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rewards.py", r"path='rewards.py' must name a file and a function in it, as my_rewards\.py:reward"),
        ("none.py:f", r"there is no file none\.py"),
        (f"{REWARDS}:no_such", r"there is no function no_such in it; there is trl_reward, trl_columns"),
        (f"{REWARDS}:of_no_form", r"its arguments must be TRL's .* or verl's .*, not \(reference, response\)"),
        (f"{REWARDS}:wants_tokens", r"there are no completion_ids to give"),
    ],
)
def test_what_cannot_be_called_is_refused_when_the_options_are_checked(path, message):
    with pytest.raises(ConfigError, match=f"verifier.python=.*{message}"):
        check({"python": {"path": path}})


def test_a_file_that_is_not_python_is_refused_and_none_is_run_by_the_check(tmp_path):
    (tmp_path / "broken.py").write_text("def f(completions:\n")
    with pytest.raises(ConfigError, match=r"broken\.py: .*never closed"):
        check({"python": {"path": f"{tmp_path}/broken.py:f"}})
    (tmp_path / "loud.py").write_text("raise SystemExit('was run')\ndef f(completions): return [1.0]\n")
    check({"python": {"path": f"{tmp_path}/loud.py:f"}})


def test_it_runs_in_the_workers_under_their_deadline():
    with Scorer(options("hangs"), num_workers=1, deadline_seconds=0.5) as scorer:
        assert scorer.score([CASE])[0].status == "timeout"
    with Scorer(options("compute_score_only"), num_workers=1) as scorer:
        assert [verdict.reward for verdict in scorer.score([Case("4", "4"), Case("5", "4")])] == [2.0, 0.0]


def test_from_the_command_line(tmp_path, capsys):
    rows, scores = tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    rows.write_text(json.dumps({"id": 1, "response": "it is 4", "reference": "4"}) + "\n")
    argv = ["verify", "verifier=python", f"input={rows}", f"output={scores}"]
    assert cli.main(argv) == 2
    assert "verifier.python.path='???': a value has to be given" in capsys.readouterr().err
    assert cli.main([*argv, f"verifier.python.path={REWARDS}:trl_reward"]) == 0
    assert json.loads(scores.read_text())["reward"] == 1.0
