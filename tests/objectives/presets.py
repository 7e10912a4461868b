"""The presets as a user's recipe sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlvr.objectives import build
from rlvr.objectives.objective import Objective

FOLDER = Path(__file__).parents[2] / "recipes" / "objective"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> dict[str, Any]:
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return content.get("objective", content)  # nested where a preset brings more than an objective


def preset(name: str, max_new_tokens: int = 7) -> Objective:
    return build(load(name), max_new_tokens=max_new_tokens)
