"""What must not stand in one table: found, and named run by run."""

from collections.abc import Iterable

import pandas as pd

from offline_gntd.errors import UserError

MOST_NAMED = 5  # runs in one line

WITHIN_A_DATASET = {
    "dataset_sha256": "data",
    "dataset_origin": "origin of the data",
    "dataset_version": "version of the data",
    "env_id": "environment",
    "stack": "stack size",
}


def refuse(runs: pd.DataFrame, mixed: bool = False) -> None:
    """Runs on one dataset share everything; datasets share what makes their scores comparable, unless `mixed`
    says that the reader is to be told instead."""
    for dataset, group in runs.groupby("dataset", sort=False):
        for column, what in WITHIN_A_DATASET.items():
            for part in _sharing(group, column):
                if part[column].nunique() + part[column].isna().any() > 1:
                    raise UserError(
                        f"{_sentence(part, column, f'on {dataset}', what)}; run it again with --rerun-stale"
                    )
    if mixed:
        return
    for group, column, what in _across_datasets(runs):
        raise UserError(
            f"{_sentence(group, column, 'of this table', what)}; "
            "choose with --datasets, or show them together with --mixed"
        )


def _sharing(group: pd.DataFrame, column: str) -> list[pd.DataFrame]:
    """The runs on a dataset that must have the same value: those of a seed, where each has its own data."""
    per_seed = "dataset_per_seed" in group and group["dataset_per_seed"].eq(True).all()
    if column == "dataset_sha256" and per_seed:
        return [part for _, part in group.groupby("seed")]
    return [group]


def notes(runs: pd.DataFrame) -> list[str]:
    """What the datasets of a table do not share, for its caption."""
    return [
        f"MIXED: the datasets do not share their {what} ({', '.join(map(str, group[column].unique()))})."
        for group, column, what in _across_datasets(runs)
    ]


def _across_datasets(runs: pd.DataFrame) -> Iterable[tuple[pd.DataFrame, str, str]]:
    for column, what in (
        ("dataset_origin", "origin of the data"),
        ("dataset_version", "version of the data"),
    ):
        group = runs[runs[column].notna()]
        if group[column].nunique() > 1:
            yield group, column, what
    families = runs["env_id"].str.replace(r"-v\d+$", "", regex=True)
    for _, group in runs.groupby(families, sort=False):
        if group["env_id"].nunique() > 1:
            yield group, "env_id", "version of the environment"


def _sentence(group: pd.DataFrame, column: str, where: str, what: str) -> str:
    usual = group[column].mode(dropna=False)[0]
    odd = group[group[column].ne(usual) & ~(group[column].isna() & pd.isna(usual))]
    named = [f"{run.dataset} {run.algorithm} seed {run.seed}" for run in odd.itertuples()]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return (
        f"the runs {where} do not share their {what}: {usual} for {len(group) - len(odd)} of them, but "
        f"{', '.join(map(str, odd[column].unique()))} for {', '.join(named[:MOST_NAMED])}{more}"
    )
