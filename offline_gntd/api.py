"""The Python API: train, evaluate, and a trained agent that acts, is saved and exported.

from offline_gntd import load, train, evaluate

agent = train("gntd3_bc", load("hopper-medium-v2"), steps=100_000)
evaluate(agent, episodes=10).score
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from offline_gntd import processes
from offline_gntd.algorithms import catalogue, fitted, preset
from offline_gntd.configuration import from_dict, to_dict
from offline_gntd.datasets import Dataset
from offline_gntd.errors import UserError, unknown
from offline_gntd.evaluation import Evaluator
from offline_gntd.experiments.run import stored_agent
from offline_gntd.experiments.training import (
    Training,
    agent_state,
    check_compatible,
    restore_agent,
    sources_of,
)
from offline_gntd.files import load_tensors, save_tensors
from offline_gntd.tasks import Task


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns of whole episodes with greedy actions."""

    step: int  # updates before it
    returns: np.ndarray  # [episodes]
    score: float  # normalised score of the mean return

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())


class TrainedAgent:
    """The greedy policy of one seed, with the observation normaliser it was trained with."""

    def __init__(self, config: Any, task: Task, state: dict[str, Tensor], seed: int = 0, step: int = 0):
        self.config, self.task, self.seed, self.step = config, task, seed, step
        self.evaluations: list[Evaluation] = []  # during training
        self.agent = config.agent(task, [torch.Generator().manual_seed(seed)])
        restore_agent(self.agent, [state])

    @torch.no_grad()
    def act(self, obs: Any) -> np.ndarray:
        """The greedy action for an observation [obs_dim], or actions [n, …] for observations [n, obs_dim]."""
        batch = torch.as_tensor(np.asarray(obs), dtype=torch.float32)
        if batch.shape[-1:] != (self.task.obs_dim,) or batch.dim() > 2:
            raise UserError(
                f"obs must be [{self.task.obs_dim}] or [n, {self.task.obs_dim}], not {list(batch.shape)}"
            )
        actions = self.agent.act(batch.reshape(1, -1, self.task.obs_dim))[0].numpy()
        actions = self.task.to_environment(actions)
        return actions if batch.dim() == 2 else actions[0]

    def save(self, path: str | Path) -> None:
        """Write the agent to a file that `TrainedAgent.load` reads, with a checksum."""
        content = {
            "algorithm": type(self.config).__name__,
            "config": to_dict(self.config),
            "task": dataclasses.asdict(self.task),
            "state": {name: tensor.clone() for name, tensor in agent_state(self.agent, 0).items()},
            "seed": self.seed,
            "step": self.step,
        }
        save_tensors(Path(path), content)

    @staticmethod
    def load(path: str | Path) -> "TrainedAgent":
        """Read a file of `save`, or the last checkpoint in the folder of a run of `offline-gntd run`."""
        if Path(path).is_dir():
            run = stored_agent(Path(path))
            return TrainedAgent(run.config, run.task, run.state, run.seed, run.step)
        content = load_tensors(Path(path))
        if not isinstance(content, dict) or "algorithm" not in content:
            raise UserError(f"{path} is not an agent that was saved with agent.save()")
        kinds = {type(entry.config).__name__: type(entry.config) for entry in catalogue().values()}
        if content["algorithm"] not in kinds:
            raise unknown("algorithm", content["algorithm"], kinds, "Import the file that defines it first.")
        config = from_dict(kinds[content["algorithm"]], content["config"])
        return TrainedAgent(
            config, Task(**content["task"]), content["state"], content["seed"], content["step"]
        )

    def module(self) -> nn.Module:
        """The greedy policy as a module: obs [n, obs_dim] -> actions [n, …]."""
        return _GreedyPolicy(self.agent, self.task)

    def export(self, path: str | Path) -> None:
        """Write the greedy policy as ONNX (`.onnx`; needs the extra `onnx`) or by torch.export (`.pt2`).

        Its input `obs` [n, obs_dim] is an environment's observation, its output `action` what `act` returns.
        """
        path, example = Path(path), (torch.zeros(2, self.task.obs_dim),)
        if path.suffix not in (".onnx", ".pt2"):
            raise UserError(f"cannot export to {path.name!r}: use a name that ends in .onnx or .pt2")
        with torch.no_grad():
            program = torch.export.export(
                self.module(), example, dynamic_shapes={"obs": {0: torch.export.Dim("n")}}
            )
        if path.suffix == ".pt2":
            torch.export.save(program, path)
            return
        try:
            import onnxscript  # noqa: F401 (torch.onnx needs it)
        except ImportError as error:
            raise UserError("ONNX needs further packages: pip install 'offline_gntd[onnx]'") from error
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is not installed
        torch.onnx.export(
            program, (), str(path), input_names=["obs"], output_names=["action"], verbose=False, dynamo=True
        )


