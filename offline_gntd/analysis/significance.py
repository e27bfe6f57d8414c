"""Which results are the best, and which cannot be told from it: the rule behind a table's bold cells."""

import functools
import itertools
import math
from collections.abc import Hashable, Mapping

import numpy as np

LEVEL = 0.05
MOST_SPLITS = 200_000  # enumerated; of more, as many are drawn
RULE = (
    "Bold: the best mean and those not significantly worse, by a permutation test of the difference in means "
    f"over seeds (one-sided, {LEVEL:.0%}); where there are too few seeds for it, the best mean alone."
)


def best(samples: Mapping[Hashable, np.ndarray], lower: bool = False) -> set[Hashable]:
    """The keys of the best mean and of all that are not distinguishable from it; NaNs do not count."""
    signed = {key: (-1 if lower else 1) * _finite(values) for key, values in samples.items()}
    signed = {key: values for key, values in signed.items() if len(values)}
    if not signed:
        return set()
    leader = max(signed, key=lambda key: signed[key].mean())
    return {
        key
        for key, values in signed.items()
        if values.mean() == signed[leader].mean() or not _distinguishable(signed[leader], values)
    }


def permutation_p(high: np.ndarray, low: np.ndarray) -> float:
    """The share of splits of the pooled values whose means differ by at least as much, one-sided."""
    pooled = np.concatenate([high, low])
    chosen = pooled[_splits(len(pooled), len(high))].sum(1)
    # splits of equal sums must count as equal however their sums round
    return float((chosen >= high.sum() - 1e-9 * np.abs(pooled).sum()).mean())


def _distinguishable(high: np.ndarray, low: np.ndarray) -> bool:
    """Too few seeds for any outcome to be significant tell nothing: then only the best mean stands out."""
    smallest = 1 / math.comb(len(high) + len(low), len(high))
    return smallest > LEVEL or permutation_p(high, low) <= LEVEL


@functools.cache
def _splits(total: int, chosen: int) -> np.ndarray:
    """Which values go to the first group, split by split: [splits, chosen]."""
    count = math.comb(total, chosen)
    if count <= MOST_SPLITS:
        flat = itertools.chain.from_iterable(itertools.combinations(range(total), chosen))
        return np.fromiter(flat, np.int32, count * chosen).reshape(count, chosen)
    rng = np.random.default_rng(0)
    return rng.permuted(np.tile(np.arange(total, dtype=np.int32), (MOST_SPLITS, 1)), axis=1)[:, :chosen]


def _finite(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, float)
    return values[np.isfinite(values)]
