"""An experiment is a named grid: datasets × algorithms × seeds under one protocol."""

import dataclasses
import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_gntd.algorithms import catalogue, configured, preset
from offline_gntd.configuration import decisive, digest, to_dict
from offline_gntd.datasets.names import results_name
from offline_gntd.errors import UserError, unknown
from offline_gntd.experiments import results
from offline_gntd.experiments.lock import Lock
from offline_gntd.files import home, read_json, write_json


@dataclass(frozen=True)
class Protocol:
    """How every run of an experiment is trained and scored; a table never mixes two of them."""

    steps: int = 20_000  # updates; environment steps of an algorithm that learns online
    evaluate_every: int = 500  # updates; the last step is always evaluated
    evaluate_episodes: int = 20
    seeds_per_process: int = 1  # trained together, stacked, in one process

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise UserError(f"{field.name} must be at least 1, not {getattr(self, field.name)}")


@dataclass(frozen=True)
class Experiment:
    name: str
    datasets: tuple[str, ...]  # names, or paths of files; environments of algorithms that learn online
    algorithms: tuple[str, ...]
    seeds: int = 5
    protocol: Protocol = Protocol()

    def __post_init__(self):
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name[0] in ".-":
            raise UserError(f"{self.name!r} is no name for an experiment: letters, digits, - _ . only")
        if self.seeds < 1:
            raise UserError(f"--seeds must be at least 1, not {self.seeds}")
        if self.seeds > self.protocol.seeds_per_process and self.seeds % self.protocol.seeds_per_process:
            raise UserError(
                f"{self.seeds} seeds do not make whole stacks of {self.protocol.seeds_per_process}"
            )
        for twice in {name for name in self.algorithms if self.algorithms.count(name) > 1}:
            raise UserError(f"{twice} is named twice among the algorithms of {self.name}")
        names = self.dataset_names()
        for twice in {name for name in names if names.count(name) > 1}:
            raise UserError(f"two datasets of {self.name} would both be called {twice!r}; rename a file")

    def check_algorithms(self) -> None:
        """Refuse an unknown name or field before anything is run; results are read without knowing them."""
        for algorithm in self.algorithms:
            preset(algorithm)

    def cells(self) -> list["Cell"]:
        """All runs, as stacks of seeds."""
        numbers = range(self.seeds)
        stacks = [
            tuple(numbers[i : i + self.protocol.seeds_per_process])
            for i in numbers[:: self.protocol.seeds_per_process]
        ]
        grid = itertools.product(self.datasets, self.algorithms, stacks)
        return [Cell(self.name, source, algorithm, seeds, self.protocol) for source, algorithm, seeds in grid]

    def dataset_names(self) -> tuple[str, ...]:
        return tuple(map(results_name, self.datasets))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(value: dict[str, Any]) -> "Experiment":
        protocol = value.get("protocol", {})
        legal = {field.name for field in dataclasses.fields(Experiment)}
        legal_protocol = {field.name for field in dataclasses.fields(Protocol)}
        for name in set(value) - legal:
            raise unknown("experiment setting", name, legal)
        if not isinstance(protocol, dict):
            raise UserError(f"protocol must be a table of settings, not {protocol!r}")
        for name in set(protocol) - legal_protocol:
            raise unknown("protocol setting", name, legal_protocol)
        for name, number in {"seeds": value.get("seeds", 1), **protocol}.items():
            if type(number) is not int:
                raise UserError(f"{name} must be a whole number, not {number!r}")
        lists = {key: _names(key, value.get(key, ())) for key in ("datasets", "algorithms")}
        return Experiment(**value | lists | {"protocol": Protocol(**protocol)})


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise UserError(f"{key} must be a list of names, not {value!r}")
    return tuple(value)


def settings_hash(config: Any, protocol: Protocol, stack: int) -> str:
    """Of all that decides a run's numbers, but for its seed and its data."""
    protocol = dataclasses.replace(protocol, seeds_per_process=stack)
    return digest({"algorithm": decisive(config), "protocol": to_dict(protocol)})


@dataclass(frozen=True)
class Cell:
    """One process's work: an algorithm on a dataset for a stack of seeds."""

    experiment: str
    source: str  # what `load` takes: a name, or a file's path; an environment's id where it learns online
    algorithm: str
    seeds: tuple[int, ...]
    protocol: Protocol

    @property
    def dataset(self) -> str:
        """The name its results go by."""
        return results_name(self.source)

    @property
    def config(self) -> Any:
        return configured(self.algorithm, self.protocol.steps)

    @property
    def online(self) -> bool:
        """Whether its source is an environment, in which it collects its own batches."""
        return getattr(self.config, "online", False)

    @property
    def config_hash(self) -> str:
        return settings_hash(self.config, self.protocol, len(self.seeds))

    def folder(self, seed: int) -> Path:
        return home() / "results" / self.experiment / self.dataset / self.algorithm / f"seed-{seed}"

    def folders(self) -> list[Path]:
        return [self.folder(seed) for seed in self.seeds]

    def __str__(self) -> str:
        seeds = f"{self.seeds[0]}" if len(self.seeds) == 1 else f"{self.seeds[0]}–{self.seeds[-1]}"
        return f"{self.dataset} {self.algorithm} seed {seeds}"


