"""Weights & Biases: online, or offline without account and network (`wandb sync` uploads it later)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rlvr.errors import ConfigError


class WandbLogger:
    """One wandb run; a resumed training run goes on in the same one.

    `step` is logged as a metric and is every chart's axis, since wandb's own step may not go back on resume.

    Args:
        mode: `offline` or `online`.
        project: its name at wandb.
        folder: the run's folder: its name is the run's, and wandb's files go below it.
        settings: the resolved configuration.

    Raises:
        ConfigError: `online` without an account, a valid key or a network.
    """

    def __init__(
        self, mode: Literal["offline", "online"], project: str, folder: Path, settings: Mapping[str, Any]
    ) -> None:
        import wandb

        try:
            self._run = wandb.init(
                mode=mode,
                project=project,
                name=folder.name,
                id=_run_id(folder),
                resume="allow" if mode == "online" else None,
                dir=folder,
                config=dict(settings),
                settings=wandb.Settings(silent=True, init_timeout=60),
            )
        except wandb.errors.Error as error:
            reason = str(error).strip().splitlines()[0]
            mend = f"wandb refused ({reason}); log in with `wandb login`, or write log.wandb=offline"
            raise ConfigError("log.wandb", mode, mend) from None
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        import wandb

        self._run.finish()
        wandb.teardown()  # finish() may return before wandb's own process has written the last of the files


def _run_id(folder: Path) -> str:
    """Drawn once for each run folder, so that resuming finds the same run."""
    file = folder / "wandb" / "run-id.txt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:8])
    return file.read_text()
