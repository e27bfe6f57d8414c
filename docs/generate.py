"""Write docs/results/*.md, the results in README.md and the committed tables in analysis/ from results/.

    make results-pages

A page is a Jinja template in docs/templates/ with the prose; every number and table in it comes from the
exported results, through the same functions as `offline-gntd table`. A test fails if a committed page differs
from what this makes. FUNCTIONS are those that templates can call.
"""

import contextlib
import csv
import functools
import inspect
import json
import math
import os
import re
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

import offline_gntd
from offline_gntd.algorithms import preset
from offline_gntd.analysis import TABLES, render, td_error
from offline_gntd.analysis.comparisons import IMPROVEMENT
from offline_gntd.analysis.selection import select
from offline_gntd.analysis.statistics import (
    FEWEST_RUNS,
    SEED,
    Estimate,
    compare_means,
    estimates,
    improvement,
    mean,
)
from offline_gntd.analysis.table import (
    Cell,
    Table,
    markdown_rows,
    minus,
    number,
    ratio_text,
    sentences,
    tenths,
    whole,
)
from offline_gntd.cli import parser
from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, planning, results
from offline_gntd.files import duration

REPOSITORY = Path(__file__).parents[1]
TEMPLATES = REPOSITORY / "docs/templates"
README = REPOSITORY / "README.md"
BLOCK = re.compile(
    r"(<!-- results of (\S+): make results-pages -->\n).*?(<!-- end of results -->)", re.DOTALL
)
HERO = REPOSITORY / "docs/images/gndqn-vs-dqn.png"
PARTS = ("difference", "low", "high")


def main() -> None:
    with exported_results_only():
        for path, text in pages().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(REPOSITORY))
        for command in committed_tables():
            for path in render.write(made(f"{command} --allow-mixed-data")):
                shutil.copy(path, REPOSITORY / "analysis")
        draw_hero(HERO)
        print(HERO.relative_to(REPOSITORY))


@contextlib.contextmanager
def exported_results_only() -> Iterator[None]:
    """A home without run folders: pages are made from what is committed."""
    before = os.environ.get("OFFLINE_GNTD_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OFFLINE_GNTD_HOME"] = folder
        (Path(folder) / "results").mkdir()
        for path in (REPOSITORY / "results").glob("*.*"):
            shutil.copy(path, Path(folder) / "results")
        try:
            yield
        finally:
            made.cache_clear()
            os.environ.pop("OFFLINE_GNTD_HOME")
            if before is not None:
                os.environ["OFFLINE_GNTD_HOME"] = before


OTHER_TABLES = ("theory", "ablation-gntd3_bc --rows algorithm", "table2-costly --aggregate last")


def committed_tables() -> list[str]:
    """The command of every table in analysis/."""
    found = [
        f"{name} --kind {kind}" if kind else name
        for name in definitions.with_results()
        for kind in (None, *TABLES)
        if (REPOSITORY / "analysis" / f"{'-'.join(filter(None, (name, kind)))}.md").exists()
    ]
    return [*found, *OTHER_TABLES]


def pages() -> dict[Path, str]:
    """Every generated file and its text."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)
    environment.globals |= {function.__name__: function for function in FUNCTIONS}
    written = {}
    for template in sorted(TEMPLATES.glob("*.md")):
        text = environment.get_template(template.name).render()
        head = f"<!-- Made by `make results-pages` from results/ and docs/templates/{template.name}. -->\n\n"
        path = REPOSITORY / "docs/results" / template.name
        written[path] = head + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    readme = README.read_text(encoding="utf-8")
    headlines = {"table1-authors": table1_headline, "table2-rebuilt": table2_headline}
    written[README] = BLOCK.sub(lambda match: match[1] + headlines[match[2]](match[2]) + match[3], readme)
    return written


# ---- experiments


def exists(experiment: str) -> bool:
    return (definitions.home() / "results" / f"{experiment}.runs.csv").exists()


def exported(prefix: str = "") -> list[str]:
    """Names of the exported experiments that begin with a prefix."""
    return [name for name in definitions.with_results() if name.startswith(prefix)]


def _versions(experiment: str) -> list[dict[str, Any]]:
    """versions, commit and machine of every run, or measurement of the theory."""
    suffix = "measurements" if experiment == render.THEORY else "runs"
    path = definitions.home() / "results" / f"{experiment}.{suffix}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {
                "version": json.loads(row["versions"])["offline_gntd"],
                "commit": row["commit"][:7],
                "cpu": json.loads(row["machine"])["cpu"],
            }
            for row in csv.DictReader(file)
        ]


def outdated(experiment: str) -> bool:
    """Whether runs were made by an earlier minor version: its settings differ from today's."""
    today = offline_gntd.__version__.rpartition(".")[0]
    return any(row["version"].rpartition(".")[0] != today for row in _versions(experiment))


