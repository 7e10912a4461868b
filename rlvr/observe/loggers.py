"""Where metrics go: `metrics.jsonl` always, TensorBoard and wandb on request, one fan-out over them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from rlvr.config import LogConfig
from rlvr.errors import DataError

METRICS_FILE = "metrics.jsonl"


class Logger(Protocol):
    """Keeps the metrics of each step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None:
        """Flushes and lets go of files and processes. Safe to call twice."""
        ...


class JsonlLogger:
    """One JSON object a step, flushed as soon as it is written; nan and infinities, which JSON lacks, become null.

    Args:
        file: appended to.
        last_step: the step that the run goes on from; rows after it, and a half-written last row, are cut.
    """

    def __init__(self, file: Path, last_step: int = 0) -> None:
        if file.exists():
            kept = [row for row in read_metrics(file) if row["step"] <= last_step]
            fresh = file.with_name(file.name + ".tmp")
            fresh.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            fresh.replace(file)
        self._file: IO[str] = file.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {"step": step, **{name: float(v) if math.isfinite(v) else None for name, v in metrics.items()}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """Rows of a `metrics.jsonl`, oldest first; a half-written last line is left out.

    Raises:
        DataError: another line is no JSON object with a step.
    """
    rows = []
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise DataError(f"{file}, line {number}: not a row of metrics; remove the line to read the rest") from None
        rows.append(row)
    return rows


class TensorBoardLogger:
    """TensorBoard events, written by torch.

    Args:
        folder: receives the event files.
        last_step: events after this step, of the run that is gone on with, are hidden.
    """

    def __init__(self, folder: Path, last_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = last_step + 1 if last_step else None
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Loggers:
    """Hands each step's metrics to several loggers."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for logger in self._loggers:
            logger.log(step, metrics)

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()


def open_loggers(config: LogConfig, folder: Path, settings: Mapping[str, Any], last_step: int = 0) -> Loggers:
    """Opens every logger that `config` asks for.

    Args:
        config: the run's `log` options.
        folder: the run's folder; its name is the run's name at wandb.
        settings: the resolved configuration, shown at wandb.
        last_step: the step that the run goes on from; 0 for a new run.

    Raises:
        ConfigError: wandb cannot be reached with `log.wandb=online`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    loggers: list[Logger] = [JsonlLogger(folder / METRICS_FILE, last_step)]
    if config.tensorboard:
        loggers.append(TensorBoardLogger(folder / "tensorboard", last_step))
    if config.wandb != "off":
        from rlvr.observe.wandb_logger import WandbLogger

        loggers.append(WandbLogger(config.wandb, config.wandb_project, folder, settings))
    return Loggers(loggers)
