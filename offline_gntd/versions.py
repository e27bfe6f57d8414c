"""Package versions, commit and machine: recorded with a run, since its bits depend on them."""

import functools
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from offline_gntd import extensions

PACKAGES = ("offline_gntd", "torch", "numpy", "gymnasium", "mujoco", "minari")


@functools.cache
def installed() -> dict[str, str]:
    """The versions of Python and of the packages."""
    return {"python": platform.python_version()} | {
        package: metadata.version(package) for package in PACKAGES
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the packages, and the hashes of imported user files."""
    return installed() | extensions.file_hashes()


def changes(before: dict[str, str], now: dict[str, str]) -> str:
    """A text that lists the versions that differ: "torch 2.5, not 2.6"."""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name)}, not {now.get(name)}" for name in changed)


@functools.cache
def commit() -> str | None:
    """The commit of this source tree, with "-changed" if the package was edited.

    Outside a checkout it is the commit that pip installed from a git address, or None.
    """
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        diff = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "--", ":/offline_gntd"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return _installed_commit()
    return head.stdout.strip() + ("-changed" if diff.stdout.strip() else "")


def _installed_commit() -> str | None:
    """The commit in pip's record of an installation from git (PEP 610)."""
    try:
        record = metadata.distribution("offline_gntd").read_text("direct_url.json")
        return json.loads(record or "{}").get("vcs_info", {}).get("commit_id")
    except (metadata.PackageNotFoundError, ValueError):
        return None


@functools.cache
def machine() -> dict[str, Any]:
    return {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.platform(), "host": platform.node()}


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
