"""Names of datasets: D4RL's catalogue of locomotion files (d4rl_files.csv), and names of results folders."""

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath

from offline_gntd.files import safe_name
from offline_gntd.tasks import EPISODE_LIMIT, LOCOMOTION

SPLITS = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
VERSIONS = ("v0", "v1", "v2")
FILE_SUFFIXES = (".hdf5", ".h5", ".npz")
SEED = "{seed}"  # in the name or path of a family of datasets, one for each seed
AUTHORS_BUFFER = re.compile(r"(CartPole|Acrobot)-v1_\{seed\}_((?:Medium-)?Replay)")
MINARI_ID = re.compile(r"(?:[-_\w]+/)*[-_\w]+-v\d+")


@dataclass(frozen=True)
class Entry:
    """A file published by D4RL."""

    id: str
    path: str  # on D4RL's host
    bytes: int
    sha256: str
    episodes: int

    @property
    def environment(self) -> str:
        return self.id.partition("-")[0]

    @property
    def split(self) -> str:
        return self.id.partition("-")[2].rpartition("-")[0]

    @property
    def version(self) -> str:
        return self.id.rpartition("-")[2]

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def episode_limit(self) -> int:
        return 999 if (self.environment, self.version) == ("halfcheetah", "v0") else EPISODE_LIMIT

    @property
    def notes(self) -> tuple[str, ...]:
        """Known issues, with the number of D4RL's GitHub issue if there is one."""
        issues = []
        if self.version == "v0":
            issues.append("v0 scores are not comparable with v1 or v2: the behaviour policies differ")
            if (self.environment, self.split) == ("hopper", "medium-expert"):
                issues.append("contains expert + medium-replay data, not expert + medium (D4RL#19)")
            if self.environment == "halfcheetah":
                issues.append("episodes have 999 steps, not 1000 (D4RL#40)")
        if (self.environment, self.version) == ("hopper", "v1"):
            issues.append("v1 Hopper policies are weak, and its splits were once swapped (D4RL#76, D4RL#86)")
            issues.append("infos/qpos is constant in v1 Hopper files")
        if self.split.endswith("replay") and self.version != "v0":
            issues.append("timeouts cut episodes at 1000-step training epochs: returns are partial")
        return tuple(issues)


@functools.cache
def entries() -> dict[str, Entry]:
    """D4RL's files by id, in the catalogue's order."""
    text = resources.files("offline_gntd.datasets").joinpath("d4rl_files.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["id"]: Entry(row["id"], row["path"], int(row["bytes"]), row["sha256"], int(row["episodes"]))
        for row in rows
    }


def environment_in(name: str) -> str | None:
    """The environment that a file name contains: hopper for my_hopper-run.hdf5. None if not exactly one."""
    words = {word.lower() for word in re.split(r"[^A-Za-z0-9]+", name)}
    environments = {environment for environment in LOCOMOTION if environment in words}
    if "walker" in words:  # D4RL's walker_mixed.hdf5
        environments.add("walker2d")
    return environments.pop() if len(environments) == 1 else None


def results_name(source: str) -> str:
    """The folder name for results on a dataset: the dataset's name, or its file's name without the suffix.

    A family has one name, without the seed: cartpole-replay for cartpole-replay-s{seed} and for the authors'
    buffers, buffers/CartPole-v1_{seed}_Replay.
    """
    if authors := AUTHORS_BUFFER.fullmatch(Path(source).name):
        return f"{authors[1]}-{authors[2]}".lower()
    source = re.sub(r"[-_.](?:s|seed)?\{seed\}|\{seed\}", "", source)
    path = Path(source)
    if path.suffix in FILE_SUFFIXES:
        return safe_name(path.stem)
    is_path = "/" in source and not MINARI_ID.fullmatch(source)
    return safe_name(path.name if is_path else source)
