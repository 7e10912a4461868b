"""`rlvr train recipe=NAME [key=value ...]`: composes and validates a configuration, then trains or sweeps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlvr.commands import recipes
from rlvr.commands.compose import YamlSource, compose
from rlvr.config import TrainConfig
from rlvr.config_checks import check_across, train_config
from rlvr.config_file import as_yaml

USAGE = "rlvr train recipe=NAME [group=choice ...] [key=value ...] [-m] [--cfg job]"


def main(argv: list[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    arguments = parser.parse_intermixed_args(argv)
    if arguments.help:
        print(_help(YamlSource(config_dir=arguments.config_dir)))
        return 0
    source = YamlSource(config_dir=arguments.config_dir, config_path=arguments.config_path)
    if arguments.multirun and arguments.cfg:
        parser.error("--cfg shows a single run; leave out -m")
    if arguments.multirun:
        from rlvr.commands.sweep import run_sweep

        return run_sweep(arguments.overrides, source)
    config = configure(arguments.overrides, source)
    if arguments.cfg:
        print(as_yaml(config), end="")
        return 0
    for warning in check_across(config):
        print(f"warning: {warning}", file=sys.stderr)
    from rlvr.run import run_training

    return run_training(config)


def configure(overrides: list[str], source: YamlSource) -> TrainConfig:
    """One run's validated configuration.

    Raises:
        ConfigError: naming key, value and mend.
    """
    return train_config(compose(overrides, source).values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rlvr train", usage=USAGE, add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--config-dir", type=Path)
    parser.add_argument("--config-path", type=Path)
    return parser


def _help(source: YamlSource) -> str:
    return "\n".join(
        [
            f"usage: {USAGE}",
            "",
            "  -m, --multirun      one job for each combination of seed=0,1,2 objective=grpo,cispo: each in a fresh",
            "                      process and its own folder, one after another; hydra/launcher=submitit_local runs",
            "                      them at once, hydra/launcher=slurm hydra.launcher.partition=NAME on a cluster",
            "  --cfg job           print the resolved and validated configuration, and stop",
            "  --config-dir DIR    more choices for recipe= and the other groups: DIR/recipe/mine.yaml, DIR/data/...",
            "  --config-path RUN   take RUN/config.yaml instead of a recipe: repeats that run",
            "",
            "Recipes (recipe=NAME):",
            *recipes.listed(source, "recipe"),
            "",
            "Groups (group=choice; `rlvr recipes GROUP` says what each is; verifiers combine: verifier=[math,format]):",
            *(f"  {group:<10} {', '.join(source.choices(group))}" for group in source.groups() if group != "recipe"),
            "",
            "Keys (key=value), with their defaults; recipes set their own, `rlvr recipes NAME` shows which:",
            *recipes.key_lines(),
        ]
    )
