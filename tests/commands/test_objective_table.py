"""The table method × axis says everything that the YAML says."""

from itertools import pairwise

import pytest
import yaml

from rlvr import cli
from rlvr.commands.compose import YamlSource
from rlvr.commands.objective_table import COLUMNS, specs, table
from rlvr.objectives.legality import BOUNDED
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.validation import validate

SOURCE = YamlSource()


@pytest.fixture(scope="module")
def objectives():
    return specs(SOURCE)


def parsed(lines):
    """Name -> spec, read back from the table's own text."""
    head, *rows = lines
    starts = [0, *(head.index(heading) for heading in COLUMNS), None]
    values = {}
    for line in rows:
        if not line.startswith(" "):
            name, *cells = [line[a:b].strip() for a, b in pairwise(starts)]
            values[name] = from_cells(*cells)
        else:
            for item in line.split():
                key, _, value = item.partition("=")
                section, _, last = key.rpartition(".")
                (values[name].setdefault(section, {}) if section else values[name])[last] = yaml.safe_load(value)
    return {name: validate(ObjectiveSpec, each) for name, each in values.items()}


def from_cells(baseline, scale, ratio, trust, aggregate, kl):
    kind, *bounds = trust.split()
    values = {"advantage": {"baseline": baseline, "scale": scale}, "ratio": {"level": ratio}, "trust": {"kind": kind}}
    if kind in BOUNDED:
        low, *high = bounds[0].split("/")
        values["trust"] |= {"low": float(low), "high": float(*high or [low])}
    if kl != "none":
        placement, estimator, coef = kl.split()
        values["kl"] = {"placement": placement, "estimator": estimator, "coef": float(coef)}
    return {**values, "aggregate": aggregate}


def test_the_table_read_back_is_the_yaml(objectives):
    written = {name: yaml.safe_load(file.read_text()) for name, file in SOURCE.choices("objective").items()}
    # Nested where a preset brings more than an objective.
    assert parsed(table(objectives)) == {
        name: validate(ObjectiveSpec, each.get("objective", each)) for name, each in written.items()
    }


def test_it_fits_a_terminal(objectives):
    assert max(map(len, table(objectives))) <= 120


def test_the_command_describes_every_objective_and_prints_the_table(objectives, capsys):
    assert cli.main(["recipes", "objective"]) == 0
    described, shown = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in described.splitlines()] == list(objectives)
    assert shown.splitlines() == table(objectives)


def test_a_users_own_objective_is_in_it_with_what_it_builds_on(tmp_path):
    (tmp_path / "objective").mkdir()
    mine = "# Mine.\ndefaults: [dapo]\naggregate: prompt_mean\nconstant_length: ${rollout.max_new_tokens}\n"
    (tmp_path / "objective" / "mine.yaml").write_text(mine)
    spec = specs(YamlSource(config_dir=tmp_path))["mine"]
    assert (spec.aggregate, spec.trust.high, spec.constant_length) == ("prompt_mean", 0.28, 512)
