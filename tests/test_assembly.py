"""Every preset through the whole loop: sampled, scored, trained and handed over by the parts a run is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlvr.assembly import assemble
from rlvr.commands.compose import YamlSource, compose
from rlvr.config_checks import train_config
from rlvr.observe.console import Console
from rlvr.observe.metrics import Clock

SOURCE = YamlSource()
SMALL = [
    "recipe=quickstart",
    "steps=2",
    "policy.prompts_per_step=4",
    "rollout.group_size=4",
    "objective.minibatches=2",
    "eval.every=0",
    "scoring.workers=1",
]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose model, half taught, is right now and then."""
    folder = tmp_path_factory.mktemp("run")
    with ExitStack() as stack:
        assemble(configure("cold_start.steps=120"), folder, Console(), stack)
    return folder / "cold_start"


def configure(*overrides: str):
    return train_config(compose([*SMALL, *overrides], SOURCE).values)


@pytest.mark.parametrize("name", sorted(SOURCE.choices("objective")))
def test_every_objective_trains(name: str, started: Path, tmp_path: Path) -> None:
    waits = ["objective.critic.warmup_steps=0"] if name == "vapo" else []
    config = configure(f"objective={name}", f"model.path={started}", "cold_start.steps=0", *waits)
    with ExitStack() as stack:
        loop = assemble(config, tmp_path, Console(), stack).loop
        loop.sync(Clock())
        before = {key: weight.clone() for key, weight in loop.policy.weights()}
        for groups, metrics in loop.steps():
            assert len(groups) >= 4
            assert all(math.isfinite(value) for value in metrics.values()), metrics
        assert loop.policy.version >= 1
        assert any(not weight.equal(before[key]) for key, weight in loop.policy.weights())


def test_the_engine_sleeps_while_the_policy_trains(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def watch(owner: object, name: str) -> None:
        own = getattr(owner, name)

        def noted(*args: object, **kwargs: object) -> object:
            events.append(name)
            return own(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    config = configure(f"model.path={started}", "cold_start.steps=0")
    with ExitStack() as stack:
        loop = assemble(config, tmp_path, Console(), stack).loop
        for name in ("generate", "sleep", "wake", "load_weights"):
            watch(loop.engine, name)
        watch(loop.policy, "update")
        loop.sync(Clock())
        next(loop.steps())
    assert events == ["load_weights", "generate", "sleep", "update", "wake", "load_weights"]


def test_completions_go_on_to_the_limit_where_the_end_is_ignored(started: Path, tmp_path: Path) -> None:
    lengths = {}
    for ignored in (False, True):
        config = configure(f"model.path={started}", "cold_start.steps=0", f"rollout.ignore_eos={ignored}")
        with ExitStack() as stack:
            loop = assemble(config, tmp_path, Console(), stack).loop
            loop.sync(Clock())
            groups = loop.rollouts(Clock()).sampled
        lengths[ignored] = {len(rollout.completion.token_ids) for group in groups for rollout in group.rollouts}
    assert lengths[True] == {config.rollout.max_new_tokens}
    assert max(lengths[False]) < config.rollout.max_new_tokens
