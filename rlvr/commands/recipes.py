"""`rlvr recipes [NAME]`: lists recipes or a group's choices, or shows a recipe with the source of each value."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, asdict
from pathlib import Path
from typing import Any

from rlvr.commands.compose import YamlSource, compose, flow, nearest
from rlvr.commands.objective_table import specs, table
from rlvr.config import TrainConfig
from rlvr.config_checks import train_config
from rlvr.errors import ConfigError
from rlvr.validation import flat_fields
from rlvr.verifiers.registry import verifier_options

USAGE = "rlvr recipes [RECIPE [key=value ...] | GROUP] [--config-dir DIR]"
WIDTH = 116


def main(argv: list[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="rlvr recipes", usage=USAGE, description=__doc__)
    parser.add_argument("name", nargs="?", metavar="RECIPE | GROUP")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--config-dir", type=Path, help="folder with more recipes and groups")
    arguments = parser.parse_intermixed_args(argv)
    source = YamlSource(config_dir=arguments.config_dir)
    source.check()
    name, groups, known = arguments.name, source.groups(), source.choices("recipe")
    if name is None:
        print("\n".join([*listed(source, "recipe"), "", "rlvr recipes NAME   shows one resolved"]))
        print(f"rlvr recipes GROUP  lists a group's choices: {', '.join(g for g in groups if g != 'recipe')}")
    elif name in known:
        print(resolved([f"recipe={name}", *arguments.overrides], source), end="")
    elif name in groups:
        print("\n".join(listed(source, name)))
        if name == "objective":
            print("\n" + "\n".join(table(specs(source))))
    else:
        raise ConfigError("recipe", name, f"there is no such recipe or group; {nearest(name, [*known, *groups])}")
    return 0


def listed(source: YamlSource, group: str) -> list[str]:
    """One line a choice: its name and the first line of its head comment."""
    choices = source.choices(group)
    width = max(map(len, choices), default=0)
    return [f"  {name:<{width}}  {head_comment(file)[0]}" for name, file in choices.items()]


def head_comment(file: Path) -> list[str]:
    """The lines of a YAML file's first comment, without Hydra's directives."""
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("# ")
        if not text.startswith("@"):
            lines.append(text)
    return lines or [""]


def resolved(overrides: list[str], source: YamlSource) -> str:
    """The composed configuration as YAML; a comment names where each value that is no default comes from."""
    composed = compose(overrides, source)
    lines = list(_yaml_lines(asdict(train_config(composed.values)), composed.origins))
    column = min(max(len(text) for text, _ in lines), 60)
    return "".join(f"{text:<{column}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _yaml_lines(values: dict[str, Any], origins: dict[str, str], prefix: str = "") -> Iterator[tuple[str, str]]:
    indent = "  " * prefix.count(".")
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:", ""
            yield from _yaml_lines(value, origins, f"{key}.")
        else:
            yield f"{indent}{name}: {flow(value)}", origins.get(key, "default")


def key_lines() -> Iterator[str]:
    """Every key of a run with its default and its meaning."""
    for key, _, default, meaning in [*flat_fields(TrainConfig), *verifier_options()]:
        if key != "verifier":
            yield from _key_lines(key, default, meaning)


def _key_lines(key: str, default: Any, meaning: str) -> list[str]:
    head = f"  {key}={'???' if default is MISSING else flow(default)}"
    gap = " " * 44
    folded = textwrap.wrap(meaning, WIDTH - len(gap)) or [""]
    if len(head) < len(gap):
        return [f"{head:<{len(gap)}}{folded[0]}", *(gap + line for line in folded[1:])]
    return [head, *(gap + line for line in folded)]
