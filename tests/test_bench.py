"""The count of operations behind the ceiling, and `offline-gntd bench`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from offline_gntd.algorithms import CATALOGUE
from offline_gntd.bench import flops
from offline_gntd.bench.measurement import MAIN_SIZE, SIZES, TimedAgent, random_rows, settings
from offline_gntd.cli import main
from offline_gntd.nn.kfac import KFAC


def test_flops_of_one_network_by_hand():
    dims = (3, 5, 2)
    assert flops.forward(10, dims) == 2 * 10 * (4 * 5 + 6 * 2)
    assert flops.backward(10, dims) == 2 * 10 * 5 * 2
    assert flops.backward(10, dims, inputs=2) == 2 * 10 * (5 * 2 + 2 * 5)


def test_flops_of_td3_bc_by_hand():
    """At HalfCheetah size: 11.5 passes over a 256 × 256 layer are nearly all of it."""
    found = flops.of_update(settings("td3_bc"), SIZES["halfcheetah"])
    assert found == pytest.approx(415.7e6, rel=1e-3)
    assert 0.9 < 11.5 * 2 * 256**3 / found < 1


def test_curvature_costs_a_tenth_with_ten_times_the_period():
    often, seldom = (
        flops.curvature(256, (23, 256, 1), KFAC(factor_every=n, inverse_every=n)) for n in (10, 100)
    )
    steps = 2 * 24 * 24 * 256 + 2 * 24 * 256 * 256 + 2 * 257 * 257 + 2 * 257
    assert seldom - steps == pytest.approx((often - steps) / 10)


@pytest.mark.parametrize("name", ["bc", "td3_bc", "bcq", "iql", "rebrac", "td", "dqn"])
def test_count_equals_torch_s_flop_counter(name):
    size = MAIN_SIZE[settings(name).discrete]
    agent = TimedAgent(name, size, random_rows(SIZES[size], 1000))
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):
            agent.update()
    # torch does not count products by one column or row
    assert counter.get_total_flops() / 2 == pytest.approx(flops.of_update(agent.config, agent.task), rel=0.02)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_preset_has_a_count(name):
    config = settings(name)
    task = SIZES[MAIN_SIZE[config.discrete]]
    assert flops.of_update(config, task) > flops.forward(
        config.batch_size, (task.obs_dim, *config.hidden_dims, 1)
    )


def test_random_rows_are_valid_transitions():
    rows = random_rows(SIZES["acrobot"], 100)
    assert set(rows[:, 6].tolist()) == {0, 1, 2}
    assert set(rows[:, -1].tolist()) <= {0, 1}
    assert random_rows(SIZES["hopper"], 100)[:, 11:14].abs().max() <= 1


def test_bench_prints_nothing_but_json(capsys):
    options = ["--rounds", "1", "--seconds", "0.01", "--workers", "1", "--json"]
    assert main(["bench", "td", "gntd", "--sizes", "acrobot", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ceiling_gflops"]["float32"] > 0
    assert set(found["algorithms"]) == {"td", "gntd"} == set(found["sizes"]["acrobot"])
    row = found["algorithms"]["gntd"]
    assert (row["factor_period"], row["inverse_period"], row["hidden_dims"]) == (5, 50, [256, 256])
    assert 0 < row["ceiling_fraction"] < 5  # such a short timing is noisy: the ceiling may come out too low
    assert min(row["updates_per_s"], row["workers_updates_per_s"]) > 0
    assert row["peak_mib"] > 50
    assert row["kfac_ratio"] > 0
    assert found["algorithms"]["td"]["factor_period"] is found["algorithms"]["td"]["kfac_ratio"] is None
    assert found["peers"] == {}


def test_each_precision_has_its_own_ceiling(capsys):
    options = ["--rounds", "1", "--seconds", "0.01", "--workers", "1"]
    assert main(["bench", "td", "td@precision=bfloat16", *options]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"ceiling: \d+ GFLOP/s, float32", printed)
    assert re.search(r"ceiling: \d+ GFLOP/s, bfloat16", printed)
    assert re.search(r"td@precision=bfloat16 +[\d.]+ ", printed)


def test_an_algorithm_without_a_count_has_no_share_of_the_ceiling():
    example = Path(__file__).parents[1] / "examples/my_algorithm.py"
    options = ["--rounds", "1", "--seconds", "0.01", "--workers", "1", "--import", str(example)]
    command = [sys.executable, "-m", "offline_gntd", "bench", "awac", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"awac +[\d.]+ +— +— +[\d.]+", ended.stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nonsense"], "no algorithm 'nonsense'"),
        (["td", "--sizes", "ant"], "no size 'ant'"),
        (["td", "--rounds", "0"], "--rounds must be at least 1"),
        (["td", "--rows", "10"], "--rows must be at least 1,000"),
        (["td", "--peers", "--peer-python", "/bin/false"], "make peers"),
        (["td", "--peers", "--peer-python", "no/such/python"], "make peers"),
    ],
)
def test_bad_usage_exits_with_2_and_one_line(options, message, capsys):
    assert main(["bench", *options]) == 2
    assert re.search(message, capsys.readouterr().err)