def provenance(experiment: str) -> str:
    """Version, commits and machine that made the results; a warning if the version is an earlier one."""
    found = _versions(experiment)
    versions, commits, cpus = (
        list(dict.fromkeys(row[key] for row in found if row[key])) for key in ("version", "commit", "cpu")
    )
    source = f"commit {listed(commits)}" if len(commits) < 4 else f"{len(commits)} commits"
    made_by = f"{source}, on {listed(cpus)}" if commits else f"an installed package, on {listed(cpus)}"
    if outdated(experiment):
        return (
            f"> **Results of version {listed(versions)}, not repeated with the present version yet**; "
            "its settings differ. "
            f"Made by {made_by}."
        )
    return f"Made by version {listed(versions)}, {made_by}."


def protocol(experiment: str) -> str:
    """5 seeds, 3,000 updates, evaluated every 30 with 20 episodes. Data: …"""
    return made(f"{experiment} --allow-mixed-data").protocol


# ---- tables and values


@functools.cache
def made(command: str) -> Table:
    """The table of `offline-gntd table COMMAND`."""
    args = parser().parse_args(["table", *shlex.split(command)])
    names = inspect.signature(render.table).parameters
    return render.table(**{name: getattr(args, name) for name in names})


def table(command: str, columns: tuple[str, ...] = ()) -> str:
    """A table in Markdown with its command, restricted to the given columns."""
    found = made(command)
    for name in columns:
        if name not in found.columns:
            raise UserError(f"the table {command!r} has no column {name!r}, only {found.columns}")
    chosen = [i for i, name in enumerate(found.columns) if not columns or name in columns]
    body = [[row[i] for i in chosen] for row in found.rows + found.foot]
    return f"{markdown([found.columns[i] for i in chosen], body)}\n`offline-gntd table {command}`\n"


def caption(command: str) -> str:
    """What the columns and marks of a table mean, and warnings about its runs."""
    found = made(command)
    return sentences(found.incomplete, found.explanation)


def markdown(columns: list[str], lines: Iterable[Iterable[str | Cell]]) -> str:
    rows = [tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in line) for line in lines]
    separator = "| --- " * len(columns) + "|"
    return markdown_rows(columns, rows).replace(separator, separator.replace(" ", ""), 1) + "\n"


def rows(command: str, query: str = "") -> list[dict[str, Any]]:
    """The rows of a table's CSV file that match a pandas query."""
    long = made(command).long
    found = (long.query(query) if query else long).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in found]


def row(command: str, query: str) -> dict[str, Any]:
    found = rows(command, query)
    if len(found) != 1:
        raise UserError(f"{len(found)} rows of the table {command!r} match {query!r}; one is needed")
    return found[0]


def estimate(line: dict[str, Any], prefix: str, written: Callable[[float], str] = tenths) -> str:
    """4.6 [2.4, 7.0] from the columns prefix_difference, …_low, …_high; 4.6 for one seed, — for none."""
    found = Estimate(*(line[f"{prefix}_{part}"] for part in PARTS))
    return "—" if math.isnan(found.value) else found.text(written, line[f"{prefix}_seeds"] > 1)


def clear(lines: list[dict[str, Any]], prefix: str) -> dict[str, list[str]]:
    """Datasets on which the interval lies above 0 (`more`), below 0 (`less`) or contains it (`level`).

    A dataset with too few seeds for a verdict is left out."""
    found: dict[str, list[str]] = {"more": [], "less": [], "level": []}
    for line in lines:
        if "P(" in line["dataset"] or math.isnan(line.get(f"{prefix}_low", math.nan)):
            continue
        low, high = line[f"{prefix}_low"], line[f"{prefix}_high"]
        if line[f"{prefix}_seeds"] < FEWEST_RUNS:
            continue
        found["more" if low > 0 else "less" if high < 0 else "level"].append(short(line["dataset"]))
    return found


