"""Reading datasets: `load` opens any of them by name or path. `offline_gntd.collection` builds them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_gntd.datasets.dataset import Dataset, DatasetNotFound, OnlineEnv, verify
    from offline_gntd.datasets.loading import Source, load

MODULES = {
    "Dataset": "dataset",
    "DatasetNotFound": "dataset",
    "OnlineEnv": "dataset",
    "Source": "loading",
    "load": "loading",
    "verify": "dataset",
}
__all__ = ["Dataset", "DatasetNotFound", "OnlineEnv", "Source", "load", "verify"]


def __getattr__(name: str) -> Any:
    """Import torch only when a dataset is read: tables need no more than the names of datasets."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
