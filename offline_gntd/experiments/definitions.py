"""An experiment is a named grid: datasets × algorithms × seeds under one protocol."""

import dataclasses
import itertools
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_gntd.configuration import digest, from_dict, hashed_fields
from offline_gntd.datasets.catalogue import SEED, results_name
from offline_gntd.errors import UserError, shortened, unknown
from offline_gntd.experiments.record import read_object
from offline_gntd.files import home, write_json
from offline_gntd.lock import Lock

if TYPE_CHECKING:
    from offline_gntd.experiments.training import DataSource

MOST_SEEDS = 10_000
LONGEST_NAME = 230  # bytes; file systems allow 255, and suffixes are added


LIMITS = {  # largest values of the fields of Protocol
    "steps": 10**12,
    "evaluate_every": 10**12,
    "evaluate_episodes": 100_000,
    "seeds_per_process": MOST_SEEDS,
}


@dataclass(frozen=True)
class Protocol:
    """How every run of an experiment is trained and evaluated; a table never mixes two protocols."""

    steps: int = 20_000  # updates; for an online algorithm, environment steps
    evaluate_every: int = 500  # updates; the last step is always evaluated
    evaluate_episodes: int = 20
    seeds_per_process: int = 1  # trained together in one process

    def __post_init__(self):
        for name, most in LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise UserError(f"{name} must be at least 1 and at most {most:,}, not {value}")


# the kinds that an experiment may name as its default; analysis/__init__.py has all kinds
TABLE_KINDS = ("scores", "td_error", "pairwise")


@dataclass(frozen=True)
class TableView:
    """The default table of an experiment."""

    kind: str = "scores"  # scores: datasets × algorithms | td_error: the paper's Table 1 | pairwise
    metric: str = "score"  # a column of the results
    aggregate: str = "last"  # over a run's evaluations: last | best | final-N

    def __post_init__(self):
        if self.kind not in TABLE_KINDS:
            raise unknown("kind of table", self.kind, TABLE_KINDS)


@dataclass(frozen=True)
class Experiment:
    """A grid of runs, their protocol and their default table. Raises UserError for invalid values."""

    name: str
    datasets: tuple[str, ...]  # names or paths; environment ids for online algorithms
    algorithms: tuple[str, ...]
    seeds: int = 5
    protocol: Protocol = Protocol()
    algorithm_steps: dict[str, int] = field(default_factory=dict)  # where it differs from the protocol
    table: TableView = TableView()

    def __post_init__(self):
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise UserError(
                f"{shortened(self.name)} cannot name an experiment: use letters, digits and - _ . and begin "
                "with a letter, a digit or _"
            )
        for name in (self.name, *self.algorithms, *self.dataset_names()):
            if len(name.encode()) > LONGEST_NAME:
                raise UserError(f"{shortened(name)} is too long a name: use at most {LONGEST_NAME} bytes")
        for name in self.algorithms:
            if not re.fullmatch(r"\w[^/\\\0]*", name):
                raise UserError(
                    f"{name!r} cannot name an algorithm: begin with a letter, a digit or _, without / and \\"
                )
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UserError(f"--seeds must be at least 1 and at most {MOST_SEEDS:,}, not {self.seeds}")
        if self.seeds > self.protocol.seeds_per_process and self.seeds % self.protocol.seeds_per_process:
            raise UserError(
                f"{self.seeds} seeds cannot be divided into groups of {self.protocol.seeds_per_process}; "
                "change --seeds or --seeds-per-process"
            )
        for name in set(self.algorithm_steps) - set(self.algorithms):
            raise unknown(f"algorithm in {self.name}", name, self.algorithms)
        for name, count in Counter(self.algorithms).items():
            if count > 1:
                raise UserError(f"{name} is named twice among the algorithms of {self.name}")
        for name, count in Counter(self.dataset_names()).items():
            if count > 1:
                raise UserError(f"two datasets of {self.name} have the name {name!r}; rename a file")

    def canonical(self) -> "Experiment":
        """This experiment with canonical algorithm names. Raises UserError for an unknown algorithm or field.

        Tables do not call this: an algorithm may be in a user's file that is not imported.
        """
        from offline_gntd.algorithms import canonical_name  # imports torch, which tables do not need

        names = {name: canonical_name(name) for name in self.algorithms}
        steps = {names[name]: steps for name, steps in self.algorithm_steps.items()}
        return dataclasses.replace(self, algorithms=tuple(names.values()), algorithm_steps=steps)

    def protocol_of(self, algorithm: str) -> Protocol:
        """The protocol with the algorithm's number of steps."""
        steps = self.algorithm_steps.get(algorithm, self.protocol.steps)
        return dataclasses.replace(self.protocol, steps=steps)

    def cells(self) -> list["Cell"]:
        """The grid: a cell per dataset, algorithm and group of seeds that one process trains together."""
        numbers = range(self.seeds)
        groups = [
            tuple(numbers[i : i + self.protocol.seeds_per_process])
            for i in numbers[:: self.protocol.seeds_per_process]
        ]
        return [
            Cell(self.name, source, algorithm, seeds, self.protocol_of(algorithm))
            for source, algorithm, seeds in itertools.product(self.datasets, self.algorithms, groups)
        ]

    def dataset_names(self) -> tuple[str, ...]:
        return tuple(map(results_name, self.datasets))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def settings_hash(config: Any, protocol: Protocol, seeds_per_process: int) -> str:
    """The hash of everything that decides a run's numbers, except its seed, data and number of steps.

    The number of steps is left out so that a longer run can continue a shorter one. Settings that depend
    on it (see `within` in algorithms/__init__.py) do change the hash.
    """
    return digest(
        {
            "algorithm": [type(config).__name__, hashed_fields(config)],
            "evaluate": [protocol.evaluate_every, protocol.evaluate_episodes],
            "seeds_per_process": seeds_per_process,
        }
    )