def across(lines: list[dict[str, Any]], prefix: str) -> str:
    """Ahead on how many datasets, and the mean difference with its bootstrap interval over the datasets."""
    differences = np.array([line[f"{prefix}_difference"] for line in lines if "P(" not in line["dataset"]])
    differences = differences[~np.isnan(differences)]
    rng = np.random.default_rng(SEED)
    found = estimates(differences[:, None], {"mean": mean}, rng)["mean"].text(tenths)
    return f"ahead on {(differences > 0).sum()} of {len(differences)} datasets, mean difference {found}"


def labels(experiment: str) -> list[str]:
    """The labels of the algorithms with finished runs."""
    return list(select(experiment, allow_mixed_data=True).runs["label"].unique())


def short(dataset: str) -> str:
    """halfcheetah-medium for halfcheetah_medium-v2"""
    return re.sub(r"-(v\d|local)$", "", dataset.replace("_", "-"))


def listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) if names else "none"


# ---- verdicts, theory, costs


def claim(experiment: str, algorithm: str, measure: str) -> dict[str, Any]:
    """One measure of the table of claims over all datasets: counts of verdicts, range of the estimates.

    algorithm  label of the Gauss-Newton algorithm
    """
    is_ratio = td_error.MEASURES[measure].ratio
    query = f"algorithm == {algorithm!r} and measure == {measure!r}"
    found = rows(f"{experiment} --kind claims", query)
    verdicts = [line["verdict"] for line in found]
    estimates = [line["estimate"] for line in found if not math.isnan(line["estimate"])]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    total = len(verdicts) - verdicts.count("missing")
    return {
        "better": better,
        "worse": worse,
        "total": total,
        "range": spread(estimates, (lambda value: f"× {ratio_text(value)}") if is_ratio else tenths),
        "verdict": verdict(better, worse, total),
    }


@functools.cache
def false_alarms(seeds: int, trials: int = 2_000) -> str:
    """How often the interval of a difference excludes 0 if both sides have the same normal distribution."""
    rng = np.random.default_rng(SEED)
    pairs = rng.standard_normal((trials, 2, seeds))
    return f"{100 * sum(not compare_means(*pair).covers(0) for pair in pairs) / trials:.0f} %"


def spread(values: list[float], written: Callable[[float], str] = tenths) -> str:
    values = [value for value in values if not math.isnan(value)]
    return f"{written(min(values))} to {written(max(values))}" if values else "not measured"


def probability(experiment: str, algorithm: str, measure: str) -> str:
    """P(a run of a Gauss-Newton algorithm is better than one of its baseline on a random dataset).

    A run that does not reach the threshold is worse than one that does."""
    runs = td_error.per_seed(select(experiment, allow_mixed_data=True))
    values = runs[measure.removesuffix("_counted")]
    if measure.endswith("_counted"):
        values = values.fillna(math.inf)
    runs = runs.assign(value=-values if td_error.MEASURES[measure].less else values)
    x, y = (
        runs[runs["label"] == label]
        .pivot(index="seed", columns="dataset", values="value")
        .dropna()
        .to_numpy()
        for label in (algorithm, td_error.baseline_of(algorithm))
    )
    return improvement(x, y, np.random.default_rng(SEED)).text("{:.2f}".format)


def claims_grid(experiment: str) -> str:
    """Gauss-Newton algorithms against their baselines: one row per dataset, a column per measure."""
    found = made(f"{experiment} --kind claims")
    shown = found.columns.index("difference or ratio")
    texts: dict[tuple[str, str], dict[str, str]] = {}
    for line, cells in zip(found.long.to_dict("records"), found.rows, strict=True):
        clear_cut = line["verdict"] in ("better", "worse")
        text = f"**{cells[shown].text}** {line['verdict']}" if clear_cut else cells[shown].text
        texts.setdefault((cells[1].text, line["dataset"]), {})[cells[2].text] = text
    measures = list(next(iter(texts.values())))
    lines = [
        (*key, *(texts[key][name] for name in measures)) for key in sorted(texts, key=lambda key: key[0])
    ]
    text = markdown(["algorithms", "dataset", *measures], lines)
    return f"{text}\n`offline-gntd table {experiment} --kind claims`\n"


