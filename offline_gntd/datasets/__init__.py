"""Reading datasets: `load` opens any of them by name or path. Building them is `offline_gntd.collection`."""

from offline_gntd.datasets.dataset import Dataset, DatasetNotFound, OnlineEnv
from offline_gntd.datasets.loading import load
from offline_gntd.datasets.user_datasets import Source

__all__ = ["Dataset", "DatasetNotFound", "OnlineEnv", "Source", "load"]
