"""Sentences that several captions share, and warnings about runs."""

from collections import Counter

import pandas as pd

from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.statistics import FEW_RUNS

CHANGED = "-changed"  # ends the commit of a run whose source had uncommitted changes
SPREAD = "mean ± std over seeds (ddof 1)"


def protocol(selection: Selection) -> str:
    """How the runs were trained and evaluated, on what data: once per page."""
    return f"{training(selection)} {data(selection)}"


def training(selection: Selection) -> str:
    protocol, seeds = selection.experiment.protocol, selection.experiment.seeds
    labels = selection.labels
    own = [f"{labels[name]} {steps:,}" for name, steps in selection.experiment.algorithm_steps.items()]
    return (
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}, {protocol.steps:,} {selection.unit}"
        f"{f' ({chr(44).join(own)})' if own else ''}, evaluated every {protocol.evaluate_every:,} with "
        f"{protocol.evaluate_episodes} episodes."
    )


def data(selection: Selection) -> str:
    """The source of the data, its size, and the environments that evaluate on it."""
    runs = selection.datasets
    environments = ", ".join(sorted(runs["env_id"].unique()))
    if selection.online:
        return f"Trained online in {environments}."
    sources = ", ".join(f"{count} {source}" for source, count in Counter(selection.sources.values()).items())
    per_seed = ", one dataset per seed" if runs["dataset_per_seed"].eq(True).all() else ""
    fewest, most = selection.runs["dataset_rows"].min(), selection.runs["dataset_rows"].max()
    rows = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    terminal = {config.get("timeouts_terminal") for config in selection.runs["config"]}
    timeouts = " Time limits count as terminal." if terminal == {True} else ""
    return f"Data: {sources}{per_seed}; {rows} transitions; {environments}.{timeouts}"


def marks(selection: Selection) -> list[str]:
    """The meaning of † in a table, and warm-up phases."""
    runs, sentences = selection.runs, []
    if runs["status"].eq("diverged").any():
        sentences.append("†: diverged seeds, with their last finite values.")
    for label, group in runs.groupby("label", sort=False):
        warm_up = group["config"].iloc[0].get("warm_up")
        if warm_up is not None:
            sentences.append(f"{label} clones the data for its first {warm_up:,} updates.")
    return sentences


def few_seeds(seeds: int) -> list[str]:
    """The warning that belongs to bootstrap intervals of few seeds."""
    return [] if seeds >= FEW_RUNS else [f"FEW SEEDS ({seeds}): intervals too narrow."]


def warnings(selection: Selection) -> list[str]:
    """What the records of the runs say and a table does not show."""
    runs, sentences = selection.runs, list(selection.notes)
    if selection.missing:
        sentences.append(
            f"INCOMPLETE: {len(selection.missing)} runs are missing, first {selection.missing[0]}."
        )
    diverged = runs[runs["status"] == "diverged"]
    if len(diverged):
        names = [f"{run.dataset} {run.label} seed {run.seed}" for run in diverged.itertuples()]
        shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        sentences.append(f"{len(names)} runs diverged and count with their last finite values: {shown}.")
    return sentences + _provenance(runs)


def _provenance(runs: pd.DataFrame) -> list[str]:
    sentences = []
    resumed = int((runs["resumed_at"].map(len) > 0).sum())
    if resumed:
        sentences.append(f"{resumed} runs were stopped and resumed; their seconds are sums over the parts.")
    commits = [commit for commit in runs["commit"].dropna().unique()]
    if any(commit.endswith(CHANGED) for commit in commits):
        sentences.append("Some runs were made from a source tree with uncommitted changes.")
    if runs["commit"].isna().any():
        sentences.append("Some runs were made outside a git checkout and record only the package version.")
    if len(commits) > 1:
        sentences.append(
            f"The runs were made at {len(commits)} commits: {', '.join(c[:12] for c in commits)}."
        )
    for column, what in (("versions", "sets of package versions"), ("machine", "machines")):
        count = len(runs[column].map(str).unique())
        if count > 1:
            sentences.append(f"The runs were made with {count} {what}.")
    return sentences
