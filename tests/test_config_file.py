"""A file repeats a run."""

from dataclasses import asdict

import pytest

from rlvr.config import TrainConfig
from rlvr.config_checks import train_config
from rlvr.config_file import as_yaml, load_config, save_config
from rlvr.errors import ConfigError


def test_the_saved_file_gives_the_same_configuration_back(tmp_path):
    config = train_config(
        {
            "name": "no: 3",
            "policy": {"learning_rate": 1e-6},
            "objective": {"trust": {"high": float("inf")}},
            "data": {"system": "Ein Satz.\nNoch einer: „ja“", "examples": [{"question": "1+1", "answer": "2"}]},
            "verifier": {"math": {}, "format": {}},
        }
    )
    assert load_config(save_config(config, tmp_path).parent) == config
    assert as_yaml(config) == (tmp_path / "config.yaml").read_text()


def test_a_folder_without_a_configuration_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        load_config(tmp_path)


def test_a_damaged_configuration_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("steps: [")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load_config(tmp_path)


def test_every_default_can_be_written_and_read(tmp_path):
    save_config(TrainConfig(), tmp_path)
    assert asdict(load_config(tmp_path)) == asdict(TrainConfig())
