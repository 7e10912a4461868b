"""Loggers, each read back through its own format: JSON lines, TensorBoard events, wandb's offline files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from rlvr.config import LogConfig
from rlvr.errors import ConfigError, DataError
from rlvr.observe.loggers import METRICS_FILE, JsonlLogger, open_loggers, read_metrics


def test_one_flushed_object_a_step(tmp_path: Path) -> None:
    file = tmp_path / METRICS_FILE
    logger = JsonlLogger(file)
    logger.log(1, {"reward/mean": 0.25, "tokens/generated": 3})
    assert file.read_text() == '{"step": 1, "reward/mean": 0.25, "tokens/generated": 3.0}\n'
    logger.log(2, {"reward/mean": 0.1 + 0.2})
    assert read_metrics(file)[1] == {"step": 2, "reward/mean": 0.1 + 0.2}, "floats survive to the last bit"
    logger.close()
    logger.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_lacks_becomes_null(tmp_path: Path, value: float) -> None:
    logger = JsonlLogger(tmp_path / METRICS_FILE)
    logger.log(1, {"policy/grad_norm": value})
    logger.close()
    assert json.loads((tmp_path / METRICS_FILE).read_text()) == {"step": 1, "policy/grad_norm": None}


def write_steps(file: Path, steps: range, last_step: int = 0) -> None:
    logger = JsonlLogger(file, last_step)
    for step in steps:
        logger.log(step, {"accuracy": step / 7})
    logger.close()


def test_going_on_cuts_rows_after_the_checkpoint(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    write_steps(whole, range(1, 9))
    write_steps(resumed, range(1, 6))
    with resumed.open("a") as torn:
        torn.write('{"step": 6, "acc')
    write_steps(resumed, range(4, 9), last_step=3)
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    file = tmp_path / METRICS_FILE
    file.write_text('{"step": 1}\nrubbish\n{"step": 3}\n')
    with pytest.raises(DataError, match="line 2: not a row of metrics"):
        read_metrics(file)


def test_tensorboard_events_can_be_read_and_hide_what_was_done_over(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = LogConfig(tensorboard=True)
    loggers = open_loggers(config, tmp_path, {})
    for step in (1, 2, 3):
        loggers.log(step, {"accuracy": step / 4})
    loggers.close()
    loggers = open_loggers(config, tmp_path, {}, last_step=1)
    for step in (2, 3):
        loggers.log(step, {"accuracy": step / 8})
    loggers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("accuracy")
    assert [(event.step, event.value) for event in events] == [(1, 0.25), (2, 0.25), (3, 0.375)]
    assert [row["accuracy"] for row in read_metrics(tmp_path / METRICS_FILE)] == [0.25, 0.25, 0.375]


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))


@pytest.mark.usefixtures("no_account")
def test_wandb_offline_needs_no_account(tmp_path: Path) -> None:
    run = tmp_path / "a-run"
    loggers = open_loggers(LogConfig(wandb="offline"), run, {"seed": 4})
    loggers.log(1, {"reward/mean": 0.5})
    loggers.log(2, {"reward/mean": 0.75})
    loggers.close()
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    records = file.read_bytes()
    assert re.search(rb"reward/mean.{1,8}0\.5.*reward/mean.{1,8}0\.75", records, re.DOTALL)
    assert b"seed" in records


@pytest.mark.usefixtures("no_account")
def test_wandb_goes_on_in_the_same_run(tmp_path: Path) -> None:
    for last_step in (0, 1):
        loggers = open_loggers(LogConfig(wandb="offline"), tmp_path, {}, last_step)
        loggers.log(last_step + 1, {"reward/mean": 0.5})
        loggers.close()
    first, second = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert first.name == second.name
    assert first.parent != second.parent


@pytest.mark.usefixtures("no_account")
def test_wandb_online_without_account_names_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.wandb='online'.*`wandb login`.*log\.wandb=offline"):
        open_loggers(LogConfig(wandb="online"), tmp_path, {})
