"""Bad input on the command line: exit code 2, one line with key, value and mend, and torch never imported."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

# Run as the console script does, then tell on standard output whether anything heavy came in.
SCRIPT = (
    "import sys; from rlvr.cli import main; code = main(sys.argv[1:]); "
    "print('heavy:', [m for m in ('torch', 'transformers', 'vllm', 'datasets') if m in sys.modules]); sys.exit(code)"
)
QUICK = ["train", "recipe=quickstart"]
# What is typed -> what the message must hold.
BAD = {
    "no recipe": (["train"], ["recipe=None", "choose one", "quickstart"]),
    "unknown recipe": (["train", "recipe=quickstrat"], ["recipe='quickstrat'", "did you mean quickstart?"]),
    "unknown group choice": ([*QUICK, "objective=zzz"], ["objective='zzz'", "grpo", "dapo"]),
    "unknown key": ([*QUICK, "+typo=1"], ["typo=1", "no such key"]),
    "misspelt key": (
        [*QUICK, "policy.learning_rat=1"],
        ["policy.learning_rat=1", "did you mean policy.learning_rate?"],
    ),
    "key of another group": ([*QUICK, "learning_rate=1"], ["learning_rate=1", "policy.learning_rate"]),
    "negative rate": ([*QUICK, "policy.learning_rate=-1"], ["policy.learning_rate=-1", "greater than 0"]),
    "wrong type": ([*QUICK, "rollout.group_size=many"], ["rollout.group_size='many'", "integer"]),
    "fraction for a count": ([*QUICK, "steps=2.5"], ["steps=2.5", "integer"]),
    "not one of the values": ([*QUICK, "rollout.engine=sglang"], ["rollout.engine='sglang'", "'hf' or 'vllm'"]),
    "group of one": (
        [*QUICK, "rollout.group_size=1"],
        ["objective.advantage.baseline='group_mean'", "rollout.group_size=1", "set"],
    ),
    "nucleus with a ratio": ([*QUICK, "rollout.top_p=0.9"], ["objective.ratio.level='token'", "rollout.top_p", "set"]),
    "pass@k": ([*QUICK, "eval.k=[1,64]"], ["eval.k=[1, 64]", "eval.samples=", "raise"]),
    "no override": ([*QUICK, "steps"], ["steps=None", "key=value"]),
    "unreadable override": ([*QUICK, "data.path=a(b.parquet"], ["data.path='a(b.parquet'", "quote"]),
    "sweep without -m": ([*QUICK, "seed=0,1"], ["seed='0,1'", "-m"]),
    "typo in one job of a sweep": (
        [*QUICK, "-m", "seed=0,1", "policy.learning_rate=1e-4,-1"],
        ["policy.learning_rate=-1", "greater than 0"],
    ),
    "SLURM where there is none": (
        [*QUICK, "-m", "seed=0,1", "hydra/launcher=slurm"],
        ["hydra/launcher='slurm'", "no SLURM"],
    ),
    "no such folder": (["train", "--config-path", "runs/none"], ["--config-path='runs/none'", "config.yaml"]),
    "unknown verifier option": ([*QUICK, "verifier.math.nope=1"], ["verifier.math.nope=1", "key"]),
    "no such command": (["tarin"], ["'tarin'", "did you mean train?"]),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """All command lines, two at a time, in an empty folder."""
    folder = tmp_path_factory.mktemp("bad")

    def run(argv):
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, *argv], capture_output=True, text=True, cwd=folder, check=False
        )

    with ThreadPoolExecutor(2) as pool:
        done = dict(zip(BAD, pool.map(run, (argv for argv, _ in BAD.values())), strict=True))
    assert list(folder.iterdir()) == [], "bad input must leave nothing behind"
    return done


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line_before_anything_heavy(case, outcomes):
    outcome = outcomes[case]
    assert outcome.returncode == 2, outcome.stderr
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("error: ")
    for name in BAD[case][1]:
        assert name in line
    assert outcome.stdout == "heavy: []\n"
