"""Fixtures: a temporary home for every test, one thread, reference material if it is available."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from offline_gntd.collection import discrete
from offline_gntd.collection.discrete import ReplaySettings
from offline_gntd.datasets import load
from offline_gntd.tasks import Task
from offline_gntd.transitions import row_width

SHARED = Path(os.environ.get("OFFLINE_GNTD_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing is read from or written to the user's own folders."""
    monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl-package"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari-package"))
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)  # a test may have set it for its process
    return tmp_path


@pytest.fixture(scope="session")
def shared():
    """Reference material that is not part of the repository; tests that need it are skipped without it."""
    if not SHARED.exists():
        pytest.skip(f"no {SHARED}")
    return SHARED


@pytest.fixture
def cartpole():
    return Task("CartPole-v1", 4, 2, True, 22.3, 500.0, "test")


QUICK_AGENTS = {kind: replace(agent, hidden_dims=(32, 32)) for kind, agent in discrete.AGENTS.items()}
QUICK_SETTINGS = ReplaySettings(random_steps=200, episodes=4, epsilon_steps=50, transitions=400)


@pytest.fixture
def quick_settings(monkeypatch):
    """Online training short enough for a test."""
    monkeypatch.setattr(discrete, "AGENTS", QUICK_AGENTS)
    return QUICK_SETTINGS


@pytest.fixture(scope="session")
def built_datasets(tmp_path_factory):
    """A home with the first four members of cartpole-replay-small, built once."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OFFLINE_GNTD_HOME", str(folder))
        patch.setattr(discrete, "AGENTS", QUICK_AGENTS)
        torch.set_num_threads(1)
        for seed in range(4):
            discrete.build(f"cartpole-replay-small-s{seed}", QUICK_SETTINGS, quiet=True)
    return folder


@pytest.fixture
def small_dataset(home, built_datasets):
    """The first four members of cartpole-replay-small."""
    shutil.copytree(built_datasets / "datasets", home / "datasets")
    return load("cartpole-replay-small")


@pytest.fixture
def random_rows():
    """Rows of a discrete task with nothing to learn from."""

    def make(task, count=512, seed=0):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(count, row_width(task), generator=generator)
        rows[:, task.obs_dim] = torch.randint(task.action_dim, (count,), generator=generator).float()
        rows[:, -1] = (torch.rand(count, generator=generator) < 0.1).float()
        return rows

    return make


def seeded(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]
