import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.objectives import build
from rlvr.objectives.controllers import CONTROLLERS, band, horizon
from rlvr.objectives.spec import ControllerSpec

coefs = st.floats(1e-4, 10)
measured = st.floats(0, 5)
PENALTY = {"trust": {"kind": "kl_penalty", "coef": 1.0}, "epochs": 2}


@given(coef=coefs, kl=measured, factor=st.floats(1, 4))
def test_the_band_halves_and_doubles_strictly_outside(coef, kl, factor):
    spec = ControllerSpec(kind="band", target=0.5, band=factor)
    wanted = coef / 2 if kl < 0.5 / factor else 2 * coef if kl > 0.5 * factor else coef
    assert band(coef, kl, 8, spec) == wanted


def test_the_edges_of_the_band_are_inside():
    spec = ControllerSpec(kind="band", target=0.5, band=2.0)
    assert [band(1.0, kl, 8, spec) for kl in (0.2499, 0.25, 0.5, 1.0, 1.0001)] == [0.5, 1.0, 1.0, 1.0, 2.0]


@given(coef=coefs, kl=measured, rows=st.integers(1, 512))
def test_the_horizon_moves_in_proportion_and_by_a_fifth_at_most(coef, kl, rows):
    spec = ControllerSpec(kind="horizon", target=0.5, horizon=1000)
    error = max(-0.2, min(0.2, kl / 0.5 - 1))
    assert horizon(coef, kl, rows, spec) == pytest.approx(coef * (1 + error * rows / 1000))


@pytest.mark.parametrize("kind", list(CONTROLLERS))
def test_the_target_is_a_fixed_point(kind):
    assert CONTROLLERS[kind](0.3, 0.1, 64, ControllerSpec(kind=kind, target=0.1)) == pytest.approx(0.3)


def test_the_penalty_of_ppo_follows_the_kl_to_the_behaviour_policy():
    objective = build({**PENALTY, "controller": {"kind": "band", "target": 0.01}})
    objective.after_update({"policy/kl_anchor": 1.0, "policy/kl_ref": 0.0}, 8)
    assert objective.state_dict()["coef"] == 2.0
    objective.after_update({}, 8)  # no optimizer step was taken
    assert objective.state_dict()["coef"] == 2.0
    objective.after_update({"policy/kl_anchor": 0.0}, 8)
    assert objective.state_dict()["coef"] == 1.0


def test_everything_else_follows_the_kl_to_the_reference():
    spec = {"kl": {"placement": "loss", "coef": 0.1}, "controller": {"kind": "horizon", "target": 0.1, "horizon": 100}}
    objective = build(spec)
    objective.after_update({"policy/kl_anchor": 0.0, "policy/kl_ref": 9.0}, 50)
    assert objective.kl_coef == pytest.approx(0.1 * 1.1)
