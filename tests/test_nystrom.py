"""Inverses known along leading directions, against dense ones."""

import pytest
import torch

from offline_gntd.nn.linalg import STRIP, where_sound
from offline_gntd.nn.nystrom import PASSES, damped_leading, drawn, leading_times, of_damping_alone, room

pytestmark = pytest.mark.usefixtures("library")

DAMPING = torch.tensor([0.1, 1.0, 10.0])


def moments(n, eigenvalues, generator):
    """[networks, n, n] with these eigenvalues, the other n − len of them 0."""
    bases = torch.linalg.qr(torch.randn(len(DAMPING), n, n, generator=generator)).Q[..., : len(eigenvalues)]
    return bases * eigenvalues @ bases.mT


def gradients(factor, columns, generator):
    """As long along a direction as samples with this second moment are, by the mean of a few."""
    values, vectors = torch.linalg.eigh(factor)
    drawn = torch.randn(*factor.shape[:-1], columns, generator=generator)
    return vectors @ (values.clamp_min(0).sqrt()[..., None] * drawn)


def solved(factor, b):
    damped = factor.double() + DAMPING[:, None, None] * torch.eye(factor.shape[-1])
    return torch.linalg.solve(damped, b.double())


def multiplied(inverse, b):
    out = torch.empty_like(b)
    leading_times(inverse, b, out=out)()
    return out.double()


def error(found, expected):
    return ((found - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)).max().item()


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("n", [20, 2 * STRIP, 257])
def test_an_inverse_is_exact_where_the_rank_suffices(n, generator):
    factor = moments(n, torch.logspace(-2, 2, 8), generator)
    spoiled = factor.clone()
    for strip in range(1, n // STRIP):  # what second_moment leaves out
        spoiled[:, : (top := n * strip // (n // STRIP)), top:] = torch.nan
    inverse = room(factor, rank=10)
    make = damped_leading(spoiled, out=inverse)
    for _ in range(PASSES):
        make(DAMPING)
    wide, column = (torch.randn(3, n, columns, generator=generator) for columns in (30, 1))
    for b in (wide, wide.mT.contiguous().mT, column):
        assert error(multiplied(inverse, b), solved(factor, b)) < 3e-3


def test_test_vectors_follow_what_changes(generator):
    """One pass at every change, and the error stays near that of the leading eigenvectors themselves."""
    spectrum = 30 * 0.8 ** torch.arange(100.0)
    first, last = (moments(100, spectrum, generator) for _ in range(2))
    factor, inverse = first.clone(), room(first, rank=25)
    make = damped_leading(factor, out=inverse)
    for _ in range(PASSES):
        make(DAMPING)
    b = torch.randn(3, 100, 5, generator=generator)
    for share in torch.linspace(0, 1, 30):
        factor.copy_((1 - share) * first + share * last)
        make(DAMPING)
        expected = solved(factor, b)
        values, vectors = torch.linalg.eigh(factor.double())
        kept = vectors[..., -25:]
        slopes = 1 / (values[:, -25:] + DAMPING[:, None]) - 1 / DAMPING[:, None]
        best = b / DAMPING[:, None, None] + kept @ (slopes[..., None] * (kept.mT @ b.double()))
        assert error(multiplied(inverse, b), expected) < 0.01 + 1.5 * error(best, expected)


@pytest.mark.parametrize(
    "spoiled", [torch.nan, torch.inf, -0.5 * torch.eye(20)], ids=["NaN", "∞", "negative"]
)
def test_where_there_is_none_the_damping_alone_is_inverted_and_it_recovers(spoiled, generator):
    good = moments(20, torch.tensor([4.0, 2.0, 1.0]), generator)
    factor, inverse = good.clone(), room(good, rank=5)
    factor[1] = spoiled
    make = damped_leading(factor, out=inverse)
    make(DAMPING)
    sound = where_sound([inverse], lambda _: of_damping_alone(DAMPING, 20, 5))
    assert sound.tolist() == [[True], [False], [True]]
    b = torch.randn(3, 20, 4, generator=generator)
    torch.testing.assert_close(multiplied(inverse, b)[1], b[1].double() / DAMPING[1])
    factor[1] = good[1]
    for _ in range(PASSES):
        make(DAMPING)
    assert error(multiplied(inverse, b), solved(good, b)) < 3e-3


@pytest.mark.parametrize("largest", [0.0, 1e-6, 1e3, 1e5])
def test_no_moment_of_data_is_without_an_inverse(largest, generator):
    """Nothing at all, hardly anything, or one direction far above the rest, from drawn test vectors on."""
    factor = moments(257, largest * 0.7 ** torch.arange(257.0), generator)
    inverse = room(factor, rank=64)
    make = damped_leading(factor, out=inverse)
    for _ in range(20):
        make(DAMPING)
        assert inverse.isfinite().all()
    b = gradients(factor, 5, generator) if largest else torch.ones(3, 257, 5)
    # single precision: a full inverse is off by 1.6e-7 times the largest here
    assert error(multiplied(inverse, b), solved(factor, b)) < 0.01 + 4e-6 * largest


@pytest.mark.parametrize(("width", "rank", "batch"), [(1024, 340, 256), (512, 170, 32), (512, 16, 32)])
def test_nor_is_that_of_units_as_they_begin(width, rank, batch, generator):
    x = torch.randn(3, batch, 20, generator=generator)
    for fan_in in (20, width):
        x = (x @ torch.randn(3, fan_in, width, generator=generator) * (2 / fan_in) ** 0.5).relu()
    factor = x.mT @ x / batch
    inverse = room(factor, rank)
    damped_leading(factor, out=inverse)(DAMPING)
    assert inverse.isfinite().all()


def test_all_begin_from_the_same_test_vectors():
    expected = torch.tensor([[1.5410, -0.2934], [-2.1788, 0.5684]])
    torch.testing.assert_close(drawn(2, 2, torch.device("cpu")), expected, rtol=0, atol=1e-4)