@dataclass(frozen=True)
class Cell:
    """A unit of work for one process: an algorithm, a dataset and the seeds that are trained together."""

    experiment: str
    source: str  # a dataset's name or path; for an online algorithm, an environment id
    algorithm: str
    seeds: tuple[int, ...]
    protocol: Protocol

    @property
    def dataset(self) -> str:
        """The name of the dataset in results."""
        return results_name(self.source)

    @property
    def config(self) -> Any:
        from offline_gntd.algorithms import configured

        return configured(self.algorithm, self.protocol.steps)

    @property
    def online(self) -> bool:
        from offline_gntd.experiments.training import is_online

        return is_online(self.config)

    def sources(self) -> "tuple[DataSource, ...]":
        """Its dataset or environment, one per seed; raises DatasetNotFound if data is not on this machine."""
        from offline_gntd.experiments.training import sources_of

        return sources_of(self.source, self.config, self.seeds)

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
TABLE2 = ("bc", "bcq", "cql", "td3_bc", "gntd3_bc")
BODIES = ("halfcheetah", "hopper", "walker2d")
SPLITS = ("medium", "medium-replay", "medium-expert", "expert")
MUJOCO = ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Swimmer-v4")
ONLINE = ("pg_td", "pg_gntd")
CONTINUOUS = ("bc", "td3_bc", "gntd3_bc", "iql")
MINARI_BODIES = (
    *("ant", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverteddoublependulum"),
    *("invertedpendulum", "pusher", "reacher", "swimmer", "walker2d"),
)
OGBENCH_DATA = (
    *("antmaze-large-navigate", "humanoidmaze-medium-navigate", "antsoccer-arena-navigate"),
    *("cube-single-play", "cube-double-play", "scene-play", "puzzle-3x3-play"),
)
VERSIONS = ("v0", "v2", "local")  # data of table2: two versions of D4RL's, or built on this machine


def table2_name(version: str) -> str:
    """Each version of the data is a separate experiment, so that no table mixes them."""
    return "table2" if version == VERSIONS[0] else f"table2-{version}"


REPLAY_SETS = ("cartpole-replay", "cartpole-medium-replay", "acrobot-replay", "acrobot-medium-replay")
AUTHORS_SETS = tuple(  # the authors' buffers, linked from gntd/buffers of their repository
    f"datasets/authors/{env}_{SEED}_{split}"
    for env in ("CartPole-v1", "Acrobot-v1")
    for split in ("Replay", "Medium-Replay")
)


def _table1(name: str, datasets: tuple[str, ...], suffix: str = "") -> Experiment:
    return Experiment(
        name,
        datasets,
        tuple(algorithm + suffix for algorithm in DISCRETE),
        protocol=Protocol(steps=3_000, evaluate_every=30, evaluate_episodes=20),
        table=TableView(kind="td_error"),
    )


def _ablation_table1() -> Experiment:
    """DQN and GNDQN with one setting at a time, and with all of them, as in version 0.1."""
    both: tuple[str, ...] = ("hidden_dims=128x128", "batch_size=256", "tau=0.005")
    both += ("optimiser.max_grad_norm=none", "timeouts_terminal=false")
    kfac = ("kfac.factor_every=10@kfac.inverse_every=20", "kfac.start=batch", "kfac.average=P")
    variants = [
        (name, ("", *fields, "@".join(fields))) for name, fields in (("dqn", both), ("gndqn", both + kfac))
    ]
    return Experiment(
        "ablation-table1",
        ("cartpole-replay", "acrobot-replay"),
        tuple(f"{name}@{change}".rstrip("@") for name, changes in variants for change in changes),
        protocol=Protocol(steps=3_000, evaluate_every=150, evaluate_episodes=20),
        table=TableView(kind="td_error"),
    )


def _ablation_gntd3_bc() -> Experiment:
    """Six candidates each for the presets of GNTD3+BC and TD3+BC, all with 256-256 networks.

    The preset is the candidate with the highest mean over the datasets of the score averaged over all of
    training; among equals, the one with fewer changed fields. All run with bfloat16 products, to save time.
    """
    authors = "gntd3_bc_authors@hidden_dims=256x256"
    corrected = f"{authors}@critic_optimiser.bias_correction=true"
    gauss_newton = [
        f"{base}@kfac.damping={damping}"
        for base in ("gntd3_bc_v01", authors, corrected)
        for damping in (0.1, 0.25)
    ]
    optimisers = ("", "@critic_optimiser.bias_correction=false", "@critic_optimiser.beta1=0.0")
    rates = (3e-4, 1e-3)
    baseline = [f"td3_bc@critic_learning_rate={rate}{change}" for rate in rates for change in optimisers]
    return Experiment(
        "ablation-gntd3_bc",
        ("halfcheetah-medium-v2", "walker2d-medium-v2", "walker2d-medium-replay-v2"),
        tuple(f"{candidate}@precision=bfloat16" for candidate in (*gauss_newton, *baseline)),
        seeds=2,
        protocol=Protocol(steps=30_000, evaluate_every=5_000, evaluate_episodes=10),
        table=TableView(aggregate="final-6"),  # every evaluation
    )


def _in_both_precisions(*algorithms: str) -> tuple[str, ...]:
    return tuple(name + suffix for name in algorithms for suffix in ("", "@precision=bfloat16"))


BUILT_IN = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "quickstart",
            ("cartpole-replay-small",),
            DISCRETE,
            seeds=3,
            protocol=Protocol(steps=1_500, evaluate_every=50, evaluate_episodes=10, seeds_per_process=3),
            table=TableView(kind="td_error"),
        ),
        _table1("table1", REPLAY_SETS),  # the values stated in the paper
        _table1("table1-script", REPLAY_SETS, "_script"),  # the values of the authors' run script
        _table1("table1-authors", AUTHORS_SETS),
        _table1("table1-authors-script", AUTHORS_SETS, "_script"),
        _ablation_table1(),
        _ablation_gntd3_bc(),
        Experiment(
            "ablation-precision",
            ("halfcheetah-medium-v2", "walker2d-medium-v2", "walker2d-medium-replay-v2"),
            _in_both_precisions("td3_bc", "gntd3_bc"),
            seeds=3,
            protocol=Protocol(steps=30_000, evaluate_every=5_000, evaluate_episodes=10),
            table=TableView(aggregate="final-2"),
        ),
        Experiment(
            "ablation-precision-discrete",
            ("cartpole-replay",),
            _in_both_precisions("dqn", "gndqn"),
            protocol=Protocol(steps=3_000, evaluate_every=30, evaluate_episodes=20),
            table=TableView(metric="return", aggregate="final-10"),
        ),
        *(
            Experiment(
                table2_name(version),
                tuple(f"{body}-{split}-{version}" for split in SPLITS for body in BODIES),
                TABLE2,
                protocol=Protocol(steps=1_000_000, evaluate_every=5_000, evaluate_episodes=10),
                table=TableView(aggregate="final-10"),  # as in the paper
            )
            for version in VERSIONS
        ),
        Experiment(
            "table-minari",
            tuple(f"mujoco/{body}/{split}-v0" for split in ("medium", "expert") for body in MINARI_BODIES),
            CONTINUOUS,
            protocol=Protocol(steps=100_000, evaluate_every=5_000, evaluate_episodes=10),
            table=TableView(metric="return", aggregate="final-10"),  # most sets have no reference returns
        ),
        Experiment(  # the default task of each environment
            "table-ogbench",
            tuple(f"{data}-singletask-v0" for data in OGBENCH_DATA),
            CONTINUOUS,
            protocol=Protocol(steps=1_000_000, evaluate_every=100_000, evaluate_episodes=50),
            table=TableView(aggregate="final-3"),
        ),
        Experiment(
            "figure1",
            MUJOCO,
            ONLINE,
            seeds=3,
            protocol=Protocol(steps=300_000, evaluate_every=5_000, evaluate_episodes=10),
            table=TableView(kind="pairwise", metric="return", aggregate="final-4"),
        ),
    )
}