def theory(columns: dict[str, str], where: str = "") -> str:
    """Measurements of the theory by setting: value [interval], and a prediction in parentheses.

    columns  heading: quantity
    where    a regular expression that the setting must match
    """
    texts: dict[str, dict[str, str]] = {}
    for setting, quantity, predicted, measured, interval in (
        [cell.text for cell in row] for row in made("theory").rows
    ):
        if quantity in columns.values() and re.search(where, setting):
            shown = f"{measured} {interval}" + ("" if predicted == "—" else f" ({predicted})")
            texts.setdefault(setting, {})[quantity] = shown
    lines = [(name, *(found.get(each, "—") for each in columns.values())) for name, found in texts.items()]
    return markdown(["setting", *columns], lines)


def verdict(better: int, worse: int, total: int) -> str:
    if not total:
        return f"**open**: fewer than {FEWEST_RUNS} seeds"
    if better == total:
        return f"**holds** on {better} of {total}"
    if not better and not worse:
        return "**not shown**: no clear difference"
    if not better:
        return f"**does not hold**: worse on {worse} of {total}"
    return f"**partly**: better on {better}, worse on {worse} of {total}"


def cost_per_update(experiments: list[str]) -> str:
    """CPU seconds of 1,000 updates by algorithm, and their ratio to those of the baseline."""
    found = [select(name, allow_mixed_data=True).runs for name in experiments]
    runs = pd.concat(found).query("status == 'done'")
    runs = runs.assign(rate=1000 * runs["training_cpu_seconds"] / runs["steps"])
    medians = runs.groupby(["label", "dataset"], sort=False)["rate"].median().unstack()
    lines = []
    for label, rates in runs.groupby("label", sort=False)["rate"]:
        baseline, ratio = td_error.baseline_of(label), ""
        if baseline != label and baseline in medians.index:
            ratio = f"{(medians.loc[label] / medians.loc[baseline]).median():.2f}"
        shown = f"{number(rates.median())} [{number(rates.min())}, {number(rates.max())}]"
        lines.append((label, shown, ratio))
    return markdown(["algorithm", "CPU seconds per 1,000 updates: median [range]", "× baseline"], lines)


def evaluation_shares(experiment: str) -> str:
    """The share of a run's time that evaluation takes, by algorithm: median over the runs."""
    runs = select(experiment, allow_mixed_data=True).runs
    shares = runs["evaluation_seconds"] / (runs["training_seconds"] + runs["evaluation_seconds"])
    medians = shares.groupby(runs["label"], sort=False).median()
    return ", ".join(f"{label} {share:.1%}" for label, share in medians.items())


def cost_ratio(experiment: str, algorithm: str, baseline: str) -> str:
    """CPU seconds of an update relative to the baseline's: median (range) over the datasets, by runs of the
    same commit. The algorithms are given by their labels."""
    runs = select(experiment, allow_mixed_data=True).runs
    runs = runs.assign(
        rate=runs["training_cpu_seconds"] / runs["steps"], commit=runs["commit"].astype(object).fillna("")
    )
    rates = runs.groupby(["dataset", "commit", "label"])["rate"].median().unstack()
    ratios = (rates[algorithm] / rates[baseline]).dropna().groupby("dataset").median()
    if ratios.empty:
        return "not measured at one commit"
    return f"× {ratios.median():.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


def full_size(experiment: str, algorithms: tuple[str, ...], cores: tuple[int, ...]) -> str:
    """Time of a built-in experiment with these algorithms by `--dry-run`, by algorithm and in all."""
    whole_grid = definitions.BUILT_IN[experiment]
    lines = []
    for names in [*((name,) for name in algorithms), algorithms]:
        grid = definitions.Experiment(
            f"{experiment}-cost", whole_grid.datasets, names, whole_grid.seeds, whole_grid.protocol
        )
        forecasts = [planning.preview(grid, count, measure=False) for count in cores]
        seconds = [value for value in forecasts[0].seconds.values() if value is not None]
        title = preset(names[0]).label if len(names) == 1 else "all"
        one = duration(statistics.median(seconds)) if len(names) == 1 and seconds else ""
        walls = [duration(forecast.wall) if seconds else "not measured" for forecast in forecasts]
        lines.append((title, one, f"{sum(seconds) / 3600:,.0f}", *walls))
    head = ["algorithm", "one run", "all runs: core-hours", *(f"{count} cores" for count in cores)]
    return markdown(head, lines)


