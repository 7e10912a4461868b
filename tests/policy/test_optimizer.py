import io
import math

import pytest
import torch
from torch import nn

from rlvr.config import OptimizerConfig
from rlvr.policy.optimizer import MasterAdamW, learning_rate

FORMS = {
    "float32": OptimizerConfig(),
    "int8": OptimizerConfig(moments="int8"),
    "stochastic rounding": OptimizerConfig(master_weights="stochastic_rounding"),
    "int8 and stochastic rounding": OptimizerConfig(moments="int8", master_weights="stochastic_rounding"),
    "offload": OptimizerConfig(offload=True),
    "int8 offload": OptimizerConfig(moments="int8", offload=True),
}


def optimizer(
    parameters: list[nn.Parameter], state: OptimizerConfig | None = None, seed: int = 0, **options: float
) -> MasterAdamW:
    given = {"weight_decay": 0.0, "max_grad_norm": 1e9, **options}
    return MasterAdamW(parameters, betas=(0.9, 0.999), state=state or OptimizerConfig(), seed=seed, **given)


def test_schedules() -> None:
    def rates(schedule: str, warmup: int = 2, total: int = 6) -> list[float]:
        return [learning_rate(step, 8.0, schedule, warmup, total) for step in range(total + 2)]

    assert rates("constant") == [4, 8, 8, 8, 8, 8, 8, 8]
    assert rates("linear") == [4, 8, 8, 6, 4, 2, 0, 0]
    assert rates("cosine") == pytest.approx(
        [4, 8, 8, *(4 * (1 + math.cos(math.pi * x)) for x in (0.25, 0.5, 0.75)), 0, 0]
    )
    assert rates("linear", warmup=0, total=2) == [8, 4, 0, 0]


def test_a_step_is_adamws() -> None:
    theirs = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    ours = nn.Parameter(theirs.detach().clone())
    reference = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.5)
    mine = optimizer([ours], weight_decay=0.5)
    for scale in (1.0, -3.0, 0.2):
        for parameter in (ours, theirs):
            (scale * parameter.square()).sum().backward()
        reference.step()
        reference.zero_grad()
        mine.step(0.1)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_weight_decay_spares_vectors() -> None:
    matrix, vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    mine = optimizer([matrix, vector], weight_decay=0.5)
    for parameter in (matrix, vector):
        mine.gradient(parameter)  # zero
    mine.step(0.1)
    assert matrix.detach().allclose(torch.full((2, 2), 0.95))
    assert vector.detach().equal(torch.ones(2))