DISCRETE = ("td", "dqn", "gntd", "gndqn")
CONTINUOUS = ("bc", "td3_bc", "gntd3_bc")
COSTLY = ("td3_bc", "bcq", "gn_bcq", "cql", "gn_cql")  # the others take 6 to 30 times the time of td3_bc
BODIES = ("halfcheetah", "hopper", "walker2d")
SPLITS = ("medium", "medium-replay", "medium-expert", "expert")
MUJOCO = ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Swimmer-v4")
ONLINE = ("pg_td", "pg_gntd")
VERSIONS = ("v0", "v2", "local")  # of table2's data: D4RL's, or built here


def table2_name(version: str) -> str:
    """Versions of the data are experiments of their own, so that no table mixes them."""
    return "table2" if version == VERSIONS[0] else f"table2-{version}"


BUILT_IN = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "quickstart",
            ("cartpole-replay-small",),
            DISCRETE,
            seeds=3,
            protocol=Protocol(steps=4_000, evaluate_every=500, evaluate_episodes=10, seeds_per_process=3),
        ),
        Experiment(
            "table1",
            ("cartpole-replay", "cartpole-medium-replay", "acrobot-replay", "acrobot-medium-replay"),
            DISCRETE,
            protocol=Protocol(steps=3_000, evaluate_every=30, evaluate_episodes=20),
        ),
        *(
            Experiment(
                table2_name(version),
                tuple(f"{body}-{split}-{version}" for split in SPLITS for body in BODIES),
                CONTINUOUS,
                protocol=Protocol(steps=1_000_000, evaluate_every=5_000, evaluate_episodes=10),
            )
            for version in VERSIONS
        ),
        Experiment(
            "table2-costly",
            tuple(f"{body}-medium-expert-{VERSIONS[0]}" for body in BODIES),
            COSTLY,
            protocol=Protocol(steps=1_000_000, evaluate_every=5_000, evaluate_episodes=10),
        ),
        Experiment(
            "figure1",
            MUJOCO,
            ONLINE,
            seeds=3,
            protocol=Protocol(steps=300_000, evaluate_every=5_000, evaluate_episodes=10),
        ),
    )
}


def stored_path(name: str) -> Path:
    return home() / "results" / name / "experiment.json"


def find(name: str) -> Experiment:
    """An experiment as it was last run here, else as its shipped results were run, else as built in."""
    if stored := _stored(name):
        return stored
    built_in, shipped = BUILT_IN.get(name), results.read_shipped(name)
    if shipped and not (
        built_in and results.protocols(shipped.runs) == [dataclasses.asdict(built_in.protocol)]
    ):
        return _of_runs(name, shipped)
    if built_in:
        return built_in
    raise unknown("experiment", name, {*with_results(), *BUILT_IN})


def with_results() -> list[str]:
    """The experiments that have been run here or whose results were shipped, the built-in ones first."""
    folder = home() / "results"
    names = {path.parent.name for path in folder.glob("*/experiment.json")}
    names |= {path.name.removesuffix(".runs.csv") for path in folder.glob("*.runs.csv")}
    return [*(name for name in BUILT_IN if name in names), *sorted(names - set(BUILT_IN))]


def _of_runs(name: str, shipped: results.Results) -> Experiment:
    """Shipped runs are sorted by name; a table has the catalogue's order and, of splits, the paper's."""
    runs, presets = shipped.runs.to_dict("records"), list(catalogue())
    splits = [f"{body}-{split}" for split in SPLITS for body in BODIES]

    def place(known: list[str], found: str) -> int:
        return known.index(found) if found in known else len(known)

    def split(run: dict[str, Any]) -> int:
        return place(splits, str(run["dataset_stands_for"]).rpartition("-")[0])

    by_algorithm = sorted(runs, key=lambda run: place(presets, run["algorithm"].partition("@")[0]))
    return Experiment(
        name,
        tuple(dict.fromkeys(run["dataset"] for run in sorted(runs, key=split))),
        tuple(dict.fromkeys(run["algorithm"] for run in by_algorithm)),
        seeds=1 + max(run["seed"] for run in runs),
        protocol=Protocol(**runs[0]["protocol"]),
    )


def from_file(path: Path) -> Experiment:
    """A TOML file: datasets, algorithms, seeds and a [protocol] table; its own name unless it gives one."""
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOML's and Unicode's errors are ValueErrors
        raise UserError(f"cannot read {path}: {error}") from error
    return Experiment.from_dict({"name": path.stem} | value)


def store(experiment: Experiment) -> None:
    """Remember what was asked for, so that a table knows which runs are missing.

    A grid may be run in parts, also at once: under one protocol its datasets, algorithms and seeds add up, to
    those whose results were shipped too.
    """
    if _added_up(experiment) != _stored(experiment.name):
        with Lock([stored_path(experiment.name).parent], wait=True):
            write_json(stored_path(experiment.name), _added_up(experiment).to_dict())


def _added_up(experiment: Experiment) -> Experiment:
    before, shipped = _stored(experiment.name), results.read_shipped(experiment.name)
    if not before and shipped:
        before = _of_runs(experiment.name, shipped)
    if not before or before.protocol != experiment.protocol:
        return experiment
    # by their names: a file may lie elsewhere than before
    sources = dict(zip(before.dataset_names(), before.datasets, strict=True))
    sources |= zip(experiment.dataset_names(), experiment.datasets, strict=True)
    return dataclasses.replace(
        experiment,
        datasets=tuple(sources.values()),
        algorithms=tuple(dict.fromkeys(before.algorithms + experiment.algorithms)),
        seeds=max(before.seeds, experiment.seeds),
    )


def _stored(name: str) -> Experiment | None:
    return Experiment.from_dict(read_json(stored_path(name))) if stored_path(name).exists() else None
