"""Planned products, second moments and inverses against torch's own."""

import pytest
import torch

from offline_gntd.nn import openblas
from offline_gntd.nn.linalg import (
    SMALL,
    STRIP,
    add_product,
    aligned,
    cholesky,
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


@pytest.mark.parametrize("plan", [product, add_product])
def test_what_lies_as_no_library_takes_it_is_multiplied_too(plan):
    a, b = torch.randn(2, 8, 6, generator=GENERATOR), torch.randn(2, 6, 40, generator=GENERATOR)
    gaps = torch.randn(2, 16, 12, generator=GENERATOR)[:, ::2, ::2]
    for left, right in (
        (a, b),
        (gaps, b),
        (a[:1].expand(2, 8, 6), b),
        (gaps, torch.ones(2, 6, 1).expand(2, 6, 40)),
    ):
        for out in (torch.zeros(2, 8, 40), torch.zeros(2, 16, 80)[:, ::2, ::2]):
            plan(left, right, out=out)()
            torch.testing.assert_close(out, left @ right, rtol=1e-4, atol=1e-5)


def test_the_library_that_is_chosen_multiplies(library, monkeypatch):
    called = []
    for name in ("product", "add_product", "cholesky"):
        planned = getattr(openblas, name)
        monkeypatch.setattr(openblas, name, lambda *x, n=name, p=planned: called.append(n) or p(*x))
    a, b, out = torch.randn(2, 8, 6), torch.randn(2, 6, 5), torch.zeros(2, 8, 5)
    product(a, b, out=out)()
    add_product(a, b, out=out)()
    cholesky(positive_definite(2, 5), out=torch.zeros(2, 5, 5).mT)()
    assert sorted(set(called)) == (["add_product", "cholesky", "product"] if library == "OpenBLAS" else [])


@pytest.mark.parametrize("n", [2, 8, 300])
def test_cholesky_says_which_failed(n):
    matrices, out = positive_definite(3, n), torch.zeros(3, n, n).mT
    factorise = cholesky(matrices, out=out)
    assert factorise() is None
    matrices[1, n - 1, 0] = torch.nan
    assert factorise().flatten().tolist() == [False, True, False]
    for spoilt in (-torch.eye(n), torch.full((n, n), torch.inf), torch.eye(n) * torch.inf):
        matrices[1] = spoilt
        assert factorise().flatten().tolist() == [False, True, False]
    matrices[1] = torch.eye(n)
    matrices[1, 0, 0] = torch.inf
    assert factorise().flatten().tolist() == [False, True, False]


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