def test_clipping_scales_to_the_global_norm() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    mine = optimizer([a, b], max_grad_norm=1.0)
    (3 * a + 4 * b).sum().backward()
    assert mine.step(0.1) == (5.0, True)
    # After one step the first moment is a tenth of the gradient that was taken.
    seen = [float(slot.moments.tensors()[0]) for slot in mine._slots.values()]
    assert seen == pytest.approx([0.06, 0.08], rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_everything_alone(bad: float) -> None:
    parameter = nn.Parameter(torch.ones(3))
    mine = optimizer([parameter])
    parameter.sum().backward()
    mine.step(0.1)
    before = parameter.detach().clone()
    (bad * parameter[0]).backward()
    norm, stepped = mine.step(0.1)
    assert not stepped
    assert not math.isfinite(norm)
    assert parameter.detach().equal(before)
    assert mine.gradient(parameter).eq(0).all()


def test_bfloat16_gradients_and_steps_are_not_rounded_away() -> None:
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    mine = optimizer([parameter])
    for _ in range(64):
        (parameter * 2**-10).sum().backward()
    (parameter * 1.0).sum().backward()  # in bfloat16, 1 + 1/1024 is 1
    assert mine.gradient(parameter).item() == 1 + 64 / 1024
    assert parameter.grad is None
    # Each step of about 1e-3 is below half a bfloat16 unit at 1, together they are not.
    for _ in range(20):
        mine.gradient(parameter).fill_(1.0)
        mine.step(1e-3)
    assert parameter.item() == pytest.approx(0.98, abs=2**-8)


class Problem:
    """Least squares: a matrix large enough for 8-bit moments, and a bias."""

    def __init__(self, dtype: torch.dtype, state: OptimizerConfig, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(256, 128, generator=rng)
        self.targets = self.inputs @ torch.randn(128, 64, generator=rng) * 0.1 + 1
        self.weights = [nn.Parameter(torch.zeros(128, 64, dtype=dtype)), nn.Parameter(torch.zeros(64, dtype=dtype))]
        self.optimizer = optimizer(self.weights, state, seed, max_grad_norm=1.0)

    def run(self, steps: int, learning_rate: float = 0.01) -> float:
        """Each step sums the gradients of two halves, part of them added directly; returns the last loss."""
        loss = torch.zeros(())
        for _ in range(steps):
            for rows in (slice(0, 100), slice(100, 256)):
                matrix, bias = self.weights
                outputs = self.inputs[rows].to(matrix.dtype) @ matrix + bias
                loss = (outputs.float() - self.targets[rows]).square().mean()
                loss.backward()
                self.optimizer.gradient(bias).add_(1e-4)
            self.optimizer.step(learning_rate)
        return float(loss.detach())

    def equals(self, other: "Problem") -> bool:
        return all(ours.equal(theirs) for ours, theirs in zip(self.weights, other.weights, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_state_restores_everything_bit_for_bit(form: str, dtype: torch.dtype) -> None:
    first, second = Problem(dtype, FORMS[form]), Problem(dtype, FORMS[form], seed=1)
    first.run(5)
    with torch.no_grad():
        for weight, saved in zip(second.weights, first.weights, strict=True):
            weight.copy_(saved)
    file = io.BytesIO()
    torch.save(first.optimizer.state_dict(), file)
    file.seek(0)
    second.optimizer.load_state_dict(torch.load(file, weights_only=True))
    assert second.equals(first)
    for problem in (first, second):
        problem.run(5)
    assert second.equals(first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("moments", ["float32", "int8"])
def test_offload_changes_no_bit(moments: str, dtype: torch.dtype) -> None:
    here, away = (Problem(dtype, OptimizerConfig(moments=moments, offload=offload)) for offload in (False, True))
    for _ in range(3):
        here.run(4)
        away.run(4)
        assert away.equals(here)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_that_travel_to_their_home_and_back_are_the_same(dtype: torch.dtype) -> None:
    """What a GPU's gradients do; here the two ends are names of the same memory."""
    here, away = (Problem(dtype, OptimizerConfig(offload=offload)) for offload in (False, True))
    for slot in away.optimizer._slots.values():
        slot._home = torch.device("cpu", 0)
    for problem in (here, away):
        problem.run(6)
    assert away.equals(here)
    assert all(slot._buffer is not None for slot in away.optimizer._slots.values())


def test_8_bit_steps_do_not_depend_on_the_parts_they_are_done_in(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = Problem(torch.float32, FORMS["int8"]), Problem(torch.float32, FORMS["int8"])
    whole.run(3)
    monkeypatch.setattr("rlvr.policy.moments.PART", 768)
    cut.run(3)
    assert cut.equals(whole)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains_to_nearly_the_same_weights(form: str) -> None:
    exact, other = Problem(torch.float32, FORMS["float32"]), Problem(torch.bfloat16, FORMS[form])
    start = exact.run(1)
    losses = [exact.run(200), other.run(200)]
    assert losses[0] < 0.05 * start
    assert losses[1] < losses[0] + 0.02 * start
    for ours, theirs in zip(other.weights, exact.weights, strict=True):
        assert (ours.float() - theirs).norm() < 0.05 * theirs.norm()


def test_small_steps_of_rounded_weights_add_up_in_the_mean() -> None:
    """Each step is a fortieth of the distance to the next bfloat16 number: the nearest would be the old one."""
    parameter = nn.Parameter(torch.ones(100, 100, dtype=torch.bfloat16))
    mine = optimizer([parameter], FORMS["stochastic rounding"])
    for _ in range(100):
        mine.gradient(parameter).fill_(1.0)
        mine.step(1e-4)
    assert float(parameter.detach().float().mean()) == pytest.approx(0.99, abs=2e-4)


def test_8_bit_moments_make_no_long_step_where_a_gradient_stays_away() -> None:
    """Elements far below their block's largest: a second moment of 0 would divide their first by epsilon."""
    parameter = nn.Parameter(torch.zeros(64, 64))
    mine = optimizer([parameter], FORMS["int8"])
    mine.gradient(parameter).copy_(torch.tensor([1.0, 1e-4]).repeat(64, 32))
    mine.step(1e-3)
    for _ in range(5):
        before = parameter.detach().clone()
        mine.gradient(parameter).copy_(torch.tensor([1.0, 0.0]).repeat(64, 32))
        mine.step(1e-3)
        assert (parameter.detach() - before).abs().max() < 1.5e-3
