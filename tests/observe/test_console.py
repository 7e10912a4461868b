"""The console in a log, line by line, and on a (pretended) terminal."""

from __future__ import annotations

import doctest
import io
import math
import re
from pathlib import Path

import pytest

from rlvr.observe import console as module
from rlvr.observe.console import COLUMNS, HEADER_EVERY, Console

METRICS = {
    "reward/mean": 0.5123,
    "accuracy": 0.4375,
    "length/mean": 31.26,
    "length/truncated": 0.0,
    "policy/entropy": 0.871,
    "mismatch/kl": 0.00042,
    "policy/clip_fraction": 0.012,
    "policy/grad_norm": 0.25,
    "time/step": 2.0,
    "tokens_per_second": 1234.6,
}


def plain(**options: object) -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(screen, live=False, **options), screen  # type: ignore[arg-type]


def test_documented_examples() -> None:
    assert doctest.testmod(module).failed == 0


def test_a_step_in_a_log_is_one_aligned_line_under_its_header() -> None:
    console, screen = plain()
    console.step(3, 90, METRICS)
    header, row = screen.getvalue().splitlines()
    assert re.sub(" +", " ", row.strip()) == "3/90 0.512 43.8% 31.3 0.0% 0.871 4.2e-04 1.2% 0.250 2.0 1,235 2:54"
    assert header.split() == ["step", *(column.heading for column in COLUMNS), "left"]
    assert [m.end() for m in re.finditer(r"\S+", header)] == [m.end() for m in re.finditer(r"\S+", row)]
    assert len(row) <= 120


def test_the_header_comes_back() -> None:
    console, screen = plain()
    for step in range(1, 2 * HEADER_EVERY + 2):
        console.step(step, 100, METRICS)
    lines = screen.getvalue().splitlines()
    assert [i for i, line in enumerate(lines) if "reward" in line] == [0, HEADER_EVERY + 1, 2 * HEADER_EVERY + 2]


def test_missing_and_broken_metrics_show() -> None:
    console, screen = plain()
    console.step(1, 2, {"policy/grad_norm": math.nan, "accuracy": 0.5})
    row = screen.getvalue().splitlines()[1].split()
    assert row == ["1/2", "-", "50.0%", "-", "-", "-", "-", "-", "nan", "-", "-", "-"]


def test_time_left_follows_the_newest_steps() -> None:
    console, screen = plain()
    console.step(1, 100, {"time/step": 1000.0})
    for step in range(2, 30):
        console.step(step, 100, {"time/step": 1.0})
    assert screen.getvalue().splitlines()[-1].split()[-1] == "1:11"


def test_progress_in_a_log_speaks_every_thirty_seconds() -> None:
    now = 0.0
    console, screen = plain(now=lambda: now)
    with console.progress("generate", 100) as advance:
        for _ in range(100):
            now += 1.0
            advance(1)
    assert screen.getvalue().splitlines() == [
        "  generate: 30/100, 1:10 left",
        "  generate: 60/100, 0:40 left",
        "  generate: 90/100, 0:10 left",
    ]


def test_no_time_left_is_guessed_from_the_first_few() -> None:
    now = 0.0
    console, screen = plain(now=lambda: now)
    with console.progress("generate", 100) as advance:
        now = 60.0
        advance(1)
    assert screen.getvalue() == "  generate: 1/100, - left\n"


def test_short_phases_say_nothing_in_a_log() -> None:
    console, screen = plain()
    with console.progress("score", 3) as advance:
        advance(3)
    assert screen.getvalue() == ""


def test_banner_and_summary() -> None:
    console, screen = plain()
    console.banner("quickstart", {"model": "tiny", "batch": "2 prompts"})
    accuracies = {"before": (0.41, 0.38, 0.44), "after": (0.9, 0.88, 0.925)}
    console.summary(accuracies, Path("runs/quickstart"), ["rlvr show runs/quickstart"])
    assert screen.getvalue().splitlines() == [
        "quickstart",
        "  model  tiny",
        "  batch  2 prompts",
        "  before  accuracy 41.0%  (95% interval 38.0% to 44.0%)",
        "  after   accuracy 90.0%  (95% interval 88.0% to 92.5%)",
        "  run folder  runs/quickstart",
        "  try next:",
        "    rlvr show runs/quickstart",
    ]


def test_terminal_has_colours_and_bars_and_the_log_has_not(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(screen, log=tmp_path / "run.log", live=True)
    with console.progress("generate", 4) as generated, console.progress("score", 4) as scored:
        generated(4)
        scored(2)
        console.warn("[b]look[/b]")
    console.step(1, 2, METRICS)
    console.close()
    console.close()
    assert "\x1b[" in screen.getvalue()
    assert "generate" in screen.getvalue()
    log = (tmp_path / "run.log").read_text().splitlines()
    assert log[0] == "warning: [b]look[/b]", "markup in a text is text"
    assert len(log) == 3
    assert not any("\x1b" in line for line in log)


def test_rows_are_not_folded_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = io.StringIO()
    console = Console(screen, live=True)
    console.step(1, 2, METRICS)
    assert len(screen.getvalue().splitlines()) == 2


def test_a_screen_without_unicode_does_not_end_the_run(tmp_path: Path) -> None:
    with (tmp_path / "screen").open("w", encoding="ascii") as screen:
        Console(screen).say("64 prompts × 16 samples")
    assert (tmp_path / "screen").read_text() == "64 prompts ? 16 samples\n"
