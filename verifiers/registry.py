"""Finds verifiers by name and builds them from options: `verifiers/NAME.py` holds the class `Name`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError
from rlvr.validation import flat_fields, validate
from rlvr.verifiers.base import Verifier
from rlvr.verifiers.combine import Combined

_NOT_VERIFIERS = {"__init__", "base", "combine", "registry", "worker"}


def names() -> list[str]:
    """Every verifier there is."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NOT_VERIFIERS)


def build(options: Mapping[str, Mapping[str, Any] | None]) -> Combined:
    """The named verifiers as one. Cheap: what they need is imported by `prepare` or by the first case.

    Args:
        options: verifier name -> its options; None for no options.

    Raises:
        ConfigError: no verifier, an unknown one, a wrong option, or a gate with nothing behind it.
    """
    if not options:
        raise ConfigError("verifier", dict(options), f"name at least one of: {', '.join(names())}")
    verifiers = {name: _build_one(name, values) for name, values in options.items()}
    if len(verifiers) == 1 and (gated := next((v for v in verifiers.values() if v.gate is not None), None)):
        raise ConfigError(f"verifier.{next(iter(options))}.gate", gated.gate, "there is no other verifier to hold back")
    return Combined(verifiers)


def check(options: Mapping[str, Mapping[str, Any] | None], deadline_seconds: float = math.inf) -> None:
    """Refuses what `build` would refuse, and a verifier that may think longer than its process is given.

    Args:
        deadline_seconds: `scoring.deadline_seconds`.

    Raises:
        ConfigError: see `build`; or both keys of the two times.
    """
    for name, verifier in build(options).verifiers.items():
        if verifier.time_option is None:
            continue
        seconds = getattr(verifier, verifier.time_option)
        if seconds >= deadline_seconds:
            key = f"verifier.{name}.{verifier.time_option}"
            mend = f"the worker is killed before that, at scoring.deadline_seconds={deadline_seconds:g}"
            raise ConfigError(key, seconds, f"{mend}; take less here or more there")


def verifier_class(name: str) -> type[Verifier]:
    """The class `Name` of `verifiers/name.py`; its fields are the options.

    Raises:
        ConfigError: there is no such verifier.
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        mend = f"did you mean {close[0]}?" if close else f"known: {', '.join(names())}"
        raise ConfigError("verifier", name, f"there is no such verifier; {mend}")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    found: type[Verifier] = getattr(import_module(f"{__package__}.{name}"), class_name)
    return found


def verifier_options() -> list[tuple[str, Any, Any, str]]:
    """(key, type, default, meaning) of every verifier's options; those that all have once, as `verifier.NAME.…`."""
    common = flat_fields(Verifier)
    return [
        *flat_fields(Verifier, "verifier.NAME."),
        *(
            row
            for name in names()
            for row in flat_fields(verifier_class(name), f"verifier.{name}.")
            if row[0].rpartition(".")[2] not in {key for key, *_ in common}
        ),
    ]


def _build_one(name: str, values: Mapping[str, Any] | None) -> Verifier:
    options = verifier_class(name)
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(f"verifier.{name}", values, "give a mapping of options, as in `weight: 1.0`")
    return validate(options, values or {}, f"verifier.{name}")