def candidates(experiment: str, family: str) -> str:
    """The candidates whose labels begin with `family`, by the mean of their scores over the datasets."""
    lines = pd.DataFrame(rows(f"{experiment} --rows algorithm"))
    lines = lines[lines["label"].str.split(" ").str[0] == family]
    means = lines.pivot(index="label", columns="dataset", values="score")[[*lines["dataset"].unique()]]
    means.insert(0, "mean", means.mean(axis=1))
    means = means.sort_values("mean", ascending=False, kind="stable")
    head = ["candidate", "mean", *(short(name) for name in means.columns[1:])]
    return markdown(head, ((label, *map(tenths, row)) for label, row in means.iterrows()))


def precisions(experiment: str, algorithms: tuple[str, ...]) -> str:
    """Each algorithm in bfloat16 against float32 on every dataset, and how many intervals contain 0."""
    metric = definitions.find(experiment).table.metric
    lines, level = [], []
    for name in algorithms:
        pair = f"{experiment} --kind pairwise --algorithms {name} {name}@precision=bfloat16"
        compared, errors = made(pair).long, rows(f"{pair} --metric td_error_abs")
        for line, error in zip(compared.to_dict("records"), errors, strict=True):
            if line["dataset"] == IMPROVEMENT:
                continue
            values = (tenths(line["first_value"]), tenths(line["value"]))
            differences = (estimate(line, "end"), estimate(line, "training"))
            td_error_change = estimate(error, "training", lambda value: minus(f"{value:.2f}"))
            level += [
                each[f"{reading}_low"] <= 0 <= each[f"{reading}_high"]
                for each, reading in ((line, "end"), (line, "training"), (error, "training"))
            ]
            dataset = short(line["dataset"])
            lines.append((preset(name).label, dataset, *values, *differences, td_error_change))
    heads = [f"{metric}: float32", "bfloat16", "Δ at the end", "Δ over training", "Δ TD error over training"]
    table = markdown(["algorithm", "dataset", *heads], lines)
    selection = select(experiment)
    return (
        f"{table}\n{sum(level)} of {len(level)} intervals contain 0. Δ: bfloat16 minus float32, 95 % "
        f"bootstrap interval over the seeds;\n{metric}: {selection.measure.words(selection)}; TD error: mean "
        "absolute, over the dataset.\n"
    )


def learning(experiment: str, names: list[str], every: int) -> str:
    """The data of an experiment, and scores (mean over seeds) at every `every` updates, by labels."""
    selection, lines = select(experiment, allow_mixed_data=True), []
    found = selection.evaluations.merge(selection.runs[[*results.KEY, "label"]], on=results.KEY)
    curves = found[found["step"] % every == 0].groupby(["dataset", "label", "step"])["score"].mean().unstack()
    for run in selection.datasets.to_dict("records"):
        about = (
            selection.dataset_labels[run["dataset"]],
            f"{run['dataset_rows']:,}",
            tenths(run["dataset_score"]),
            run["dataset_sha256"][:8],
        )
        for name in names:
            if (run["dataset"], name) in curves.index:
                lines.append((*about, name, *map(tenths, curves.loc[run["dataset"], name])))
                about = ("",) * len(about)
    head = ["dataset", "rows", "score of the data", "sha256", "algorithm", *map(whole, curves.columns)]
    return markdown(head, lines)


def image(experiment: str, kind: str, caption: str) -> str:
    """A figure in analysis/, if it is committed."""
    if not (REPOSITORY / "analysis" / f"{experiment}-{kind}.png").exists():
        return ""
    return f"![{caption}](../../analysis/{experiment}-{kind}.png)\n"


FUNCTIONS = (
    across, candidates, caption, claim, claims_grid, clear, cost_per_update, cost_ratio, estimate,
    evaluation_shares, exists, exported, false_alarms, full_size, image, labels, learning, listed, outdated,
    precisions, probability, protocol, provenance, rows, short, spread, table, tenths, theory, verdict,
)  # fmt: skip


# ---- README


