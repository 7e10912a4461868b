"""The fit and the table of scripts/bench/growth.py."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def growth():
    sys.path.insert(0, str(FOLDER))
    try:
        return runpy.run_path(str(FOLDER / "growth.py"))
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(growth, power: float) -> None:
    points = [{"new_tokens": n, "step": 3 * n**power} for n in (512, 1024, 2048)]
    assert growth["exponent"](points, "step") == pytest.approx(power)


def test_the_table_has_every_axis(growth) -> None:
    points = [{"value": v, "new_tokens": 100 * v, "generate": 1.0, "update": v, "step": 1.0 + v} for v in (4, 8, 16)]
    table = growth["table"]({"group size": points})
    assert "| group size | 5.0 s (4) | 9.0 s (8) | 17.0 s (16) | 0.00 | 1.00 | 0.88 |" in table
