"""Products by OpenBLAS against torch's, and where they are used."""

import gc
import importlib.machinery
import importlib.util
import itertools
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from offline_gntd import versions
from offline_gntd.nn import openblas

ZEN_4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
flags\t\t: fpu avx2 avx512f

processor\t: 1
"""
installed = pytest.mark.skipif(openblas._library() is None, reason="no OpenBLAS for this kind of machine")


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


def strided(*strides):
    return lambda rows, columns: torch.ones(100).as_strided((rows, columns), strides)


@installed
def test_what_it_cannot_multiply_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(openblas, "is_faster", lambda: True)
    good = torch.ones(2, 4, 3)
    assert openblas.takes(good, good.mT)
    for bad in (
        torch.ones(4, 3).double(),
        torch.ones(1, 3).expand(4, 3),  # one row, four times
        torch.ones(4, 6)[:, ::2],  # gaps in the rows
        strided(2, 1)(4, 3),  # rows that overlap
    ):
        assert not openblas.takes(good, bad)
        with pytest.raises(ValueError, match="cannot take"):
            openblas.product(bad, torch.ones(3, 5), torch.ones(4, 5))
    monkeypatch.setattr(openblas, "is_faster", lambda: False)
    assert not openblas.takes(good)


@installed
def test_single_rows_and_columns_may_lie_anyhow():
    row, column, out = strided(1, 1)(1, 4), strided(5, 3)(4, 1), torch.zeros(1, 1)
    openblas.product(row, column, out)()
    assert out.item() == 4
    many = torch.zeros(4, 4)
    openblas.product(column, row, many)()
    assert (many == 1).all()


@installed
@pytest.mark.parametrize(
    "shapes", [((4, 3), (5, 4), (4, 4)), ((4, 3), (3, 5), (9, 5)), ((4, 3), (3, 5), (4, 9))]
)
def test_sizes_that_do_not_fit_are_refused(shapes):
    for plan in (openblas.product, openblas.add_product):
        with pytest.raises(ValueError, match="cannot take"):
            plan(*map(torch.ones, shapes))
    with pytest.raises(ValueError, match="cannot take"):
        openblas.cholesky(torch.ones(shapes[0]))


@installed
def test_a_plan_keeps_its_matrices():
    multiply = openblas.product(torch.full((64, 64), 2.0), torch.eye(64), out := torch.zeros(64, 64))
    gc.collect()
    others = [torch.zeros(64, 64) for _ in range(50)]  # in their place, if it were free
    multiply()
    assert len(others) == 50
    assert (out == 2).all()


def said_by(code, **environment):
    """What a process says that loads the library for the first time."""
    environment = {name: value for name, value in os.environ.items() if "THREADS" not in name} | environment
    command = [sys.executable, "-c", "import os\nfrom offline_gntd.nn import openblas\n" + code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@installed
def test_it_is_loaded_with_its_kernels_and_leaves_the_environment_alone():
    code = """
library = openblas._library()
print(library.scipy_openblas_get_corename().decode(), library.scipy_openblas_get_num_threads())
print(os.environ["OPENBLAS_CORETYPE"], "OPENBLAS_NUM_THREADS" in os.environ)
"""
    assert said_by(code, OPENBLAS_CORETYPE="Nehalem") == ["Haswell", "1", "Nehalem", "False"]


@installed
def test_one_that_somebody_loaded_otherwise_is_not_used():
    code = "import scipy_openblas32\nprint(openblas._library())"
    assert said_by(code, OPENBLAS_CORETYPE="Nehalem") == ["None"]


@pytest.mark.parametrize("package", [None, "", "other_names"])
def test_without_it_torch_multiplies(package, monkeypatch, tmp_path):
    """None installed, no library in it, or one with other functions."""
    there = None
    if package is not None:
        (tmp_path / "lib").mkdir()
        there = importlib.machinery.ModuleSpec("name", None, origin=str(tmp_path / "__init__.py"))
    if package == "other_names":
        loaded = Path("/proc/self/maps").read_text().splitlines()
        path = next(line.split()[-1] for line in loaded if "libc.so" in line)
        (tmp_path / "lib" / "libscipy_openblas.so").symlink_to(path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there)
    monkeypatch.setattr(openblas, "_zen4", lambda: True)
    monkeypatch.setattr(openblas, "_library", openblas._library.__wrapped__)
    assert openblas.is_faster.__wrapped__() is False


@installed
def test_where_it_is_used_and_that_versions_say_so(monkeypatch):
    for zen4 in (True, False):
        monkeypatch.setattr(openblas, "_zen4", lambda zen4=zen4: zen4)
        assert openblas.is_faster.__wrapped__() is zen4
    for faster, expected in ((True, f"OpenBLAS {version(openblas.PACKAGE)}"), (False, "torch")):
        monkeypatch.setattr(openblas, "is_faster", lambda faster=faster: faster)
        assert versions.installed.__wrapped__()["products"] == expected
