"""Sweeps: the jobs that come of overrides, their folders, and the table made of what they left."""

import json

import pytest

from rlvr.commands import sweep
from rlvr.commands.compose import YamlSource, parse
from rlvr.errors import ConfigError

SOURCE = YamlSource()


def jobs_of(overrides, folder):
    parsed = parse(overrides)
    swept = {o.key_or_group for o in parsed if o.is_sweep_override()}
    return sweep._jobs(sweep._combinations(parsed, SOURCE), swept, folder, SOURCE)


def test_every_combination_is_a_job_named_by_its_swept_values(tmp_path):
    jobs = jobs_of(["recipe=quickstart", "seed=0,1", "objective=grpo,cispo", "steps=2"], tmp_path)
    assert [job.name for job in jobs] == [
        "seed=0,objective=grpo",
        "seed=0,objective=cispo",
        "seed=1,objective=grpo",
        "seed=1,objective=cispo",
    ]
    for job in jobs:
        assert job.run == tmp_path / job.name
        assert "recipe=quickstart" in job.command
        assert "++steps=2" in job.command


def test_names_are_safe_and_never_twice_the_same(tmp_path):
    names = [job.name for job in jobs_of(["recipe=quickstart", "data.path=a/b,a_b,'c d'"], tmp_path)]
    assert names == ["data.path=a_b", "data.path=a_b-1", "data.path=c_d"]


def test_ranges_and_lists_of_verifiers_are_swept(tmp_path):
    jobs = jobs_of(["recipe=quickstart", "seed=range(0,3)", "verifier=[math],[math,format]"], tmp_path)
    assert [job.name for job in jobs][:2] == ["seed=0,verifier=_math_", "seed=0,verifier=_math,format_"]
    assert len(jobs) == 6


def test_a_sweep_without_a_swept_value_is_one_job(tmp_path):
    assert [job.name for job in jobs_of(["recipe=quickstart"], tmp_path)] == ["job"]


def test_a_second_sweep_in_the_same_second_gets_another_folder(tmp_path):
    folders = {sweep._new_folder(tmp_path) for _ in range(4)}
    assert len(folders) == 4
    assert all(folder.is_dir() for folder in folders)


def test_no_permission_to_write_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="output="):
        sweep._new_folder(tmp_path / "file")


LOGS = {
    "seed=0": ("step 1\nexit code 0\n", "done"),
    "seed=1": ("step 1\nerror: data.path=x: no such file\nbye\nexit code 2\n", "failed (2)"),
    "seed=2": ("Traceback ...\nZeroDivisionError: 1/0\nexit code 1\n", "failed (1)"),
    "seed=3": ("step 1\nexit code -9\n", "killed"),
    "seed=4": ("saved\nexit code 130\n", "interrupted"),
    "seed=5": ("step 1\n", "lost"),
    "seed=6": (None, "not run"),
}


def test_the_table_tells_what_became_of_each_job(tmp_path, capsys):
    jobs = jobs_of(["recipe=quickstart", "seed=range(0,7)"], tmp_path)
    for job in jobs:
        text, _ = LOGS[job.name]
        if text:
            job.log.write_text(text)
    (jobs[0].run / "eval").mkdir(parents=True)
    (jobs[0].run / "metrics.jsonl").write_text(
        json.dumps({"reward/mean": 0.5}) + "\n" + json.dumps({"reward/mean": 0.75, "accuracy": 0.625}) + "\n"
    )
    (jobs[0].run / "eval" / "step-000000.json").write_text(json.dumps({"pass@1": 0.1}))
    (jobs[0].run / "eval" / "step-000010.json").write_text(json.dumps({"pass@1": 0.9}))
    assert sweep._print_table(jobs) == 6
    shown = capsys.readouterr().out
    for name, (_, status) in LOGS.items():
        (line,) = [line for line in shown.splitlines() if line.startswith(f"{name} ")]
        assert line.removeprefix(name).lstrip().startswith(f"{status} ")
    first = shown.splitlines()[2]
    assert first.split() == ["seed=0", "done", "0.750", "0.625", "0.900", str(jobs[0].run)]
    assert "seed=1: error: data.path=x: no such file" in shown
    assert "seed=2: ZeroDivisionError: 1/0" in shown
