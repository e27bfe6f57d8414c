"""What made a number: versions, commit, machine."""

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from offline_gntd import extensions
from offline_gntd.versions import installed


@functools.cache
def commit() -> str | None:
    """The commit of this source tree, marked when it has changes of its own; None outside a checkout."""
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
        return None
    return head.stdout.strip() + ("-changed" if diff.stdout.strip() else "")


def versions() -> dict[str, str]:
    """Of Python, of the packages and the matrix products a number depends on, and of the user's own files."""
    return installed() | extensions.file_hashes()


def changes(before: dict[str, str], now: dict[str, str]) -> str:
    """What the versions of before were, where they are others now."""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name)}, not {now.get(name)}" for name in changed)


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
