"""Updates of other libraries, timed in the same rounds."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

from offline_gntd.bench.measurement import SIZES, settings
from offline_gntd.configuration import to_dict
from offline_gntd.errors import UserError


class D3rlpy:
    """d3rlpy in a Python environment of its own; bench/d3rlpy_peer.py answers over a pipe."""

    name = "d3rlpy"
    algorithms = ("bc", "td3_bc", "bcq", "cql")

    def __init__(self, python: Path, rows: int):
        found = shutil.which(python)
        if not found or subprocess.run([found, "-c", "import d3rlpy"], capture_output=True).returncode:
            raise UserError(f"no Python with d3rlpy at {python}; install one with: make peers")
        self.rows = rows  # transitions it draws from, as many as ours
        self.rates: dict[str, list[float]] = {}
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("d3rlpy_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def time(self, name: str, size: str, seconds: float) -> None:
        """Time the same algorithm once, if d3rlpy has it."""
        if name not in self.algorithms or size != "halfcheetah":
            return
        task = SIZES[size]
        request = {
            "algorithm": name,
            "obs_dim": task.obs_dim,
            "action_dim": task.action_dim,
            "rows": self.rows,
            "seconds": seconds,
        }
        assert self._process.stdin is not None  # it was started with both pipes
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request | {"config": to_dict(settings(name))}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise UserError("d3rlpy stopped without an answer; check its environment with: make conformance")
        self.rates.setdefault(name, []).append(json.loads(answer))

    def summary(self, ours: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
        """d3rlpy's updates per second, and the ratio of ours to it: the median over rounds."""
        return {
            name: {
                "updates_per_s": median(rates),
                "ratio": median(our / their for our, their in zip(ours[name], rates, strict=True)),
            }
            for name, rates in self.rates.items()
        }

    def close(self) -> None:
        self._process.communicate()  # closes its input and waits
