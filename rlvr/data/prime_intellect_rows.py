"""Rows of Prime Intellect's single-turn environments (https://github.com/PrimeIntellect-ai/verifiers): an extra."""

from __future__ import annotations

import json
from typing import Any

from rlvr.errors import DataError
from rlvr.verifiers.environments.rows import environment_rows


def prime_intellect_rows(environment: str, split: str) -> list[dict[str, Any]]:
    """Problems as {messages, entry}; `entry` is the whole input of the environment's rollout.

    Rows that differ only in their number are one.

    Args:
        environment: `NAME`, or `NAME?key=value&key=value` with arguments of its `load_environment`.
        split: `train`, or `test` for the environment's evaluation data.

    Raises:
        DataError: the package or the environment is not installed or does not load, has more than one turn, or no such
            split.
    """
    try:
        inputs = environment_rows(environment, split)
    except ValueError as error:
        raise DataError(f"data.path=prime_intellect:{environment} data.split={split}: {error}") from error
    distinct: dict[str, dict[str, Any]] = {}
    for row in inputs:
        distinct.setdefault(json.dumps({**row, "example_id": 0}, sort_keys=True), row)
    return [{"messages": _messages(row["prompt"]), "entry": row} for row in distinct.values()]


def _messages(prompt: Any) -> Any:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": turn["role"], "content": turn["content"]} for turn in prompt]
