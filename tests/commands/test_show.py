"""`rlvr show` on a run folder written by the loggers themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands import show
from rlvr.config import LogConfig
from rlvr.errors import ConfigError, DataError
from rlvr.observe.loggers import open_loggers
from rlvr.observe.rollouts import write_rollouts
from rlvr.records import Completion, Group, Prompt, Rollout, Status, Verdict

EVAL = {"pass@1": 0.5, "pass@1_low": 0.4, "pass@1_high": 0.625, "avg@4": None, "avg@4_low": None, "avg@4_high": None}


def rollout(text: str, reward: float, status: Status, extracted: str | None = None) -> Rollout:
    verdict = Verdict(reward, status, {"math": reward, "format": 0.5}, extracted)
    return Rollout(Completion([1, 2, 3], [-0.5] * 3, text, "stop", 1), verdict)


def group(number: int, *rollouts: Rollout) -> Group:
    question = f"What is {number} + [bold]1[/bold]?"
    return Group(Prompt(f"id-{number}", "template", [1], str(number + 1), "sums", question=question), list(rollouts))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a-run"
    loggers = open_loggers(LogConfig(), folder, {})
    for step in range(1, 101):
        loggers.log(step, {"reward/mean": step / 100, "accuracy": 0.5, "length/truncated": 0.9, "policy/entropy": 1.0})
    loggers.close()
    (folder / "eval").mkdir()
    (folder / "eval" / "step-000050.json").write_text(json.dumps({**EVAL, "step": 50}))
    groups = [
        group(1, rollout("so 2", 1.0, "correct", "2"), rollout("so 3", -1.0, "wrong", "3"), rollout("?", 0, "wrong")),
        group(2, rollout("nothing", 0.0, "no_answer"), rollout("\x1b[31mred\x07", 0.0, "no_answer")),
        group(3, rollout("x" * 5000, 0.0, "timeout")),
    ]
    write_rollouts(folder, 7, groups)
    return folder


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert show.main(list(argv)) == 0
    return capsys.readouterr().out


def test_curves(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, str(run)).splitlines()
    assert lines[0] == f"{run}: steps 1 to 100"
    (reward,) = [line for line in lines if line.strip().startswith("reward")]
    assert reward.split()[1:3] == ["0.010", "1.000"]
    assert reward.split()[3][0] == "▁"
    assert reward.split()[3][-1] == "█"
    assert len(reward.split()[3]) <= show.CURVE_WIDTH
    assert "  evaluation, step 50: pass@1 50.0% (40.0% to 62.5%), avg@4 -" in lines
    (warning,) = [line for line in lines if "length limit" in line]
    assert warning.startswith("  step 3: 90% of completions")
    assert lines[-1] == f"  rollouts of steps 7 to 7: rlvr show {run} step=7"


def test_best_and_worst_of_each_prompt(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(run), "step=7")
    first = text.split("\nprompt ")[1].splitlines()
    assert text.startswith(f"{run}, step 7: 6 rollouts of 3 prompts\n")
    assert first == [
        "id-1: 1 of 3 correct",
        "What is 1 + [bold]1[/bold]?",
        'reference: "2"',
        "  best (sample 0): reward 1, format 0.5, math 1; correct; answer 2; 3 tokens, stop",
        "    so 2",
        "  worst (sample 1): reward -1, format 0.5, math -1; wrong; answer 3; 3 tokens, stop",
        "    so 3",
    ]


def test_text_of_a_model_cannot_steer_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(run), "step=7")
    assert "\\x1b[31mred\\x07" in text
    assert "\x1b" not in text


def test_long_text_is_shortened(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(run), "step=7", "status=timeout")
    assert "[... 3,000 characters ...]" in text
    assert [line.strip() for line in text.splitlines() if "xxx" in line] == ["x" * 1200, "x" * 800]
    assert "only one (sample 0)" in text


def test_filter_and_limit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(run), "step=7", "status=no_answer")
    assert "2 rollouts of 1 prompt with status no_answer" in text
    assert "id-2: 0 of 2 correct" in text
    assert "id-1" not in text
    text = shown(capsys, str(run), "step=7", "limit=1")
    assert "id-2" not in text
    assert text.endswith("2 more prompts: limit=3\n")


def test_colours_follow_the_status(run: Path) -> None:
    import io

    from rich.console import Console

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard", highlight=False, soft_wrap=True)
    show.show_rollouts(run, 7, show.ShowOptions(limit=1), console)
    assert "\x1b[32m  best" in screen.getvalue()
    assert "\x1b[31m  worst" in screen.getvalue()


def test_no_steps_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").touch()
    assert "no step is done yet" in shown(capsys, str(tmp_path))


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "status" in shown(capsys, "--help")
    assert show.main([]) == 2


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (["{tmp}/none"], DataError, "none: this folder does not exist"),
        (["{tmp}"], DataError, "this folder holds no run .*metrics.jsonl is missing"),
        (["{run}", "step=8"], DataError, "no rollouts of step 8; there are those of steps 7 to 7"),
        (["{run}", "step=x"], ConfigError, "step='x'"),
        (["{run}", "stepp=1"], ConfigError, "did you mean step"),
        (["{run}", "step=7", "status=bad"], ConfigError, "status='bad': .*'correct', 'wrong'"),
        (["{run}", "step=7", "limit=0"], ConfigError, "limit=0"),
        (["{run}", "7"], ConfigError, "key=value"),
    ],
)
def test_wrong_input(run: Path, tmp_path: Path, argv: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        show.main([text.format(run=run, tmp=tmp_path) for text in argv])
