"""Text for `datasets list`, `show` and `check`."""

import numpy as np

from offline_gntd.datasets import (
    built_datasets,
    cache,
    catalogue,
    conversion,
    download,
    loading,
    minari_store,
    ogbench_files,
)
from offline_gntd.datasets.check import BINS, Report
from offline_gntd.datasets.dataset import Dataset

HISTOGRAM_WIDTH = 40


def listing() -> str:
    """All dataset names, marked `here` if they are on this machine."""
    local_ids = minari_store.local_ids()
    built = [name for name in local_ids if built_datasets.is_name(name.removesuffix("-v0"))]
    others = [name for name in local_ids if name not in built]
    lines = ["      build with: offline-gntd datasets build NAME"]
    lines += [_built_line(name, built) for name in built_datasets.TASKS]
    lines += ["", "      D4RL, download with: offline-gntd datasets fetch NAME"]
    for entry in catalogue.entries().values():
        here = download.is_here(entry) or cache.folder(entry.id).exists()
        lines.append(
            f"{_mark(here)}{entry.id:<32} {entry.bytes / 1e6:>8,.0f} MB{'  *' if entry.notes else ''}"
        )
    lines.append("      * has known issues; `datasets show` lists them")
    lines += ["", "      Minari, on this machine (download others with: offline-gntd datasets fetch ID)"]
    lines += [f"{_mark(True)}{name}" for name in others] or ["      none"]
    lines += ["", "      OGBench, on this machine (other tasks: -singletask-task1-v0 … -singletask-task5-v0)"]
    lines += [f"{_mark(True)}{name}" for name in ogbench_files.local_names()] or ["      none"]
    imported = loading.user_sources()
    if imported:
        lines += ["", "      imported"]
        lines += [f"{_mark(True)}{name:<32} {source.env_id}" for name, source in imported.items()]
    lines += ["", "      or the path of an HDF5 file in D4RL's layout, or of a buffer of the paper's authors"]
    return "\n".join(lines)


def _built_line(name: str, local_ids: list[str]) -> str:
    """The line of a name that can be built; for a family with the number of its members."""
    if name not in built_datasets.FAMILIES:
        return f"{_mark(built_datasets.minari_id(name) in local_ids)}{name}"
    members = sum(built_datasets.family_of(other.removesuffix("-v0")) == name for other in local_ids)
    return f"{_mark(members > 0)}{name:<32} {members or 'no'} members: {name}-s0 …"


def _mark(here: bool) -> str:
    return f"{'here' if here else '':<4}  "


def headline(dataset: Dataset) -> str:
    returns = dataset.episode_returns
    return (
        f"{dataset.name}: {len(dataset):,} transitions, {len(returns):,} episodes, "
        f"mean return {returns.mean():.1f}, sha256 {dataset.sha256[:12]}"
    )


def describe(dataset: Dataset) -> str:
    """The output of `datasets show`."""
    task, returns, lengths = dataset.task, dataset.episode_returns, dataset.episode_lengths
    terminated, truncated = int(dataset.transitions.terminated.sum()), len(dataset.truncated)
    actions = (
        f"{task.action_dim} discrete actions" if task.discrete else f"{task.action_dim}-dimensional actions"
    )
    if task.action_range:
        low, high = task.action_limits
        actions += f" from {low:g} to {high:g}, scaled to −1 to 1"
    lines = [
        headline(dataset),
        "",
        f"environment   {task.env_id}: {task.obs_dim}-dimensional observations, {actions}",
        f"references    random {task.reference_min:g} (score 0), expert {task.reference_max:g} (score 100); "
        f"{task.reference_source}",
        f"returns       mean {returns.mean():.1f}, median {np.median(returns):.1f}, "
        f"from {returns.min():.1f} to {returns.max():.1f}; mean score {task.score(returns.mean()):.1f}",
        f"episodes      mean length {lengths.mean():.1f}, longest {lengths.max()}; "
        f"{terminated:,} terminal transitions, {truncated:,} truncated",
        *(f"known issue   {note}" for note in dataset.notes),
        "",
        "return histogram (episodes)",
        *histogram(*np.histogram(returns, bins=BINS)),
        "",
        *provenance(dataset),
    ]
    return "\n".join(lines)


def report_text(report: Report) -> str:
    """The output of `datasets check`."""
    lines = [f"{report.name}: {report.verdict}"]
    if report.steps:
        lines.append(
            f"{report.env_id}, {report.steps:,} rows stored, {report.transitions:,} transitions, "
            f"{report.returns.get('episodes', 0):,} episodes"
        )
    lines += [f"{finding.level:<8} {finding.message}" for finding in report.findings]
    if report.returns:
        values = report.returns
        references = f"0 is {values['reference_min']:g}, 100 is {values['reference_max']:g}"
        lines += [
            "",
            f"returns: mean {values['mean']:.1f}, from {values['min']:.1f} to {values['max']:.1f}; mean "
            f"score {values['mean_score']:.1f} ({references}; {values['reference_source']})",
            *histogram(values["histogram"]["counts"], values["histogram"]["edges"]),
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
        lines = _build_provenance(dataset)
    else:
        version = f", {dataset.version}" if dataset.version else ""
        lines = [f"origin        {dataset.origin}{version}: {dataset.source}"]
        titles = {
            "file sha256": "sha256",
            "rows stored": "steps",
            "boundaries": "boundaries",
            "behaviour": "level",
        }
        for title, key in titles.items():
            if key in dataset.provenance:
                lines.append(f"{title:<13} {dataset.provenance[key]}")
        if conversion.NOTE in dataset.provenance:
            lines.append(f"{'converted':<13} from {dataset.provenance[conversion.NOTE]['about']['source']}")
    return [*lines, f"sha256        {dataset.sha256}"]


def _build_provenance(dataset: Dataset) -> list[str]:
    values = dataset.provenance
    lines = [f"built by      {values['command']}", f"behaviour     {values['level']}"]
    if "training" in values:
        training = values["training"]
        times = ", ".join(f"{part} {seconds:,.0f}" for part, seconds in training["seconds"].items())
        amounts = f"{values['steps']:,} steps, {training['updates']:,} updates"
        lines.append(f"training      {amounts}; seconds: {times}")
    if "last_return" in values:
        lines.append(f"training      mean return {values['mean_return']:.1f}, seed {values['seed']}")
    versions = ", ".join(f"{package} {version}" for package, version in values["versions"].items())
    return [*lines, f"versions      {versions}"]
