"""What a reader of results should be warned of: all that their records say and a table does not show."""

import pandas as pd

from offline_gntd.analysis.selection import Selection

CHANGED = "-changed"  # after a commit: the source had changes of its own


def of(selection: Selection) -> list[str]:
    runs, warnings = selection.runs, list(selection.notes)
    if selection.missing:
        warnings.append(
            f"INCOMPLETE: {len(selection.missing)} runs are missing, first {selection.missing[0]}."
        )
    return warnings + of_runs(runs)


def of_runs(runs: pd.DataFrame) -> list[str]:
    warnings = []
    diverged = runs[runs["status"] == "diverged"]
    if len(diverged):
        warnings.append(
            f"{len(diverged)} runs diverged and count with their last finite values: {_named(diverged)}."
        )
    resumed = runs[runs["resumed_at"].map(len) > 0]
    if len(resumed):
        warnings.append(
            f"{len(resumed)} runs were stopped and resumed; their seconds are sums over the parts."
        )
    commits = [commit for commit in runs["commit"].dropna().unique()]
    if any(commit.endswith(CHANGED) for commit in commits):
        warnings.append("Some runs were made from a source with uncommitted changes.")
    if runs["commit"].isna().any():
        warnings.append("Some runs were made outside a git checkout; their version stands for their source.")
    if len(commits) > 1:
        warnings.append(
            f"The runs were made at {len(commits)} commits: {', '.join(c[:12] for c in commits)}."
        )
    for column, what in (("versions", "sets of versions"), ("machine", "machines")):
        count = len(runs[column].map(str).unique())
        if count > 1:
            warnings.append(f"The runs were made with {count} {what}.")
    return warnings


def _named(runs: pd.DataFrame) -> str:
    names = [f"{run.dataset} {run.label} seed {run.seed}" for run in runs.itertuples()]
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
