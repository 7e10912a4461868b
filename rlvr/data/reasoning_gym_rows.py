"""Problems of reasoning-gym (https://github.com/open-thought/reasoning-gym), generated: an optional extra."""

from __future__ import annotations

import json
from typing import Any

from rlvr.errors import DataError

# Split -> rows and seed. The i-th problem of a data set is drawn with seed + i, so the seeds lie far apart.
SPLITS = {"train": (2000, 0), "test": (200, 1_000_000)}


def reasoning_gym_rows(name: str, split: str) -> list[dict[str, Any]]:
    """Problems as {question, entry}; `entry` is the whole of what reasoning-gym scores an answer with.

    A test problem that occurs in training is left out of the test.

    Args:
        name: a data set of reasoning-gym (`leg_counting`).
        split: `train` or `test`.

    Raises:
        DataError: reasoning-gym is not installed, or has no such data set or split.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        mend = "reasoning-gym is not installed: pip install 'rlvr[reasoning-gym]'"
        raise DataError(f"data.path=reasoning_gym:{name}: {mend}") from error
    if name not in DATASETS:
        raise DataError(f"data.path=reasoning_gym:{name}: no such data set; known: {', '.join(sorted(DATASETS))}")
    if split not in SPLITS:
        raise DataError(f"reasoning-gym's data has no split {split!r}; there are train and test")
    try:
        entries = {
            part: list(reasoning_gym.create_dataset(name, size=size, seed=seed))
            for part, (size, seed) in SPLITS.items()
            if part in {"train", split}
        }
    except (AssertionError, ValueError, TypeError) as error:
        raise DataError(f"data.path=reasoning_gym:{name}: cannot be generated ({error})") from error
    seen = {entry["question"] for entry in entries["train"]} if split == "test" else set()
    # Through JSON: it is how entries reach the verifiers' workers.
    return [
        {"question": entry["question"], "entry": json.loads(json.dumps(entry, default=str))}
        for entry in entries[split]
        if entry["question"] not in seen
    ]
