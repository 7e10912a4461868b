"""Checks an environment, or reads its rows, in a process of its own: it may import anything and handle signals.

    python -m rlvr.verifiers.environments.rows ENVIRONMENT [SPLIT]

One JSON object a line on stdout; or exit status 2 with the reason as the last line on stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import rlvr
from rlvr.verifiers.environments.single_turn import SingleTurn


def environment_rows(environment: str, split: str | None) -> list[dict[str, Any]]:
    """The rows of an environment's split; without a split none, only the checks.

    Raises:
        ValueError: the environment cannot be used; see `SingleTurn`.
    """
    path = [str(Path(rlvr.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, "-m", __name__, environment, *([split] if split is not None else [])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    if result.returncode != 0:
        said = result.stderr.strip().splitlines() or [f"the process that loads it ended with {result.returncode}"]
        raise ValueError(said[-1])
    return [json.loads(line) for line in result.stdout.splitlines()]


def main(argv: list[str]) -> int:
    """Args: as in the module's usage."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as output:
        os.dup2(2, 1)  # what the environment prints is no row
        try:
            environment = SingleTurn(argv[0])
            rows = environment.rows(argv[1]) if len(argv) > 1 else []
        except ValueError as error:
            print(" ".join(str(error).split()), file=sys.stderr)
            return 2
        output.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
