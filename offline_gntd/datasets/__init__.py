"""Layer 2: datasets, built with the algorithms or read from files; `load` opens any of them by name."""

from offline_gntd.datasets.building import build, build_splits
from offline_gntd.datasets.dataset import Arena, Dataset, Missing
from offline_gntd.datasets.imported import Source
from offline_gntd.datasets.loading import load

__all__ = ["Arena", "Dataset", "Missing", "Source", "build", "build_splits", "load"]
