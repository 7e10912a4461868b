"""Environments of the real package `verifiers` as data and reward; skipped where the extra is not installed."""

import json
import os
import signal
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from rlvr import cli
from rlvr.config import DataConfig
from rlvr.data.mapping import RowMapping
from rlvr.data.sources import is_local, read_rows
from rlvr.errors import ConfigError, DataError
from rlvr.scoring import Scorer
from rlvr.verifiers.base import Case
from rlvr.verifiers.environments.single_turn import SingleTurn, spelled
from rlvr.verifiers.prime_intellect import PrimeIntellect

pytestmark = pytest.mark.slow  # importing the package takes seconds, and each process imports it

NAME = "sums-environments"
ROW = {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1?"}], "answer": "2"}
ROW |= {"info": {"i": 1}, "example_id": 1}


@pytest.fixture(autouse=True)
def _in_reach(monkeypatch):
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    monkeypatch.syspath_prepend(folders[0])


@pytest.fixture
def installed():
    """The package's metadata: the bare name may be this checkout's own folder."""
    try:
        version("verifiers")
    except PackageNotFoundError:
        pytest.skip("the extra prime-intellect is not installed")


def options(kind="plain"):
    return {"prime_intellect": {"environment": f"{NAME}?kind={kind}"}}


def test_an_environment_is_spelled_with_its_arguments():
    assert spelled("a-b") == ("a-b", {})
    assert spelled('a?n=3&kind=x y&flag=true&many=[1,"2"]') == (
        "a",
        {"n": 3, "kind": "x y", "flag": True, "many": [1, "2"]},
    )
    assert not is_local("prime_intellect:owner/name/more")


def test_a_package_that_lacks_what_is_needed_is_named_with_the_mend(tmp_path, monkeypatch):
    (tmp_path / "verifiers").mkdir()
    (tmp_path / "verifiers" / "__init__.py").write_text("__version__ = '0.4.0'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    mend = r"pip install 'rlvr\[prime-intellect\]'; version 0.4.0 lacks load_environment"
    with pytest.raises(ConfigError, match=rf"^verifier.prime_intellect.environment='sums-.*{mend}"):
        Scorer(options())
    with pytest.raises(DataError, match=rf"^data.path=prime_intellect:{NAME} data.split=train: .*{mend}"):
        list(read_rows(f"prime_intellect:{NAME}"))


@pytest.mark.usefixtures("installed")
def test_rows_are_the_environments_own():
    rows = [row.values for row in read_rows(f"prime_intellect:{NAME}?start=1")]
    assert len(rows) == 4  # the fifth repeats the first under another number
    assert rows[0] == {"messages": ROW["prompt"], "entry": {**ROW, "question": "1 + 1?", "example_id": 0}}
    (held_out,) = (row.values for row in read_rows(f"prime_intellect:{NAME}", split="test"))
    assert [turn["content"] for turn in held_out["messages"]] == ["Add.", "10 + 10?"]
    data = DataConfig(f"prime_intellect:{NAME}", question=None, messages="messages", answer="entry")
    problem = RowMapping(data, rows)(rows[0])
    assert (problem.messages, problem.reference) == (ROW["prompt"], rows[0]["entry"])


@pytest.mark.usefixtures("installed")
def test_the_rubric_judges_and_its_functions_are_parts():
    with Scorer(options()) as scorer:
        right, wrong, odd = scorer.score([Case("2", ROW), Case("It must be five", ROW), Case("2", "no row")])
    assert (right.reward, right.status) == (1.5, "correct")
    assert right.parts == {"prime_intellect": 1.5, "prime_intellect/exact": 1.0, "prime_intellect/brief": 1.0}
    assert (wrong.reward, wrong.status, wrong.parts["prime_intellect/exact"]) == (0.0, "wrong", 0.0)
    assert odd.status == "unparseable_gold"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("raises", "raises: ZeroDivisionError: as some reward functions do"),
        ("no_number", "no_number: ValueError: could not convert string to float: 'right'"),
        ("infinite", "no finite reward"),
    ],
)
def test_what_goes_wrong_in_an_environment_is_no_wrong_answer(kind, detail):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    verify = PrimeIntellect(environment=f"{NAME}?kind={kind}")
    verify.prepare()
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for _ in range(2):
        verdict = verify(Case("2", ROW))
        assert verdict.status == "error"
        assert detail in verdict.detail


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["hangs", "hangs_async"])
def test_a_reward_function_that_hangs_is_a_timeout(kind):
    with Scorer(options(kind), num_workers=1, deadline_seconds=1.0) as scorer:
        verdicts = scorer.score([Case("2", ROW)] * 2)
    assert [verdict.status for verdict in verdicts] == ["timeout"] * 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (f"{NAME}?kind=group", f"{NAME} scores the completions of a group together"),
        (f"{NAME}?kind=fails", f"{NAME} does not load: .*KeyError: 'no such level'"),
        ("no-such-environment", "no-such-environment does not load: .*No module named 'no_such_environment'"),
    ],
)
def test_what_cannot_be_used_is_refused(environment, why):
    with pytest.raises(ValueError, match=why):
        SingleTurn(environment)


@pytest.mark.usefixtures("installed")
def test_several_turns_are_refused_by_name_before_anything_starts():
    environment = f"{NAME}?kind=multi_turn"
    why = f"{NAME} is a Twice: only single-turn environments without tools"
    with pytest.raises(ConfigError, match=rf"^verifier.prime_intellect.environment=.*{why}"):
        Scorer({"prime_intellect": {"environment": environment}})
    with pytest.raises(DataError, match=rf"data.split=train: {why}"):
        list(read_rows(f"prime_intellect:{environment}"))


@pytest.mark.usefixtures("installed")
def test_splits_that_are_not_there():
    with pytest.raises(DataError, match="it has no data for the split test; there is train"):
        list(read_rows(f"prime_intellect:{NAME}?start=1", split="test"))
    with pytest.raises(DataError, match="there is no split 'dev'"):
        list(read_rows(f"prime_intellect:{NAME}", split="dev"))


@pytest.mark.usefixtures("installed")
def test_from_the_command_line(tmp_path, capsys):
    argv = ["verifier=prime_intellect", f"verifier.prime_intellect.environment={NAME}"]
    data = ["data=prime_intellect", f"data.path=prime_intellect:{NAME}"]
    assert cli.main(["verify", "--audit", *argv, *data]) == 0
    assert " 0 with defects" in capsys.readouterr().out
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": 1, "response": "2", "reference": ROW}) + "\n")
    assert cli.main(["verify", *argv, f"input={tmp_path}/in.jsonl", f"output={tmp_path}/out.jsonl"]) == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["reward"] == 1.5
