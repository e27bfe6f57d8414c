"""Reading datasets: `load` opens any of them by name or path. `offline_gntd.collection` builds them."""

from offline_gntd.datasets.dataset import Dataset, DatasetNotFound, OnlineEnv, verify
from offline_gntd.datasets.loading import load
from offline_gntd.datasets.user_datasets import Source

__all__ = ["Dataset", "DatasetNotFound", "OnlineEnv", "Source", "load", "verify"]
