"""reasoning-gym's data and scorers; skipped where the extra is not installed."""

import json

import pytest

from rlvr import cli
from rlvr.data.sources import read_rows
from rlvr.errors import DataError
from rlvr.verifiers.base import Case
from rlvr.verifiers.reasoning_gym import ReasoningGym

NAMES = ["leg_counting", "countdown", "basic_arithmetic", "knights_knaves", "word_sorting"]


def test_it_says_so_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"not installed: pip install 'rlvr\[reasoning-gym\]'"):
        list(read_rows("reasoning_gym:leg_counting"))


@pytest.fixture(autouse=True)
def _installed(request):
    if "not_installed" not in request.node.name:
        pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_generated_and_their_own_answers_accepted(name):
    rows = [row.values for row in read_rows(f"reasoning_gym:{name}", split="test")]
    assert 0 < len(rows) <= 200
    train = {row.values["question"] for row in read_rows(f"reasoning_gym:{name}", split="train")}
    assert not train & {row["question"] for row in rows}
    verify = ReasoningGym()
    for row in rows[:10]:
        entry = json.loads(json.dumps(row["entry"]))
        assert verify(Case(verify.right_answer(entry), entry)).is_correct
        assert verify(Case(verify.wrong_answer(entry), entry)).status == "wrong"


def test_where_the_answer_stands():
    entry = next(iter(read_rows("reasoning_gym:leg_counting"))).values["entry"]
    right = entry["answer"]
    verify = ReasoningGym()
    assert verify(Case(rf"\boxed{{{right}}}", entry)).is_correct
    assert verify(Case(f"<answer>0</answer> or <answer> {right} </answer>", entry)).is_correct
    assert verify(Case(f"<think><answer>{right}</answer></think> Done.", entry)).status == "no_answer"
    assert verify(Case("Done", entry, finish_reason="length")).status == "truncated"
    assert verify(Case("<answer>1</answer>", {"answer": "1", "metadata": {}})).status == "unparseable_gold"


def test_unknown_names_are_refused():
    with pytest.raises(DataError, match=r"no such data set; known: .*leg_counting"):
        list(read_rows("reasoning_gym:no_such"))
    with pytest.raises(DataError, match="no split 'dev'"):
        list(read_rows("reasoning_gym:leg_counting", split="dev"))


def test_the_audit_passes_from_the_command_line(capsys):
    argv = ["verify", "--audit", "verifier=reasoning_gym", "data=reasoning_gym", "data.split=test"]
    assert cli.main(argv) == 0
    assert " 0 with defects" in capsys.readouterr().out
