import torch

from rlvr.policy.rounding import StochasticRounding


def rounding(seed: int = 0) -> StochasticRounding:
    return StochasticRounding(torch.device("cpu"), seed)


def test_the_result_is_one_of_the_two_neighbours() -> None:
    values = torch.randn(10_000) * 10 ** torch.empty(10_000).uniform_(-20, 20)
    rounded = rounding()(values)
    assert rounded.dtype == torch.bfloat16
    # Neighbours of a number between them are at most one unit, 2**-7 of its power of two, away.
    unit = torch.ldexp(torch.ones_like(values), values.frexp().exponent - 8)
    assert ((rounded.float() - values).abs() < unit).all()


def test_the_mean_is_the_number_itself() -> None:
    num = 200_000
    round_ = rounding()
    for value in (1.001, -1.001, 1e-6 + 2**-30, -3.1415927, 255.3):
        rounded = round_(torch.full((num,), value)).double()
        low, high = rounded.min(), rounded.max()
        assert low < value < high
        error = (high - low) / 2 / num**0.5  # standard error of the mean, at most
        assert abs(rounded.mean() - torch.tensor(value, dtype=torch.float32).double()) < 4 * error


def test_what_bfloat16_holds_stays() -> None:
    values = torch.cat([torch.zeros(1), torch.randn(1000)]).bfloat16()
    assert rounding()(values.float()).equal(values)


def test_the_seed_and_the_state_decide() -> None:
    values = torch.randn(1000)
    one, same, other = rounding(1), rounding(1), rounding(2)
    assert one(values).equal(same(values))
    assert not one(values).equal(other(values))
    other.load_state(one.state())
    assert other(values).equal(one(values))
