"""What a dataset says of itself, as text."""

import numpy as np

from offline_gntd.datasets.dataset import Dataset
from offline_gntd.datasets.discrete import RECIPES
from offline_gntd.datasets.discrete import path as discrete_path

HISTOGRAM_BINS = 10
HISTOGRAM_WIDTH = 40


def listing() -> str:
    lines = []
    for name, recipe in RECIPES.items():
        here = "here" if discrete_path(name).exists() else ""
        lines.append(f"{here:<4}  {name:<30} {recipe.transitions:>8,} rows by default")
    return "\n".join(["      built with: offline-gntd datasets build NAME", *lines])


def headline(dataset: Dataset) -> str:
    returns = dataset.episode_returns
    return (
        f"{dataset.name}: {len(dataset):,} transitions, {len(returns):,} episodes, "
        f"mean return {returns.mean():.1f}, sha256 {dataset.sha256[:12]}"
    )


def card(dataset: Dataset) -> str:
    task, returns, lengths = dataset.task, dataset.episode_returns, dataset.episode_lengths
    terminated = int(dataset.transitions.terminated.sum())
    actions = (
        f"{task.action_dim} discrete actions" if task.discrete else f"{task.action_dim}-dimensional actions"
    )
    lines = [
        headline(dataset),
        "",
        f"environment   {task.env_id}: {task.obs_dim}-dimensional observations, {actions}",
        f"references    random {task.reference_min:g} (score 0), expert {task.reference_max:g} (score 100); "
        f"{task.reference_source}",
        f"returns       mean {returns.mean():.1f}, median {np.median(returns):.1f}, "
        f"from {returns.min():.1f} to {returns.max():.1f}; mean score {task.score(returns.mean()):.1f}",
        f"episodes      mean length {lengths.mean():.1f}, longest {lengths.max()}; "
        f"{terminated:,} terminated, {len(returns) - terminated:,} truncated",
        "",
        "return histogram (episodes)",
        *histogram(returns),
        "",
        *provenance(dataset),
    ]
    return "\n".join(lines)


def histogram(values: np.ndarray) -> list[str]:
    counts, edges = np.histogram(values, bins=HISTOGRAM_BINS)
    scale = HISTOGRAM_WIDTH / max(counts.max(), 1)
    return [
        f"  {low:9.1f} … {high:9.1f}  {count:7,}  {'█' * round(count * scale)}"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


def provenance(dataset: Dataset) -> list[str]:
    facts = dataset.provenance
    options = f"--transitions {facts['transitions']} --seed {facts['seed']}"
    lines = [f"built by      offline-gntd datasets build {dataset.name} {options}"]
    lines.append(f"level         {facts['level']}")
    for title, key in (("trainings", "trainings"), ("not used", "missed")):
        for training in facts[key]:
            lines.append(
                f"{title:<13} seed {training['seed']}: {training['rows']:,} rows, "
                f"greedy return at the end {training['greedy_return']:.1f}"
            )
            title = ""
    versions = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    return [*lines, f"versions      {versions}", f"sha256        {dataset.sha256}"]