def stored_path(name: str) -> Path:
    return home() / "results" / name / "experiment.json"


def exported_path(name: str) -> Path:
    return home() / "results" / f"{name}.json"


def find(name: str) -> Experiment:
    """An experiment as last run here, or as exported, or as built in; raises UserError for other names."""
    if experiment := stored(name):
        return experiment
    if name in BUILT_IN:
        return BUILT_IN[name]
    raise unknown("experiment", name, {*with_results(), *BUILT_IN})


def with_results() -> list[str]:
    """The names of the experiments with runs or exported results: built-in ones first, ablations last."""
    folder = home() / "results"
    names = {path.parent.name for path in folder.glob("*/experiment.json")}
    names |= {path.name.removesuffix(".runs.csv") for path in folder.glob("*.runs.csv")}
    ordered = [*(name for name in BUILT_IN if name in names), *sorted(names - set(BUILT_IN))]
    return sorted(ordered, key=lambda name: name.startswith("ablation"))


def from_file(path: Path) -> Experiment:
    """Read a TOML file with datasets, algorithms, seeds, and the tables protocol, algorithm_steps and table.

    The default name is the file's.
    """
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOML's and Unicode's errors are ValueErrors
        raise UserError(f"cannot read {path}: {error}") from error
    except RecursionError as error:
        raise UserError(f"cannot read {path}: it is nested too deeply") from error
    return from_dict(Experiment, {"name": path.stem, "datasets": [], "algorithms": []} | value)


