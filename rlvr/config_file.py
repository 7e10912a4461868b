"""A run's `config.yaml`: every value of its configuration, resolved."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import yaml

from rlvr.config import TrainConfig
from rlvr.config_checks import train_config
from rlvr.errors import ConfigError


def save_config(config: TrainConfig, folder: Path) -> Path:
    """Writes `config.yaml`, every value resolved, into a run's folder; `rlvr train --config-path FOLDER` repeats it."""
    file = folder / "config.yaml"
    file.write_text(as_yaml(config), encoding="utf-8")
    return file


def as_yaml(config: TrainConfig) -> str:
    """The whole configuration as YAML."""
    text: str = yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True)
    return text


def load_config(folder: Path) -> TrainConfig:
    """Reads a run's `config.yaml`.

    Raises:
        ConfigError: no such file, or values that this version does not know.
    """
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError("run", str(folder), "this is no run's folder: it has no config.yaml")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("run", str(folder), f"its config.yaml is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError("run", str(folder), "its config.yaml is damaged: it holds no keys")
    return train_config(values)
