"""The catalogue of D4RL's locomotion files (d4rl_files.csv): id, path on the host, size, sha256, episodes.

A file is identified by its sha256, or by its name; never by its shapes: HalfCheetah and Walker2d share them.
"""

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

from offline_gntd.locomotion import EPISODE_LIMIT, LOCOMOTION, Locomotion

SPLITS = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
VERSIONS = ("v0", "v1", "v2")


@dataclass(frozen=True)
class Entry:
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
    def locomotion(self) -> Locomotion:
        return LOCOMOTION[self.environment]

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def episode_limit(self) -> int:
        return 999 if (self.environment, self.version) == ("halfcheetah", "v0") else EPISODE_LIMIT

    @property
    def notes(self) -> tuple[str, ...]:
        return known_issues(self.environment, self.split, self.version)


@functools.cache
def entries() -> dict[str, Entry]:
    """All ids, in the catalogue's order."""
    text = resources.files("offline_gntd.datasets").joinpath("d4rl_files.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["id"]: Entry(row["id"], row["path"], int(row["bytes"]), row["sha256"], int(row["episodes"]))
        for row in rows
    }


def by_sha256(sha256: str) -> Entry | None:
    return next((entry for entry in entries().values() if entry.sha256 == sha256), None)


def by_file_name(name: str) -> Entry | None:
    """The entry with this file name, whatever the file contains."""
    return next((entry for entry in entries().values() if entry.file_name == name), None)


def environment_in(name: str) -> str | None:
    """The environment that a file name contains: hopper for my_hopper-run.hdf5. None if not exactly one."""
    words = {word.lower() for word in re.split(r"[^A-Za-z0-9]+", name)}
    environments = {environment for environment in LOCOMOTION if environment in words}
    if "walker" in words:  # D4RL's walker_mixed.hdf5
        environments.add("walker2d")
    return environments.pop() if len(environments) == 1 else None


def known_issues(environment: str, split: str, version: str) -> tuple[str, ...]:
    """Known issues of a published file, with the number of D4RL's GitHub issue if there is one."""
    issues = []
    if version == "v0":
        issues.append("v0 scores are not comparable with v1 or v2: the behaviour policies differ")
        if (environment, split) == ("hopper", "medium-expert"):
            issues.append("contains expert + medium-replay data, not expert + medium (D4RL#19)")
        if environment == "halfcheetah":
            issues.append("episodes have 999 steps, not 1000 (D4RL#40)")
    if (environment, version) == ("hopper", "v1"):
        issues.append("v1 Hopper policies are weak, and its splits were once swapped (D4RL#76, D4RL#86)")
        issues.append("infos/qpos is constant in v1 Hopper files")
    if split.endswith("replay") and version != "v0":
        issues.append("timeouts cut episodes at 1000-step training epochs: returns are partial")
    return tuple(issues)
