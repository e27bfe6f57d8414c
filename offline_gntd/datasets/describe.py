"""What a dataset says of itself, and what the doctor says of it, as text."""

import numpy as np

from offline_gntd.datasets import (
    built_datasets,
    cache,
    catalogue,
    conversion,
    download,
    minari_store,
    user_datasets,
)
from offline_gntd.datasets.check import Report
from offline_gntd.datasets.dataset import Dataset

HISTOGRAM_BINS = 10
HISTOGRAM_WIDTH = 40


def listing() -> str:
    """Every name there is, and which are here."""
    local_ids = minari_store.local_ids()
    ours = [identifier for identifier in local_ids if built_datasets.is_name(identifier.removesuffix("-v0"))]
    theirs = [identifier for identifier in local_ids if identifier not in ours]
    lines = ["      built with: offline-gntd datasets build NAME"]
    lines += [_built_line(name, ours) for name in built_datasets.TASKS]
    lines += ["", "      D4RL, got with: offline-gntd datasets fetch NAME"]
    for entry in catalogue.entries().values():
        here = download.is_here(entry) or cache.folder(entry.id).exists()
        lines.append(
            f"{_here(here)}{entry.id:<32} {entry.bytes / 1e6:>8,.0f} MB{'  *' if entry.notes else ''}"
        )
    lines.append("      * has known issues, which are named when it is read")
    lines += ["", "      Minari, on this machine (others with: offline-gntd datasets fetch ID)"]
    lines += [f"{_here(True)}{identifier}" for identifier in theirs] or ["      none"]
    own = user_datasets.sources()
    if own:
        lines += ["", "      imported", *(f"{_here(True)}{name:<32} {own[name].env_id}" for name in own)]
    lines += ["", "      and by its path, any HDF5 file in D4RL's layout or buffer of the paper's authors"]
    return "\n".join(lines)


def _built_line(name: str, local_ids: list[str]) -> str:
    """A name that can be built; of a family, also the number of members that are here."""
    if name not in built_datasets.FAMILIES:
        return f"{_here(built_datasets.minari_id(name) in local_ids)}{name}"
    members = sum(
        built_datasets.family_of(identifier.removesuffix("-v0")) == name for identifier in local_ids
    )
    return f"{_here(members > 0)}{name:<32} {members or 'no'} members: {name}-s0 …"


def _here(there: bool) -> str:
    return f"{'here' if there else '':<4}  "


def headline(dataset: Dataset) -> str:
    returns = dataset.episode_returns
    return (
        f"{dataset.name}: {len(dataset):,} transitions, {len(returns):,} episodes, "
        f"mean return {returns.mean():.1f}, sha256 {dataset.sha256[:12]}"
    )


def card(dataset: Dataset) -> str:
    task, returns, lengths = dataset.task, dataset.episode_returns, dataset.episode_lengths
    terminated, truncated = int(dataset.transitions.terminated.sum()), len(dataset.truncated)
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
        f"{terminated:,} transitions are terminal, {truncated:,} cut by the time limit",
        *(f"known issue   {note}" for note in dataset.notes),
        "",
        "return histogram (episodes)",
        *histogram(*np.histogram(returns, bins=HISTOGRAM_BINS)),
        "",
        *provenance(dataset),
    ]
    return "\n".join(lines)


def diagnosis(report: Report) -> str:
    """The doctor's report."""
    lines = [f"{report.name}: {report.verdict}"]
    if report.steps:
        lines.append(
            f"{report.env_id}, {report.steps:,} rows stored, {report.transitions:,} transitions, "
            f"{report.returns.get('episodes', 0):,} episodes"
        )
    lines += [f"{finding.level:<8} {finding.message}" for finding in report.findings]
    if report.returns:
        facts = report.returns
        lines += [
            "",
            f"returns: mean {facts['mean']:.1f}, from {facts['min']:.1f} to {facts['max']:.1f}; mean score "
            f"{facts['mean_score']:.1f} (0 is {facts['reference_min']:g}, 100 is {facts['reference_max']:g}; "
            f"{facts['reference_source']})",
            *histogram(facts["histogram"]["counts"], facts["histogram"]["edges"]),
        ]
    return "\n".join(lines)


def histogram(counts, edges) -> list[str]:
    scale = HISTOGRAM_WIDTH / max(*counts, 1)
    return [
        f"  {low:9.1f} … {high:9.1f}  {count:7,}  {'█' * round(count * scale)}"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


def provenance(dataset: Dataset) -> list[str]:
    if dataset.origin == "built":
        lines = _building(dataset)
    else:
        version = f", {dataset.version}" if dataset.version else ""
        lines = [f"origin        {dataset.origin}{version}: {dataset.source}"]
        facts = {
            "file sha256": "sha256",
            "rows stored": "steps",
            "boundaries": "boundaries",
            "level": "level",
        }
        for title, key in facts.items():
            if key in dataset.provenance:
                lines.append(f"{title:<13} {dataset.provenance[key]}")
        if conversion.NOTE in dataset.provenance:
            lines.append(f"{'converted':<13} from {dataset.provenance[conversion.NOTE]['about']['source']}")
    return [*lines, f"sha256        {dataset.sha256}"]


def _building(dataset: Dataset) -> list[str]:
    facts = dataset.provenance
    lines = [f"built by      {facts['command']}", f"level         {facts['level']}"]
    if "training" in facts:
        training = facts["training"]
        times = ", ".join(f"{part} {seconds:,.0f}" for part, seconds in training["seconds"].items())
        amounts = f"{facts['steps']:,} steps, {training['updates']:,} updates"
        lines.append(f"training      {amounts}; seconds: {times}")
    if "last_return" in facts:
        lines.append(f"training      mean return {facts['mean_return']:.1f}, seed {facts['seed']}")
    versions = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    return [*lines, f"versions      {versions}"]
