"""The sentences captions share: how runs were trained and scored, on what data, and what marks mean."""

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
    kinds = runs["dataset_origin"] + runs["dataset_version"].map(
        lambda v: f" {v}" if isinstance(v, str) else ""
    )
    origins = ", ".join(f"{count} {kind}" for kind, count in kinds.value_counts(sort=False).items())
    rows = ", ".join(f"{count:,}" for count in sorted(runs["dataset_rows"].unique()))
    return f"Data: {origins}; {rows} transitions; scored in {environments}."


def marks(selection: Selection) -> list[str]:
    runs, sentences = selection.runs, []
    if runs["status"].eq("diverged").any():
        sentences.append("†: that many seeds diverged and count with their last finite values.")
    for label, group in runs.groupby("label", sort=False):
        warm_up = group["config"].iloc[0].get("warm_up")
        if warm_up is not None:
            sentences.append(f"{label}'s policy clones the data for its first {warm_up:,} updates.")
    return sentences
