"""What scripts/bench/objectives.py reads from runs and makes of them, on runs written by hand."""

import json
import runpy
from pathlib import Path

import pytest

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "bench" / "objectives.py"))


def write_run(folder: Path, accuracies: list[float], after: float, clipped: float | None = 0.25) -> None:
    rows = [
        {"step": step, "accuracy": accuracy, "policy/entropy": 1.0 / step}
        | ({} if clipped is None else {"policy/clip_fraction": clipped})
        for step, accuracy in enumerate(accuracies, start=1)
    ]
    (folder / "eval").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, value in ((0, 0.4), (len(rows), after)):
        (folder / "eval" / f"step-{step:06d}.json").write_text(json.dumps({"avg@1": value, "step": step}))


def test_a_run_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, [0.5] * 3 + [0.9] * 6, after=0.875)
    result = BENCH["read_run"](tmp_path, 9)
    assert (result.before, result.accuracy, result.clip_fraction) == (0.4, 0.875, pytest.approx(0.25))
    assert result.steps_to_80 == 7  # 0.5, 0.9 x 4 is the first mean of five above 0.8
    assert result.entropy == pytest.approx(sum(1 / step for step in range(1, 10)) / 9)
    assert result.curve == [0.5] * 3 + [0.9] * 6


def test_without_a_ratio_nothing_is_clipped_and_what_is_never_reached_is_none(tmp_path: Path) -> None:
    write_run(tmp_path, [0.5] * 6, after=0.5, clipped=None)
    result = BENCH["read_run"](tmp_path, 6)
    assert result.clip_fraction is None
    assert result.steps_to_80 is None


def test_steps_that_train_the_critic_alone_have_no_entropy(tmp_path: Path) -> None:
    write_run(tmp_path, [0.5] * 2, after=0.5)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n{"step": 2, "accuracy": 0.5}\n')
    assert BENCH["read_run"](tmp_path, 2).entropy is None


def test_a_run_counts_as_done_once_it_is_evaluated_at_the_last_step(tmp_path: Path) -> None:
    write_run(tmp_path, [0.5, 0.6], after=0.6)
    assert BENCH["finished"](tmp_path, 2)
    assert not BENCH["finished"](tmp_path, 3)
    assert not BENCH["finished"](tmp_path / "none", 2)


def bench_in(folder: Path, steps: int):
    return BENCH["Bench"](folder, steps, folder / "record.json", threads=1)


def test_seeds_are_averaged_and_the_best_comes_first(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, 6)
    for seed, after in ((1, 0.8), (0, 0.9)):
        write_run(bench.run_folder("dapo", seed), [0.5] * 5 + [0.6 + seed], after)
        bench.keep("dapo", seed)
    write_run(bench.run_folder("grpo", 0), [1.0] * 6, after=0.95)
    bench.keep("grpo", 0)
    results = bench.results()
    assert list(results["dapo"]) == [0, 1]
    presets = {name: BENCH["report"](results.get(name, {}), "refused: no") for name in ("dapo", "grpo", "ppo")}
    assert presets["dapo"]["accuracy"] == {"mean": pytest.approx(0.85), "low": 0.8, "high": 0.9}
    assert BENCH["table"](presets).splitlines()[2:] == [
        "| grpo | 95.0% | 5 | 25.00% | 0.408 | 1 |",
        "| dapo | 85.0% (80.0% to 90.0%) | - | 25.00% | 0.408 | 2 |",
        "| ppo | refused: no | | | | 0 |",
    ]


def test_a_record_of_another_length_is_not_mixed_in(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, 2)
    write_run(bench.run_folder("grpo", 0), [0.5, 0.6], after=0.6)
    bench.keep("grpo", 0)
    with pytest.raises(SystemExit, match="of runs of 2 steps, not 3"):
        bench_in(tmp_path, 3).results()


def test_reached_by_some_seeds_only() -> None:
    results = [BENCH["Result"](0.4, 0.9, steps, None, 0.1, []) for steps in (40, None, 50)]
    row = BENCH["summary"](results)
    assert (row["solved"], row["seeds"], row["clip_fraction"]) == (2, 3, None)
    assert "| x | 90.0% | 45 (40 to 50) in 2 of 3 | - | 0.100 | 3 |" in BENCH["table"]({"x": row})


def test_a_finished_run_is_not_trained_again_and_a_refused_one_says_why(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, 2)
    write_run(bench.run_folder("grpo", 0), [0.5, 0.6], after=0.6)
    (tmp_path / "start-seed0" / "cold_start").mkdir(parents=True)
    assert bench.train("grpo", 0) is None
    assert bench.results()["grpo"][0].accuracy == 0.6
    assert not list(tmp_path.glob("*.log"))
    problem = bench.train("no_such_objective", 0)
    assert problem.startswith("refused: objective='no_such_objective': there is no such choice")
