"""OGBench's single-task datasets, on small files in its layout. Needs the extra `ogbench`."""

import gymnasium
import numpy as np
import pytest
import torch

from offline_gntd.cli import main
from offline_gntd.datasets import load
from offline_gntd.datasets.check import check
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator, make
from offline_gntd.experiments.training import ReplayBatches

pytest.importorskip("ogbench")
pytestmark = pytest.mark.filterwarnings("ignore")
NAME = "pointmaze-medium-navigate-singletask-task2-v0"
FILE = "pointmaze-medium-navigate-v0.npz"


def trajectories(lengths=(30, 20)) -> dict[str, np.ndarray]:
    """Random walks as OGBench stores them: one more state than transitions, with `terminals` on the last."""
    environment = gymnasium.make("ogbench:pointmaze-medium-v0")
    environment.action_space.seed(0)
    columns = {key: [] for key in ("observations", "actions", "terminals", "qpos", "qvel")}
    for number, length in enumerate(lengths):
        obs, _ = environment.reset(seed=number)
        for step in range(length + 1):
            action = environment.action_space.sample()
            data = environment.unwrapped.data
            values = (obs, action, step == length, data.qpos.copy(), data.qvel.copy())
            for key, value in zip(columns, values, strict=True):
                columns[key].append(value)
            obs, *_ = environment.step(action)
    environment.close()
    return {key: np.array(values, np.float32) for key, values in columns.items()}


@pytest.fixture
def arrays(home):
    """A file in the folder for OGBench's files; a state of the second trajectory is at the goal of task 2."""
    environment = gymnasium.make("ogbench:pointmaze-medium-singletask-task2-v0")
    environment.reset()
    goal = environment.unwrapped.cur_goal_xy
    environment.close()
    arrays = trajectories()
    arrays["qpos"][31 + 5, :2] = goal
    folder = home / "datasets" / "ogbench"
    folder.mkdir(parents=True)
    np.savez(folder / FILE, **arrays)
    return arrays


def test_rewards_masks_and_ends_are_ogbench_s(arrays):
    dataset = load(NAME)
    assert (dataset.origin, dataset.task.env_id) == (
        "ogbench",
        "ogbench:pointmaze-medium-singletask-task2-v0",
    )
    assert dataset.episode_lengths.tolist() == [30, 20]
    assert dataset.truncated.tolist() == [29, 49]  # a trajectory's end is a time limit
    at_goal = np.zeros(50)
    at_goal[30 + 5] = 1
    np.testing.assert_array_equal(dataset.transitions.terminated.numpy(), at_goal)
    np.testing.assert_array_equal(dataset.transitions.reward.numpy(), at_goal - 1)
    np.testing.assert_array_equal(dataset.transitions.obs.numpy()[30:], arrays["observations"][31:51])
    np.testing.assert_array_equal(dataset.transitions.next_obs.numpy()[:30], arrays["observations"][1:31])
    assert dataset.episode_returns.tolist() == [0, 1]  # successes
    assert check(NAME).verdict == "sound"


def test_a_file_without_a_task_has_the_default_one(arrays, home):
    dataset = load(home / "datasets" / "ogbench" / FILE)
    assert dataset.task.env_id == "ogbench:pointmaze-medium-singletask-v0"


def test_a_score_is_a_success_rate(arrays):
    task = load(NAME).task
    environment = make(task.env_id)
    environment.reset(seed=0)
    goal = environment.unwrapped.cur_goal_xy
    environment.unwrapped.set_xy(goal)
    _, reward, terminated, *_ = environment.step(np.zeros(2, np.float32))
    assert (reward, terminated) == (1, True)
    environment.close()
    evaluator = Evaluator(task, [0], 2)
    assert evaluator.returns(lambda obs: torch.zeros(1, 2, 2), key=0).tolist() == [[0, 0]]
    assert (task.score(0), task.score(1)) == (0, 100)


def test_a_grid_on_ogbench(arrays, capsys):
    command = [
        "run",
        "maze",
        "--datasets",
        NAME,
        "--algorithms",
        "bc",
        "td3_bc",
        "gntd3_bc",
        "iql",
        "--seeds",
        "1",
    ]
    command += ["--steps", "4", "--evaluate-every", "4", "--evaluate-episodes", "1", "--workers", "1"]
    assert main(command) == 0
    assert main(["table", "maze"]) == 0
    assert "OGBench" in capsys.readouterr().out


def without_actions(arrays):
    del arrays["actions"]


def shorter(arrays):
    arrays["qpos"] = arrays["qpos"][:10]


def wide(arrays):
    arrays["actions"] = np.repeat(arrays["actions"], 2, axis=1)


def unknown_positions(arrays):
    arrays["qpos"][3] = np.nan


def half_terminal(arrays):
    arrays["terminals"][3] = np.nan


@pytest.mark.parametrize("harm", [without_actions, shorter, wide, unknown_positions, half_terminal])
def test_a_damaged_file_is_one_line(arrays, home, harm, capsys):
    harm(arrays)
    np.savez(home / "datasets" / "ogbench" / FILE, **arrays)
    assert main(["datasets", "show", NAME]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert FILE in error


def test_files_are_listed(arrays, capsys):
    assert main(["datasets", "list"]) == 0
    assert "here  pointmaze-medium-navigate-singletask-v0\n" in capsys.readouterr().out


def test_an_evaluation_can_be_repeated(arrays):
    """OGBench's mazes draw the start of an episode from numpy's global generator."""
    task = load(NAME).task
    starts = []

    def act(obs):
        starts.append(obs.clone())
        return torch.ones(1, obs.shape[1], 2)

    for _ in range(2):
        evaluator = Evaluator(task, [0], 12)  # played in two rounds
        evaluator.returns(act, key=3)
        evaluator.close()
        np.random.rand()  # by someone else
    half = len(starts) // 2
    assert len({tuple(obs) for obs in starts[0][0].tolist()}) == 10  # starts differ
    assert all(torch.equal(x, y) for x, y in zip(starts[:half], starts[half:], strict=True))
    assert {obs.shape[1] for obs in starts} == {10, 2}


def test_an_episode_leaves_numpy_s_generator_alone(arrays):
    environment = make(load(NAME).task.env_id)
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    environment.reset(seed=1)
    environment.step(np.zeros(2, np.float32))
    environment.close()
    assert np.random.rand() == expected


def test_iql_does_not_scale_the_rewards_of_ogbench(arrays):
    dataset = load(NAME)
    rows = ReplayBatches([dataset], 4, [torch.Generator()], scale_rewards=True).rows
    assert torch.equal(rows, dataset.rows)


def test_a_path_is_stored_in_full(arrays, home, monkeypatch):
    monkeypatch.chdir(home / "datasets" / "ogbench")
    assert load(FILE).source == str(home / "datasets" / "ogbench" / FILE)


def test_check_counts_episodes(arrays):
    assert check(NAME).returns["episodes"] == 2


def test_fetch_takes_no_file_of_ogbench(arrays, capsys):
    assert main(["datasets", "fetch", NAME, "--from-file", "x.npz"]) == 2
    assert "--from-file takes a D4RL file" in capsys.readouterr().err


def test_fetch_names_the_address(capsys):
    assert main(["datasets", "fetch", NAME]) == 2
    assert f"https://rail.eecs.berkeley.edu/datasets/ogbench/{FILE}" in capsys.readouterr().err


def test_a_missing_file_names_the_download():
    with pytest.raises(
        UserError, match=r"rail\.eecs\.berkeley\.edu/datasets/ogbench/antmaze-large-navigate-v0"
    ):
        load("antmaze-large-navigate-singletask-v0")
