"""How good a model is on a data set: pass@k, avg@k and maj@k, with bootstrap intervals over prompts.

Shape legend: P prompts, n scored samples of one prompt (may differ: a sample whose verdict is a fault is left out).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlvr.config import EvalConfig
from rlvr.generation import sample_groups
from rlvr.records import FAULTS, Group, Prompt, Verdict
from rlvr.rollout.engine import RolloutEngine, Sampling

if TYPE_CHECKING:
    from rlvr.scoring import Scorer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 2000
LEVEL = 0.95
CORRECT: Hashable = ("correct",)  # the one class of votes for the reference answer, however it was written


def pass_at_k(num_samples: Ints, num_correct: Ints, k: int) -> Floats:
    """Probability that at least one of k samples, drawn without replacement from a prompt's n, is correct.

    1 - C(n - c, k) / C(n, k) as the product 1 - prod_{i = n-c+1..n} (1 - k / i), which never overflows
    (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1 and figure 3).

    Args:
        num_samples: [P], n of each prompt.
        num_correct: [P], c of each prompt, 0 <= c <= n.
        k: number of draws, at least 1.

    Returns:
        [P]; nan where n < k.
    """
    values = np.full(len(num_samples), np.nan)
    for row, (n, c) in enumerate(zip(num_samples.tolist(), num_correct.tolist(), strict=True)):
        if n - c < k <= n:
            values[row] = 1.0
        elif k <= n:
            values[row] = 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
    return values


def maj_at_k(votes: Sequence[Hashable | None], k: int) -> float:
    """Probability that the majority vote of k samples, drawn without replacement from a prompt's n, is `CORRECT`.

    Exact, over all C(n, k) subsets. A tie goes to the answer that comes first among all n votes; None is a sample
    without an answer, which takes a place but casts no vote; with no vote at all the majority is wrong.

    Let the correct answer get v votes. It wins with every choice of the k - v others in which no rival gets more than
    v votes (v - 1 for a rival that comes first); the number of those choices is a coefficient of a product of
    truncated binomial polynomials, one for each rival.

    Returns:
        nan when n < k.
    """
    if len(votes) < k:
        return math.nan
    counts = Counter(vote for vote in votes if vote is not None)
    order = list(counts)
    right = counts.pop(CORRECT, 0)
    winning = 0
    for v in range(1, min(right, k) + 1):
        unbounded, bounded = len(votes) - right - counts.total(), []
        for rival, count in counts.items():
            limit = v - (order.index(rival) < order.index(CORRECT))
            if count <= limit:
                unbounded += count
            else:
                bounded.append([math.comb(count, t) for t in range(limit + 1)])
        winning += math.comb(right, v) * _coefficient(bounded, unbounded, k - v)
    return winning / math.comb(len(votes), k)


def _coefficient(factors: Sequence[Sequence[int]], unbounded: int, degree: int) -> int:
    """Coefficient of x^degree in (1 + x)^unbounded times the polynomials `factors` (lowest power first)."""
    product = [1]
    for factor in factors:
        longer = [0] * min(len(product) + len(factor) - 1, degree + 1)
        for i, a in enumerate(product):
            for j, b in enumerate(factor[: len(longer) - i]):
                longer[i + j] += a * b
        product = longer
    return sum(a * math.comb(unbounded, degree - i) for i, a in enumerate(product))


def bootstrap_interval(values: Floats, seed: int) -> tuple[float, float]:
    """Percentile bootstrap interval (95 %) of the mean of `values` [P], resampling prompts; nan entries are left out.

    The samples of a prompt stay together, so that their dependence is in the interval. (nan, nan) without any value;
    the width is 0 when all values are equal, however few there are.
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found; the fields below `metrics` are in the JSON under the same names."""

    metrics: dict[str, float]
    """`pass@k` for each k, `avg@<samples>`, `maj@k` for each k above 1; each also as `..._low` and `..._high`, the
    bounds of its 95 % interval. No `maj@k` when a verifier calls responses correct without naming their answer."""
    num_prompts: int
    num_samples: int
    """Samples asked for of each prompt."""
    num_short: dict[str, int]
    """Metric -> prompts left out of it, since faults left fewer than k samples."""
    faults: dict[str, int]
    """Fault status -> samples left out of everything."""
    mean_length: float
    """Tokens per completion."""
    truncated: float
    """Share of completions that hit the length limit."""
    temperature: float
    top_p: float
    seed: int
    step: int

    def interval(self, name: str) -> tuple[float, float, float]:
        """Value, lower and upper bound of a metric."""
        return self.metrics[name], self.metrics[f"{name}_low"], self.metrics[f"{name}_high"]

    @property
    def names(self) -> list[str]:
        """The metrics without their bounds."""
        return [name for name in self.metrics if not name.endswith(("_low", "_high"))]

    def as_json(self) -> dict[str, Any]:
        """Flat, metrics first; a value that is not a number is null."""
        metrics = {name: None if math.isnan(value) else value for name, value in self.metrics.items()}
        rest = {name: value for name, value in vars(self).items() if name != "metrics"}
        return {**metrics, **rest}


def evaluate(
    engine: RolloutEngine,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    config: EvalConfig,
    max_new_tokens: int,
    seed: int,
    step: int,
    advance: Callable[[int], object] = lambda count: None,
) -> EvalResult:
    """Samples `config.samples` completions of each prompt, scores them and reduces the verdicts.

    Args:
        engine: holds the weights to evaluate.
        scorer: judges while the rest is still sampled.
        prompts: at least one.
        config: samples, k, temperature, top_p.
        max_new_tokens: longest completion.
        seed: of sampling and of the intervals.
        step: the training step whose weights these are; 0 for a model that is not in training.
        advance: told the number of prompts that have just been sampled (a progress bar).
    """
    groups = sample_groups(
        engine,
        scorer,
        prompts,
        Sampling(max_new_tokens, config.temperature, config.top_p),
        num_samples=config.samples,
        seed=seed,
        step=step,
        advance=advance,
    )
    return reduce_groups(groups, config, seed, step)


def reduce_groups(groups: Sequence[Group], config: EvalConfig, seed: int, step: int) -> EvalResult:
    """The figures of scored groups; see `EvalResult`."""
    kept = [[r.verdict for r in group.rollouts if not r.verdict.is_fault] for group in groups]
    num_samples = np.array([len(verdicts) for verdicts in kept], dtype=np.int64)
    num_correct = np.array([sum(v.is_correct for v in verdicts) for verdicts in kept], dtype=np.int64)
    votes = [[_vote(v) for v in verdicts] for verdicts in kept]
    values = {f"pass@{k}": pass_at_k(num_samples, num_correct, k) for k in config.k}
    values[f"avg@{config.samples}"] = pass_at_k(num_samples, num_correct, 1)  # the share of correct samples
    if all(v.extracted is not None for verdicts in kept for v in verdicts if v.is_correct):
        values |= {f"maj@{k}": np.array([maj_at_k(v, k) for v in votes]) for k in config.k if k > 1}
    metrics = {}
    for name, value in values.items():
        metrics[name] = float(np.nanmean(value)) if not np.isnan(value).all() else math.nan
        metrics[f"{name}_low"], metrics[f"{name}_high"] = bootstrap_interval(value, seed)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    statuses = Counter(r.verdict.status for r in rollouts)
    return EvalResult(
        metrics=metrics,
        num_prompts=len(groups),
        num_samples=config.samples,
        num_short={name: int(np.isnan(value).sum()) for name, value in values.items() if np.isnan(value).any()},
        faults={status: statuses[status] for status in sorted(FAULTS)},
        mean_length=float(np.mean([len(r.completion.token_ids) for r in rollouts])),
        truncated=float(np.mean([r.completion.finish_reason == "length" for r in rollouts])),
        temperature=config.temperature,
        top_p=config.top_p,
        seed=seed,
        step=step,
    )


def _vote(verdict: Verdict) -> Hashable | None:
    """Correct answers are equal to each other however they are written; wrong ones by their text."""
    return CORRECT if verdict.is_correct else verdict.extracted


def eval_file(run: Path, step: int) -> Path:
    return run / "eval" / f"step-{step:06d}.json"


def read_interval(run: Path, step: int, name: str) -> tuple[float, float, float] | None:
    """Value, lower and upper bound of a metric of a run's evaluation; None when that was not made or not taken."""
    file = eval_file(run, step)
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return (found[name], found[f"{name}_low"], found[f"{name}_high"]) if name in found else None


def write_eval(run: Path, result: EvalResult) -> Path:
    """Writes `eval/step-000050.json` in a run's folder."""
    file = eval_file(run, result.step)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, result)
    return file


def write_json(file: Path, result: EvalResult) -> None:
    """Writes the result; the file is whole or absent."""
    unfinished = file.with_name(file.name + ".tmp")
    unfinished.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    unfinished.replace(file)
