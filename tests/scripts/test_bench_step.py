"""The arithmetic of scripts/bench/step.py, on steps given by hand."""

import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))
STEP = runpy.run_path(str(BENCH / "step.py"))
FLOORS = runpy.run_path(str(BENCH / "floors.py"))
sys.path.remove(str(BENCH))


def side(*steps: dict[str, float], peak_mib: float) -> dict:
    contender = STEP["Side"].__new__(STEP["Side"])
    contender.steps, contender.peak_mib = list(steps), peak_mib
    return contender.result()


def one_step(seconds: float) -> dict[str, float]:
    times = {"generate": seconds / 2, "score": 0.0, "update": seconds / 2, "sync": 0.0, "probe": 0.0, "step": seconds}
    return {**times, "prompt_tokens": 600, "new_tokens": 400}


def test_a_side_reports_medians_and_tokens_per_second() -> None:
    result = side(one_step(4.0), one_step(40.0), one_step(2.0), peak_mib=100.0)
    assert result["seconds"]["step"] == 4.0
    assert result["seconds"]["update"] == 2.0
    assert result["seconds"]["other"] == 0.0
    assert result["generate_tokens_per_second"] == 200.0
    assert result["step_tokens_per_second"] == 100.0


def test_ratios_are_trls_over_ours() -> None:
    sides = {"vllm": side(one_step(2.0), peak_mib=100.0), "trl": side(one_step(9.0), peak_mib=400.0)}
    assert STEP["ratios"](sides) == {"ratio_trl_time": 4.5, "ratio_trl_memory": 4.0}


def test_ratios_of_sharing_prompts_are_without_over_with() -> None:
    sides = {"vllm": side(one_step(2.0), peak_mib=1.0), "vllm-unshared": side(one_step(5.0), peak_mib=1.0)}
    assert STEP["ratios"](sides) == {"ratio_unshared_time": 2.5, "ratio_unshared_update": 2.5}


def test_no_ratio_without_trl() -> None:
    assert STEP["ratios"]({"hf": side(one_step(2.0), peak_mib=1.0)}) == {}


def test_floors_are_the_least_arithmetic_and_traffic() -> None:
    work = FLOORS["Work"](body=100, head=50, rows=4, prompt_tokens=30, new_tokens=40)
    rates = FLOORS["Rates"](flops=1e3, bandwidth=1e9)
    floors = work.floors(rates)
    assert floors["update"] == pytest.approx(6 * (100 * 70 + 50 * 40) / 1e3)
    assert floors["generate"] == pytest.approx((2 * 100 * 30 + 2 * 150 * 40) / 1e3)
    assert floors["sync"] == pytest.approx(2 * 2 * 150 / 1e9)
    slow = work.floors(FLOORS["Rates"](flops=1e9, bandwidth=10.0))  # ten steps, each of which reads all weights
    assert slow["generate"] == pytest.approx(10 * 300 / 10, rel=1e-3)