def store(experiment: Experiment) -> None:
    """Write experiment.json, so that a table knows which runs are missing.

    An experiment may be run in parts: if its evaluations are the same, the stored datasets, algorithms and
    seeds are kept, and each algorithm has the number of steps that it was last run with.
    """
    if _merged(experiment) != stored(experiment.name):
        if not _extends(experiment, stored(experiment.name)):
            words = "evaluations or seeds per process have changed, so earlier runs leave its tables"
            print(f"{experiment.name}: {words}", file=sys.stderr)
        with Lock([stored_path(experiment.name).parent], wait=True):
            write_json(stored_path(experiment.name), _merged(experiment).to_dict())


def _extends(experiment: Experiment, before: Experiment | None) -> bool:
    """Whether the runs of both belong to one table."""
    steps = experiment.protocol.steps
    return before is None or dataclasses.replace(before.protocol, steps=steps) == experiment.protocol


def _merged(experiment: Experiment) -> Experiment:
    """An experiment with the datasets, algorithms and seeds of the stored one, see `store`."""
    before = stored(experiment.name)
    if not before or not _extends(experiment, before):
        return experiment
    # by name, because a file may have been moved
    sources = dict(zip(before.dataset_names(), before.datasets, strict=True))
    sources |= zip(experiment.dataset_names(), experiment.datasets, strict=True)
    steps = {name: before.protocol_of(name).steps for name in before.algorithms}
    steps |= {name: experiment.protocol_of(name).steps for name in experiment.algorithms}
    longest = max(steps.values())
    return dataclasses.replace(
        experiment,
        datasets=tuple(sources.values()),
        algorithms=tuple(steps),
        seeds=max(before.seeds, experiment.seeds),
        protocol=dataclasses.replace(experiment.protocol, steps=longest),
        algorithm_steps={name: number for name, number in steps.items() if number != longest},
    )


def stored(name: str) -> Experiment | None:
    """An experiment as it was last run here or exported."""
    for path in (stored_path(name), exported_path(name)):
        if path.exists():
            try:
                return from_dict(Experiment, read_object(path))
            except UserError as error:
                raise UserError(f"{path} is damaged: {error}; delete it and run {name} again") from error
    return None
