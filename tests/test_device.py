"""What a CUDA device needs, checked on the CPU: updates wait for nothing, and data is where networks are."""

import dataclasses
from types import SimpleNamespace

import plain
import pytest
import torch
from conftest import seeded
from test_continuous import SAMPLED, config_of
from torch.utils._python_dispatch import TorchDispatchMode

from offline_gntd.algorithms import CATALOGUE
from offline_gntd.experiments.training import ReplayBatches
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, row_width

CARTPOLE = Task("CartPole-v1", 4, 2, True, 0.0, 1.0, "test")
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero"}


class Waits(TorchDispatchMode):
    """Collects what a device would have to be waited for: values read out of tensors that live on it."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split(".")[0]
        counter = torch.is_tensor(args[0]) and args[0].dtype == torch.int64 if args else False
        if name in WAITS and not counter:  # counts of updates are kept on the CPU
            self.found.append(name)
        return function(*args, **kwargs or {})


def made(name, precision):
    """An agent and a way to update it."""
    if CATALOGUE[name].config.discrete:
        rows = torch.randn(200, row_width(CARTPOLE), generator=torch.Generator().manual_seed(0))
        rows[:, 4] = (rows[:, 4] > 0).float()
        task, config = CARTPOLE, CATALOGUE[name].config
    else:
        rows, task, config = SAMPLED, plain.TASK, config_of(name)
    config = dataclasses.replace(config, precision=precision)
    generators = seeded(0, 1)
    agent, sample = config.agent(task, generators), Sampler(task, config.batch_size, generators)
    return agent, lambda: agent.update(sample(rows))


@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "float32") for name in CATALOGUE]
    + [(name, "bfloat16") for name in CATALOGUE if "rebrac" not in name],
)
def test_an_update_reads_no_value_back_from_the_device(name, precision):
    _, update = made(name, precision)
    with Waits() as waits:
        for _ in range(4):
            update()
    assert not waits.found


@pytest.mark.parametrize("timeouts_terminal", [False, True])
def test_what_is_measured_is_where_the_networks_are(small_dataset, timeouts_terminal):
    generators = [SimpleNamespace(device=torch.device("meta"))]  # a device with no values behind it
    batches = ReplayBatches([small_dataset], 4, generators, timeouts_terminal)
    assert batches.rows.device.type == "meta"
    assert {column.device.type for column in batches.transitions[0]} == {"meta"}
