"""The sentences captions share: how runs were trained and scored, on what data, and what marks mean."""

from collections import Counter

import pandas as pd

from offline_gntd.analysis.selection import Selection

SPREAD = "mean ± std over seeds (ddof 1)"


def training(selection: Selection) -> str:
    protocol, seeds = selection.experiment.protocol, selection.experiment.seeds
    return (
        f"{protocol.steps:,} {selection.unit}, {seeds} {'seed' if seeds == 1 else 'seeds'}, evaluated every "
        f"{protocol.evaluate_every:,} with {protocol.evaluate_episodes} greedy episodes."
    )


def data(selection: Selection) -> str:
    """Where the data comes from, and in which environments it is scored."""
    runs = selection.runs.drop_duplicates("dataset")
    environments = ", ".join(sorted(runs["env_id"].unique()))
    if selection.online:
        sizes = ", ".join(str(size) for size in sorted({config["batch_size"] for config in runs["config"]}))
        return f"Batches of {sizes} transitions, collected on-policy in {environments}."
    origins = ", ".join(f"{count} {kind}" for kind, count in Counter(selection.origins.values()).items())
    rows = ", ".join(f"{count:,}" for count in sorted(runs["dataset_rows"].unique()))
    levels = _levels(runs)
    reached = f" Levels reached: {'. '.join(levels)}." if levels else ""
    return f"Data: {origins}; {rows} transitions; scored in {environments}.{reached}"


def _levels(runs: pd.DataFrame) -> list[str]:
    """What the policies behind the built MuJoCo splits scored: their names promise no level."""
    splits = runs["dataset_origin"].eq("built") & ~runs["task"].map(lambda task: task["discrete"])
    return [f"{run.dataset}: {run.dataset_level}" for run in runs[splits].itertuples()]


def marks(selection: Selection) -> list[str]:
    runs, sentences = selection.runs, []
    if runs["status"].eq("diverged").any():
        sentences.append("†: that many seeds diverged and count with their last finite values.")
    for label, group in runs.groupby("label", sort=False):
        warm_up = group["config"].iloc[0].get("warm_up")
        if warm_up is not None:
            sentences.append(f"{label}'s policy clones the data for its first {warm_up:,} updates.")
    return sentences
