"""An offline-RL benchmark suite around Gauss-Newton temporal-difference learning (GNTD)."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

PUBLIC = {
    "AutogradAgent": "offline_gntd.algorithms.autograd",
    "GaussNewton": "offline_gntd.nn.gauss_newton",
    "TrainedAgent": "offline_gntd.api",
    "evaluate": "offline_gntd.api",
    "load": "offline_gntd.datasets",
    "train": "offline_gntd.api",
}
__all__ = ["AutogradAgent", "GaussNewton", "TrainedAgent", "evaluate", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds to import."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'offline_gntd' has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)
