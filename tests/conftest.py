"""What every test has: a home of its own, one thread, and the shared material where it is there."""

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """Nothing is read from or written to the user's own folders."""
    monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl-package"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari-package"))
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Genuine excerpts and the like, which are no part of the repository."""
    default = Path(__file__).parents[2] / "shared"
    path = Path(os.environ.get("OFFLINE_GNTD_SHARED", default))
    if not path.is_dir():
        pytest.skip(f"there is no {path}")
    return path
