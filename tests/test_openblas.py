"""Products by OpenBLAS against torch's, and where they are used."""

import ctypes
import gc
import itertools
import os

import pytest
import torch

from offline_gntd import openblas

ZEN_4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
flags\t\t: fpu avx2 avx512f

processor\t: 1
"""
installed = pytest.mark.skipif(openblas._path() is None, reason="no OpenBLAS for this kind of machine")


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (ZEN_4, True),
        (ZEN_4.replace(" avx512f", ""), False),  # Zen 3: nobody has measured
        (ZEN_4.replace(" 25", " 26"), False),  # Zen 5 multiplies twice as wide as these kernels do
        (ZEN_4.replace("AuthenticAMD", "GenuineIntel"), False),
        ("Processor : AArch64\n\n", False),
        ("no colon\n", False),
        ("", False),
    ],
)
def test_zen_4_is_known_by_its_first_processor(cpuinfo, expected, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo)
    assert openblas._zen4(file) is expected
    assert not openblas._zen4(tmp_path / "none")


def matrix(rows, columns, by_rows):
    """Random, with room between its rows, or between its columns."""
    if not by_rows:
        return matrix(columns, rows, True).mT
    return torch.randn(rows, columns + 5, generator=torch.Generator().manual_seed(rows))[:, :columns]


@installed
@pytest.mark.parametrize(("m", "k", "n"), [(1, 2, 1), (1, 24, 6), (30, 257, 1), (257, 24, 40), (6, 256, 257)])
def test_products_of_matrices_however_they_lie(m, k, n):
    for a_by_rows, b_by_rows, out_by_rows in itertools.product((True, False), repeat=3):
        a, b, out = matrix(m, k, a_by_rows), matrix(k, n, b_by_rows), matrix(m, n, out_by_rows)
        base = out.clone()
        openblas.add_product(a, b, out)(beta=0.5, alpha=-2)
        torch.testing.assert_close(out, 0.5 * base - 2 * a @ b, rtol=1e-4, atol=1e-4)
        openblas.add_product(a, b, out)(beta=0.0)
        torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)
        out.fill_(torch.nan)  # what was there is not multiplied by 0
        openblas.product(a, b, out)()
        torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)


@installed
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("n", [1, 5, 257])
def test_cholesky_factors_however_they_lie(n, by_rows):
    x = torch.randn(2 * n, n, generator=torch.Generator().manual_seed(n))
    symmetric, factor = x.mT @ x / n + 0.1 * torch.eye(n), matrix(n, n, by_rows)
    above = torch.full((n, n), 7.0).triu(1)  # not read, and left
    factor.copy_(symmetric.tril() + above)
    factorise = openblas.cholesky(factor)
    assert factorise() is False
    torch.testing.assert_close(factor, torch.linalg.cholesky(symmetric) + above, rtol=1e-3, atol=1e-3)
    factor.copy_(-torch.eye(n))
    assert factorise() is True


@installed
def test_nothing_is_written_between_the_rows():
    whole = torch.zeros(8, 16)
    openblas.product(torch.ones(8, 3), torch.ones(3, 10), whole[:, :10])()
    assert (whole[:, :10] == 3).all()
    assert (whole[:, 10:] == 0).all()


@installed
def test_what_it_cannot_multiply_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(openblas, "is_faster", lambda: True)
    assert openblas.takes(torch.ones(2, 4, 3), torch.ones(2, 4, 3).mT)
    assert not openblas.takes(torch.ones(4, 3).double())
    assert not openblas.takes(torch.ones(1, 3).expand(4, 3))  # one row, four times
    assert not openblas.takes(torch.ones(4, 6)[:, ::2])  # gaps in the rows
    monkeypatch.setattr(openblas, "is_faster", lambda: False)
    assert not openblas.takes(torch.ones(4, 3))


@installed
def test_a_plan_keeps_its_matrices():
    multiply = openblas.product(torch.full((64, 64), 2.0), torch.eye(64), out := torch.zeros(64, 64))
    gc.collect()
    others = [torch.zeros(64, 64) for _ in range(50)]  # in their place, if it were free
    multiply()
    assert len(others) == 50
    assert (out == 2).all()


@installed
def test_it_is_loaded_with_its_kernels_and_leaves_the_environment_alone(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    library = openblas._library.__wrapped__()
    assert os.environ["OPENBLAS_CORETYPE"] == "Nehalem"
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    library.scipy_openblas_get_corename.restype = ctypes.c_char_p
    assert library.scipy_openblas_get_corename() == b"Haswell"
    assert library.scipy_openblas_get_num_threads() == 1
