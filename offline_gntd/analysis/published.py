"""Published numbers, as facts with their source: the paper's own and its peers'."""

from importlib import resources

import pandas as pd

CORL = ("BC", "TD3+BC", "CQL")
D3RLPY = ("BCQ", "TD3+BC", "CQL")


def read(name: str) -> pd.DataFrame:
    return pd.read_csv((resources.files("offline_gntd.analysis") / "reference" / name).open(encoding="utf-8"))


def paper_table1() -> pd.DataFrame:
    """dataset, label, paper_bellman_error, paper_seconds"""
    names = {
        "algorithm": "label",
        "bellman_error": "paper_bellman_error",
        "seconds_to_threshold": "paper_seconds",
    }
    return read("paper_table1.csv").rename(columns=names)


def locomotion() -> pd.DataFrame:
    """source, split (halfcheetah-medium …), version of the data, label, mean, std.

    The paper does not name its version: its CQL, hopper and walker2d rows are v0's, its halfcheetah-medium
    row looks like v2's. So its numbers stand beside either. Its CQL column is quoted from the TD3+BC paper.
    """
    paper = read("paper_table2.csv").rename(columns={"dataset": "split", "algorithm": "label"})
    return pd.concat(
        [
            paper.assign(source="paper", version=None),
            _wide("corl_v2_last.csv", "CORL", {label: (label, f"{label}_sd") for label in CORL}),
            _wide("d3rlpy_v0.csv", "d3rlpy", {label: (f"{label}_final", f"{label}_sd") for label in D3RLPY}),
        ],
        ignore_index=True,
    )


def _wide(name: str, source: str, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """One column per algorithm, turned into one line per dataset × algorithm."""
    table = read(name)
    split, version = zip(*(dataset.rsplit("-", 1) for dataset in table["dataset"]), strict=True)
    return pd.concat(
        pd.DataFrame(
            {
                "source": source,
                "split": split,
                "version": version,
                "label": label,
                "mean": table[mean],
                "std": table[std],
            }
        )
        for label, (mean, std) in columns.items()
    )
