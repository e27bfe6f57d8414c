"""Planned products, second moments and inverses against torch's own."""

import pytest
import torch

from offline_gntd.products import (
    SMALL,
    STRIP,
    aligned,
    damped_halves,
    damped_inverse,
    damped_root,
    halves_times,
    product,
    second_moment,
    solution,
    squares,
    where_sound,
)

pytestmark = pytest.mark.usefixtures("library")
GENERATOR = torch.Generator().manual_seed(0)
FLOATS = torch.empty(0)


def positive_definite(networks, n):
    x = torch.randn(networks, 2 * n, n, generator=GENERATOR)
    return x.mT @ x / (2 * n) + 0.1 * torch.eye(n)


@pytest.mark.parametrize("columns", [1, 6, 40])
@pytest.mark.parametrize("inner", [1, 24, 257])
def test_a_planned_product_follows_its_buffers(inner, columns):
    a, b = aligned(FLOATS, 2, 30, inner), torch.empty(2, inner, columns)
    out = aligned(FLOATS, 2, 30, columns)
    multiply = product(a, b, out=out)
    for _ in range(2):
        a.normal_(generator=GENERATOR)
        b.normal_(generator=GENERATOR)
        multiply()
        torch.testing.assert_close(out, torch.bmm(a, b), rtol=1e-4, atol=1e-5)


def test_rows_of_an_aligned_buffer_start_on_cache_lines():
    rows = aligned(FLOATS, 3, 257)
    assert rows.shape == (3, 257)
    assert rows.stride() == (272, 1)


@pytest.mark.parametrize("n", [1, 5, 2 * STRIP, 257])
def test_a_second_moment_is_averaged(n):
    x, old = torch.randn(2, 50, n, generator=GENERATOR), positive_definite(2, n)
    factor = old.clone()
    second_moment(factor, x)(0.25)
    expected = 0.75 * old + 0.25 * x.mT @ x / 50
    torch.testing.assert_close(factor.tril(), expected.tril(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 5, SMALL, SMALL + 1, 257])
def test_damped_inverses_and_roots(n):
    factors, damping = positive_definite(3, n), torch.tensor([0.1, 1.0, 10.0])
    damped = (factors + damping[:, None, None] * torch.eye(n)).double()
    spoiled = factors + torch.ones(n, n).triu(1)  # only the lower triangle is read
    inverse, root = squares(factors), squares(factors).mT
    damped_inverse(spoiled, out=inverse)(damping)
    torch.testing.assert_close(inverse.double(), torch.linalg.inv(damped), rtol=1e-3, atol=1e-4)
    damped_root(spoiled, out=root)(damping)
    torch.testing.assert_close(root.tril().double(), torch.linalg.cholesky(damped), rtol=1e-3, atol=1e-4)
    for b in (torch.randn(3, n, 2, generator=GENERATOR), torch.randn(3, 2, n, generator=GENERATOR).mT):
        x = torch.empty_like(b)
        solution(root, b, out=x)()
        expected = torch.linalg.solve(damped, b.double())
        torch.testing.assert_close(x.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [2, SMALL + 1, 257])
def test_an_inverse_in_halves(n):
    factors, damping = positive_definite(3, n), torch.tensor([0.1, 1.0, 10.0])
    spoiled = factors + torch.ones(n, n).triu(1)  # only the lower triangle is read
    spoiled[2] = -100 * torch.eye(n)
    halves = squares(factors)
    damped_halves(spoiled, out=halves)(damping)
    alone = torch.eye(n) / damping[:, None, None]
    assert where_sound([halves], lambda _: alone).squeeze(-1).tolist() == [True, True, False]
    damped = factors * torch.tensor([1, 1, 0])[:, None, None] + damping[:, None, None] * torch.eye(n)
    for b in (torch.randn(3, n, 2, generator=GENERATOR), torch.randn(3, 2, n, generator=GENERATOR).mT):
        x = torch.empty_like(b)
        halves_times(halves, b, out=x)()
        expected = torch.linalg.solve(damped.double(), b.double())
        torch.testing.assert_close(x.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [1, 3, 2 * SMALL])
def test_where_there_is_no_inverse_it_is_replaced(n):
    bad, infinite, unknown = -torch.eye(n), torch.full((n, n), torch.inf), torch.full((n, n), torch.nan)
    factors, damping = torch.stack([3.75 * torch.eye(n), bad, infinite, unknown]), torch.full((4,), 0.25)
    inverse, root = squares(factors), squares(factors)
    damped_inverse(factors, out=inverse)(damping)
    damped_root(factors, out=root)(damping)
    alone = torch.tensor([4.0, 0.5])[:, None, None] * torch.eye(n)
    sound = where_sound([inverse, root], lambda i: alone[i])
    assert sound.tolist() == [[True, True], [False, False], [False, False], [False, False]]
    for found, values in ((inverse, [0.25, 4.0, 4.0, 4.0]), (root, [2.0, 0.5, 0.5, 0.5])):
        torch.testing.assert_close(found, torch.tensor(values)[:, None, None] * torch.eye(n))
