import copy
import math

import pytest
import torch
from torch import nn

from rlvr.policy.optimizer import MasterAdamW, learning_rate


def optimizer(parameters: list[nn.Parameter], **options: float) -> MasterAdamW:
    given = {"weight_decay": 0.0, "max_grad_norm": 1e9, **options}
    return MasterAdamW(parameters, betas=(0.9, 0.999), **given)


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
    seen = {}
    mine._adamw.register_step_pre_hook(lambda *_: seen.update(a=float(a.grad), b=float(b.grad)))
    (3 * a + 4 * b).sum().backward()
    assert mine.step(0.1) == (5.0, True)
    assert seen == pytest.approx({"a": 0.6, "b": 0.8}, rel=1e-5)


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


def test_state_restores_masters_and_moments() -> None:
    def run(steps: int, mine: MasterAdamW, parameter: nn.Parameter) -> None:
        for _ in range(steps):
            parameter.float().square().sum().backward()
            mine.step(0.01)

    one = nn.Parameter(torch.linspace(-1, 1, 8).bfloat16())
    first = optimizer([one])
    run(5, first, one)
    two = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    second = optimizer([two])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert two.detach().equal(one.detach())
    run(5, first, one)
    run(5, second, two)
    assert two.detach().equal(one.detach())
    assert second.state_dict()["masters"][0].equal(first.state_dict()["masters"][0])