def table2_headline(experiment: str) -> str:
    """GNTD3+BC against its baselines over all datasets."""
    lines = []
    for baseline in ("TD3+BC", "TD3+BC (tuned)"):
        if baseline in labels(experiment):
            found = rows(f"{experiment} --kind pairwise --algorithms '{baseline}' GNTD3+BC")
            readings = [across(found, prefix) for prefix in ("end", "training", "training_seconds")]
            differences = (text.partition("mean difference ")[2] for text in readings)
            lines.append((baseline, *differences, cost_ratio(experiment, "GNTD3+BC", baseline)))
    head = [
        "against",
        "score at the end",
        "over training",
        "over equal CPU seconds",
        "CPU time of an update",
    ]
    return (
        "Mean gain of GNTD3+BC on [stand-ins for D4RL's twelve datasets](docs/results/data.md):"
        f"\n\n{markdown(head, lines)}\n"
        f"{protocol(experiment).partition('. ')[0]}; 95 % intervals over the datasets.\n"
        "`TD3+BC (tuned)` has a larger critic learning rate.\n"
    )


def table1_headline(experiment: str) -> str:
    """GNDQN against DQN on every dataset of Table 1, short enough for the README."""
    lines = rows(f"{experiment} --kind claims", "algorithm == 'GNDQN'")
    found = pd.DataFrame(lines).set_index(["dataset", "measure"])
    table_lines = []
    for dataset in dict.fromkeys(line["dataset"] for line in lines):
        updates, final = found.loc[dataset, "updates_counted"], found.loc[dataset, "final_return"]
        ratio = Estimate(updates["estimate"], updates["low"], updates["high"]).text("{:.2f}".format)
        returns = (tenths(final["baseline_value"]), tenths(final["value"]))
        table_lines.append((dataset, _reached(updates, "baseline_"), _reached(updates, ""), ratio, *returns))
    updates = claim(experiment, "GNDQN", "updates_counted")
    versions = list(dict.fromkeys(line["version"] for line in _versions(experiment)))
    size = protocol(experiment).partition(". ")[0]
    head = [
        "dataset",
        "updates to threshold: DQN",
        "GNDQN",
        "ratio [95 % interval]",
        "final return: DQN",
        "GNDQN",
    ]
    return (
        f"{markdown(head, table_lines)}\nGNDQN needs clearly fewer updates on {updates['better']} of "
        f"{updates['total']} datasets and more on {updates['worse']}. {size}; version {listed(versions)}.\n"
        "Threshold: first evaluation at 400 (CartPole) or −100 (Acrobot); ≥: not all seeds reach it.\n"
    )


def _reached(line: pd.Series, prefix: str) -> str:
    some = line[f"{prefix}reached"] < line[f"{prefix}seeds"]
    return f"{'≥ ' if some else ''}{whole(line[f'{prefix}value'])}"


def draw_hero(path: Path, experiment: str = "table1-authors", dataset: str = "cartpole-replay") -> None:
    """Learning curves of DQN and GNDQN on one dataset; the title says when they reach the threshold."""
    from matplotlib import pyplot

    found = results.read_exported(experiment)
    assert found is not None
    curves = found.evaluations[found.evaluations["dataset"] == dataset]
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    for algorithm, label, colour in (("dqn", "DQN", "#8a8f98"), ("gndqn", "GNDQN", "#d1495b")):
        runs = curves[curves["algorithm"] == algorithm].pivot(index="step", columns="seed", values="return")
        mean, std = runs.mean(axis=1), runs.std(axis=1)
        axes.plot(mean.index, mean, color=colour, linewidth=2.5, label=label)
        low, high = (mean - std).clip(0), (mean + std).clip(upper=500)
        axes.fill_between(mean.index, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.axhline(td_error.THRESHOLDS["CartPole-v1"], color="black", linewidth=0.8, linestyle=":")
    line = row(
        f"{experiment} --kind claims",
        f"dataset == {dataset!r} and algorithm == 'GNDQN' and measure == 'updates_counted'",
    )
    axes.set_title(
        f"First evaluation at 400: after {_reached(pd.Series(line), '')} updates with GNDQN, "
        f"{_reached(pd.Series(line), 'baseline_')} with DQN (mean over seeds)",
        loc="left",
        fontsize=11,
    )
    axes.set(xlabel="updates", ylabel="return (CartPole, replay data)", xlim=(0, None), ylim=(0, 510))
    if outdated(experiment):
        axes.set_xlabel("updates (results of an earlier version, with other settings)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot.close(figure)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"docs/generate.py: {minus(str(error))}")
