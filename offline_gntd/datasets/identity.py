"""What a dataset's name, or a file, is: its kind, its environment, its entry in D4RL's catalogue."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_gntd.datasets import cache, catalogue, hdf5
from offline_gntd.datasets.catalogue import Entry
from offline_gntd.datasets.d4rl import Recording
from offline_gntd.datasets.dataset import DatasetInfo
from offline_gntd.datasets.file_hash import sha256_of
from offline_gntd.errors import UserError
from offline_gntd.evaluation import task_of
from offline_gntd.files import parse_json
from offline_gntd.locomotion import EPISODE_LIMIT, LOCOMOTION, of_environment
from offline_gntd.tasks import Task

TASK_ATTRIBUTE = "offline_gntd"  # attributes of HDF5 files written by this package
NOTES_ATTRIBUTE = "offline_gntd_notes"


@dataclass(frozen=True)
class Identity:
    """What a file in D4RL's layout is."""

    task: Task
    origin: str  # d4rl | file
    sha256: str = ""  # of the file
    entry: Entry | None = None  # in the catalogue, by the file's sha256
    namesake: Entry | None = None  # in the catalogue, by the file's name alone
    episode_limit: int | None = None

    def info(self, **more: Any) -> DatasetInfo:
        entry = self.entry or self.namesake
        known = {"d4rl_id": entry.id, "version": entry.version, "notes": entry.notes} if entry else {}
        return DatasetInfo(task=self.task, origin=self.origin, **known | more)

    def key(self, sha256: str) -> str:
        """The cache key of a file with this sha256."""
        return cache.key_of(sha256, dataclasses.asdict(self.task), self.episode_limit)


def identify(path: Path, env: str | None = None, episode_limit: int | None = None) -> Identity:
    """A file's identity: by its sha256, its task attribute, its name, or `env`; never by shapes."""
    check_limit(episode_limit)
    sha256 = sha256_of(path)
    entry = catalogue.by_sha256(sha256)
    if entry:
        return of_entry(entry, env)
    stored = task_stored_in(path) if env is None else None
    if stored:
        return Identity(stored, "file", sha256, episode_limit=episode_limit)
    namesake = catalogue.by_file_name(path.name)
    named = catalogue.environment_in(path.stem)
    if named:
        _check_agreement(path.name, named, env)
        known = namesake.episode_limit if namesake else EPISODE_LIMIT
        return Identity(LOCOMOTION[named].task(), "file", sha256, None, namesake, episode_limit or known)
    if env is None:
        hdf5.check_is_hdf5(path)
        raise UserError(
            f"{path} does not name its environment; give --env or rename the file to contain one of "
            f"{', '.join(LOCOMOTION)}. `run` has no --env; first write a file that names it: offline-gntd "
            f"datasets convert {path} --format d4rl --env ENV"
        )
    task, limit = task_named(env)
    return Identity(task, "file", sha256, episode_limit=episode_limit or limit)


def of_entry(entry: Entry, env: str | None) -> Identity:
    """The identity of a file published by D4RL."""
    _check_agreement(entry.id, entry.environment, env)
    return Identity(entry.locomotion.task(), "d4rl", entry.sha256, entry, entry, entry.episode_limit)


def _check_agreement(name: str, environment: str, env: str | None) -> None:
    if env is not None and env != environment and of_environment(env) is not LOCOMOTION[environment]:
        raise UserError(f"{name} was recorded in {environment}, but --env is {env}")


def check_limit(episode_limit: int | None) -> None:
    if episode_limit is not None and episode_limit < 1:
        raise UserError(f"--episode-limit must be at least 1, not {episode_limit}")


def task_named(env: str) -> tuple[Task, int | None]:
    """The task and the episode limit of a MuJoCo body (hopper) or a gymnasium id (Hopper-v4)."""
    if env in LOCOMOTION:
        return LOCOMOTION[env].task(), EPISODE_LIMIT
    known = of_environment(env)
    if known:
        return known.task(env.rpartition("-")[2]), EPISODE_LIMIT
    try:
        return task_of(env), limit_of(env)
    except UserError as error:
        raise UserError(f"{error}; --env takes {', '.join(LOCOMOTION)} or a gymnasium id") from error


def limit_of(env_id: str) -> int | None:
    import gymnasium

    return gymnasium.spec(env_id).max_episode_steps


def without_import(env_id: str, where: str) -> str:
    """The environment id that a file names; raises UserError if making it would import a module.

    gymnasium imports the module of an id such as `module:Env-v0`. A file must not decide what is imported:
    the user names such an id with --env, or imports the module in a file given with --import.
    """
    import gymnasium

    module, separator, name = env_id.rpartition(":")
    if not separator:
        return env_id
    if name in gymnasium.registry:
        return name
    raise UserError(
        f"{where} names the environment {env_id!r}, which would import the Python module {module!r}. If you "
        f"trust it, give --env {env_id}, or --import a file that imports it"
    )


def task_stored_in(path: Path) -> Task | None:
    """The task that this package stored in an HDF5 file; None for other files."""
    try:
        task = Task(**_attribute(path, TASK_ATTRIBUTE))
    except TypeError:
        return None
    values: dict[str, Any] = vars(task)  # as stored: of any type
    if not isinstance(values["obs_dim"], int) or not isinstance(values["env_id"], str):
        return None
    return dataclasses.replace(task, env_id=without_import(task.env_id, str(path)))


def notes_stored_in(path: Path) -> dict[str, Any]:
    """Other provenance that this package stored in an HDF5 file."""
    return _attribute(path, NOTES_ATTRIBUTE)


def _attribute(path: Path, name: str) -> dict[str, Any]:
    import h5py

    hdf5.check_is_file(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            value = parse_json(file.attrs[name])
    except Exception:  # no such attribute, or a damaged file, which its reader reports
        return {}
    return value if isinstance(value, dict) else {}


def with_boundaries(info: DatasetInfo, recording: Recording) -> DatasetInfo:
    """Provenance of a recording: its number of steps, and how its episode boundaries were obtained."""
    facts = {"steps": len(recording), "boundaries": recording.boundaries}
    return dataclasses.replace(info, provenance=info.provenance | facts)
