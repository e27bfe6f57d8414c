"""The scripts in examples/, at small sizes; the notebook is run as it is."""

import importlib.util
import sys
from pathlib import Path

import d4rl_files
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Import a script by its name, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


def test_train_on_d4rl(example, tmp_path, capsys):
    path = d4rl_files.write(tmp_path / "hopper_medium-v2.hdf5", d4rl_files.arrays())
    scores = example("train_on_d4rl").main(str(path), steps=8, episodes=1)
    assert scores.keys() == {"td3_bc", "gntd3_bc"}
    assert "gntd3_bc: score" in capsys.readouterr().out
    assert (tmp_path / "gntd3_bc.pt").exists()


def test_sweep_with_a_table(example, small_dataset, monkeypatch, home):
    script = example("sweep_with_a_table")
    monkeypatch.setattr(script, "build_discrete", lambda *args, **options: None)  # the fixture has built it
    table = script.main(steps=6)
    assert "| cartpole-replay-small |" in table
    assert table.count("kfac.damping") == 3
    assert (home / "analysis/damping.tex").exists()


def test_my_algorithm_and_my_dataset_define_what_import_needs(example):
    assert list(example("my_algorithm").PRESETS) == ["awac"]
    assert list(example("my_dataset").DATASETS) == ["mountaincar-noisy"]


@pytest.mark.slow
def test_the_notebook(monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", 4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    pictures = [
        out
        for cell in notebook.cells
        for out in cell.get("outputs", [])
        if "image/png" in out.get("data", {})
    ]
    assert len(pictures) == 2