class _GreedyPolicy(nn.Module):
    def __init__(self, agent: Any, task: Task):
        super().__init__()
        self.agent, self.scaled = agent, task.action_range is not None
        if self.scaled:
            low, high = torch.tensor(task.action_range)
            self.register_buffer("action_centre", (high + low) / 2, persistent=False)
            self.register_buffer("action_half_width", (high - low) / 2, persistent=False)
        for name, tensor in agent_state(agent, 0).items():
            self.register_buffer(name.replace(".", "_"), tensor, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        actions = self.agent.act(obs[None])[0]
        return actions * self.action_half_width + self.action_centre if self.scaled else actions


def train(
    algorithm: Any,
    dataset: Dataset | str,
    steps: int,
    seed: int | Sequence[int] = 0,
    *,
    evaluate_every: int | None = None,
    evaluate_episodes: int = 10,
    callback: Callable[[TrainedAgent, Evaluation], Any] | None = None,
    progress: bool = True,
    device: str = "cpu",
) -> Any:
    """Train an agent and return it as a `TrainedAgent`, or as a list of them if `seed` is a sequence.

    algorithm       a preset's name, "gntd3_bc" or "td3_bc@alpha=1", or a settings object, TD3BC(alpha=1.0)
    dataset         a Dataset, or what `load` takes; seed k of a family (cartpole-replay) has member k. For an
                    online algorithm, an environment's id
    steps           updates
    evaluate_every  updates between evaluations of `evaluate_episodes` episodes; None: no evaluation. The list
                    agent.evaluations has the results, equal to `offline-gntd run`'s
    callback        called with the agent and its evaluation, after each one

    Training uses one thread of torch on a CPU, which is fastest for networks of this size.
    """
    config = fitted(preset(algorithm).config if isinstance(algorithm, str) else algorithm, steps)
    seeds = np.atleast_1d(seed).tolist()
    counts = {"steps": steps, "evaluate_episodes": evaluate_episodes, "number of seeds": len(seeds)}
    for name, value in (counts | {"evaluate_every": 1 if evaluate_every is None else evaluate_every}).items():
        if value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")
    for each in seeds:
        if not isinstance(each, int) or not 0 <= each < 2**63:
            raise UserError(f"seed must be a whole number of at least 0 and less than 2**63, not {each}")
    sources = sources_of(dataset, config, seeds) if isinstance(dataset, str) else [dataset] * len(seeds)
    check_compatible(config, sources[0])
    with _torch_settings(), contextlib.closing(Training(config, sources, seeds, device)) as training:
        evaluations = _train(training, seeds, steps, evaluate_every, evaluate_episodes, callback, progress)
        agents = _agents(training, seeds)
    for agent, agent_evaluations in zip(agents, evaluations, strict=True):
        agent.evaluations = agent_evaluations
    return agents[0] if np.ndim(seed) == 0 else agents


def _train(
    training: Training,
    seeds: list[int],
    steps: int,
    evaluate_every: int | None,
    episodes: int,
    callback: Callable[[TrainedAgent, Evaluation], Any] | None,
    progress: bool,
) -> list[list[Evaluation]]:
    """Train to the last step; returns the evaluations of every seed."""
    evaluations: list[list[Evaluation]] = [[] for _ in seeds]
    evaluator = Evaluator(training.task, seeds, episodes) if evaluate_every else None
    with tqdm(total=steps, unit="update", disable=not progress) as bar:
        while training.step < steps:
            pause = min(training.step + 100, steps)
            if evaluate_every:
                pause = min(pause, (training.step // evaluate_every + 1) * evaluate_every)
            before = training.step
            training.train(pause)
            bar.update(training.step - before)
            due = evaluate_every and (training.step % evaluate_every == 0 or training.step == steps)
            if evaluator and due:
                returns = evaluator.returns(training.act, training.step, training.device)
                for i in range(len(seeds)):
                    score = training.task.score(float(returns[i].mean()))
                    evaluations[i].append(Evaluation(training.step, returns[i], score))
                bar.set_postfix_str(f"score {np.mean([seed[-1].score for seed in evaluations]):.1f}")
                if callback:
                    for agent, results in zip(_agents(training, seeds), evaluations, strict=True):
                        callback(agent, results[-1])
    if evaluator:
        evaluator.close()
    return evaluations


def _agents(training: Training, seeds: list[int]) -> list[TrainedAgent]:
    states = [agent_state(training.agent, i) for i in range(len(seeds))]
    return [
        TrainedAgent(training.config, training.task, state, seed, training.step)
        for seed, state in zip(seeds, states, strict=True)
    ]


@contextlib.contextmanager
def _torch_settings() -> Iterator[None]:
    """Compute as the command line does; the caller's settings of torch are restored afterwards."""
    threads = torch.get_num_threads()
    flushed = not (torch.tensor(1e-40, dtype=torch.float32) * 1).item()  # torch cannot report this setting
    processes.prepare()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def evaluate(agent: TrainedAgent, episodes: int = 10, seed: int | None = None) -> Evaluation:
    """Run whole episodes in the agent's environment with greedy actions.

    seed  decides the episodes' initial states; by default the agent's seed, which gives the scores that
          training logged
    """
    if episodes < 1:
        raise UserError(f"episodes must be at least 1, not {episodes}")
    with (
        _torch_settings(),
        contextlib.closing(
            Evaluator(agent.task, [agent.seed if seed is None else seed], episodes)
        ) as evaluator,
        torch.no_grad(),
    ):
        returns = evaluator.returns(agent.agent.act, agent.step)[0]
    return Evaluation(agent.step, returns, agent.task.score(float(returns.mean())))
