"""The report: one self-contained HTML page about any number of experiments.

The first screen is an overview with one line per experiment: what was run and what came out. Figures are
PNG images of screen resolution with a small palette, so that the page stays small.
"""

import base64
import contextlib
import io
from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from offline_gntd import __version__
from offline_gntd.analysis import FIGURES, TABLES, captions, render, statistics, table, td_error
from offline_gntd.analysis.published import read
from offline_gntd.analysis.scores import flatten, score_matrices, setting_text
from offline_gntd.analysis.selection import Measure, Selection, default_measure, run_values
from offline_gntd.analysis.table import Cell, Row, written_as
from offline_gntd.datasets import catalogue
from offline_gntd.errors import UserError
from offline_gntd.theory import figures as theory_figures
from offline_gntd.theory import tables as theory_tables

DPI = 80
COLOURS = 128  # of a PNG's palette


class Section(NamedTuple):
    name: str
    overview: Row  # cells of the overview table
    html: str


def page_of(sections: Iterable[Section], refused: Iterable[str] = ()) -> str:
    """The whole page; `refused` says what could not be shown."""
    sections = list(sections)
    rows = "".join(
        f'<tr><td class="words"><a href="#{escape(part.name)}-section">{escape(part.name)}</a></td>'
        + "".join(f'<td class="words">{escape(cell.text)}</td>' for cell in part.overview)
        + "</tr>"
        for part in sections
    )
    parts = [
        f"<h1>offline_gntd {escape(__version__)}: results</h1>",
        "<p>Click a column heading to sort a table. To trace a cell to its runs: "
        "<code>offline-gntd explain EXPERIMENT DATASET ALGORITHM</code>.</p>",
        _warnings(refused),
        '<nav><div class="scroll"><table class="overview"><thead><tr><th class="words">experiment</th>'
        '<th class="words">what was run</th><th class="words">what came out</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></nav>",
        *(part.html for part in sections),
        _sources(),
    ]
    return table.page("offline_gntd: results", "\n".join(parts))


def section(selection: Selection) -> Section:
    name = selection.experiment.name
    main = render.main_table(selection)
    html = [
        f'<section id="{escape(name)}-section"><h2>{escape(name)}</h2>',
        f"<p>{escape(captions.protocol(selection))}</p>",
        _warnings([*captions.warnings(selection), *captions.few_seeds(selection.experiment.seeds)]),
        table.html_table(main, "Results", with_protocol=False),
        f'<div class="figures">{"".join(_figures(selection))}</div>',
        *_other_tables(selection),
        _folded("Datasets", "".join(_datasets(selection))),
        _folded("Provenance and settings", "".join(_provenance(selection))),
        "</section>",
    ]
    return Section(name, _overview(selection), "\n".join(html))


def _overview(selection: Selection) -> Row:
    """What was run, and for each algorithm its mean rank over the datasets."""
    experiment = selection.experiment
    missing = f", {len(selection.missing)} runs missing" if selection.missing else ""
    datasets, algorithms = len(experiment.datasets), len(experiment.algorithms)
    run = (
        f"{_count(datasets, 'dataset')} × {_count(algorithms, 'algorithm')} × "
        f"{_count(experiment.seeds, 'seed')}, {experiment.protocol.steps:,} {selection.unit}{missing}"
    )
    return (Cell(run), Cell(_outcome(selection)))


def _outcome(selection: Selection) -> str:
    measure = default_measure(selection.experiment)
    if selection.experiment.table.kind == "td_error":
        with contextlib.suppress(UserError):  # no pair of algorithms to compare
            return td_error.claims(selection, measure).caption.partition(". ")[0]
    lines = run_values(selection, measure)
    means = lines.groupby(["dataset", "label"], sort=False)["value"].mean().unstack()
    means = means.reindex(columns=list(dict.fromkeys(lines["label"])))
    if len(means.columns) == 1:
        return (
            f"{means.columns[0]}: mean {measure.metric} {written_as(measure.metric)(means.iloc[:, 0].mean())}"
        )
    wins = (measure.direction or 1) * means
    wins = wins.eq(wins.max(axis=1), axis=0).sum().sort_values(ascending=False, kind="stable")
    best = [f"{label} on {count}" for label, count in wins[wins > 0].items()]
    shown = ", ".join(best[:3]) + (" …" if len(best) > 3 else "")
    if len(means) > 1:
        text = f"highest mean {measure.metric}: {shown} of {_count(len(means), 'dataset')}"
        return "; ".join([text, *_improvements(selection, measure)])
    leader = means.iloc[0].idxmax()
    return f"highest mean {measure.metric}: {leader}, {written_as(measure.metric)(means.iloc[0].max())}"


def _improvements(selection: Selection, measure: Measure) -> Iterable[str]:
    """The probability of improvement of each Gauss-Newton algorithm over its baseline."""
    with contextlib.suppress(UserError):  # no seed has runs on all datasets
        matrices = score_matrices(selection, measure)
        for label in matrices:
            baseline = td_error.baseline_of(label)
            if baseline != label and baseline in matrices:
                rng = np.random.default_rng(statistics.SEED)
                estimate = statistics.improvement(matrices[label], matrices[baseline], rng)
                several = min(len(matrices[label]), len(matrices[baseline])) > 1
                yield f"P({label} > {baseline}) = {estimate.text('{:.2f}'.format, several)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def theory_section() -> Section:
    made = theory_tables.table()
    drawn = theory_figures.draw(columns=2)
    pictures = "".join(_picture(figure, f"theory: {kind}") for kind, figure in drawn.items())
    html = [
        f'<section id="{theory_tables.NAME}-section"><h2>{theory_tables.NAME}</h2>',
        f'{table.html_table(made, "Predicted and measured")}<div class="figures">{pictures}</div></section>',
    ]
    overview = (
        Cell(f"{len(made.rows)} quantities on problems solved exactly"),
        Cell("predicted beside measured"),
    )
    return Section(theory_tables.NAME, overview, "\n".join(html))


def _other_tables(selection: Selection) -> Iterable[str]:
    """Tables that apply to the runs and are not the main one."""
    for kind, entry in TABLES.items():
        if kind == selection.experiment.table.kind or not entry.in_report:
            continue
        try:
            made = render.function_of(entry)(selection, default_measure(selection.experiment))
        except UserError:  # the kind does not apply to these runs
            continue
        yield _folded(entry.title, table.html_table(made, with_protocol=False))


def _figures(selection: Selection) -> Iterable[str]:
    kinds = [kind for kind, entry in FIGURES.items() if entry.in_report]
    for kind, figure in render.draw(selection, 2, kinds).items():
        yield _picture(figure, FIGURES[kind].title.format(unit=selection.unit))


def _picture(figure: Figure, caption: str) -> str:
    """The figure as a PNG with a small palette, at screen resolution."""
    from PIL import Image

    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    pyplot.close(figure)
    small = io.BytesIO()
    Image.open(data).convert("RGB").quantize(COLOURS, kmeans=1).save(small, "png", optimize=True)
    picture, words = base64.b64encode(small.getvalue()).decode(), escape(caption)
    return (
        f'<figure><img loading="lazy" alt="{words}" src="data:image/png;base64,{picture}">'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _datasets(selection: Selection) -> Iterable[str]:
    for run in selection.datasets.to_dict("records"):
        task = run["task"]
        facts = {
            "transitions": f"{run['dataset_rows']:,}" if run["dataset_rows"] else "collected during training",
            "source": selection.sources[run["dataset"]],
            "name in D4RL": run["dataset_d4rl_id"],
            "made by": run["dataset_level"],
            "environment": run["env_id"],
            "mean score of its episodes": f"{run['dataset_score']:.1f}"
            if _present(run.get("dataset_score"))
            else None,
            "returns at score 0 and 100": f"{task.get('reference_min')} and {task.get('reference_max')} "
            f"({task.get('reference_source')})",
            "sha256 of its rows": run["dataset_sha256"],
        }
        entry = catalogue.entries().get(run["dataset_d4rl_id"])
        facts |= {f"known issue {i}": note for i, note in enumerate(entry.notes if entry else (), start=1)}
        yield f"<h4>{escape(run['dataset'])}</h4>" + _facts(facts)


def _provenance(selection: Selection) -> Iterable[str]:
    runs = selection.runs
    facts = {
        "finished": f"{runs['finished'].min()} to {runs['finished'].max()}",
        "commits": ", ".join(str(commit) for commit in runs["commit"].unique()),
        "versions": "; ".join(
            dict.fromkeys(", ".join(f"{k} {v}" for k, v in each.items()) for each in runs["versions"])
        ),
        "machines": "; ".join(
            dict.fromkeys(f"{each.get('cpu')}, {each.get('cores')} cores" for each in runs["machine"])
        ),
        "devices": ", ".join(runs["device"].unique()),
    }
    yield _facts(facts)
    for run in runs.drop_duplicates("algorithm").to_dict("records"):
        settings = [f"{path}={setting_text(value)}" for path, value in flatten(run["config"]).items()]
        text = f"{', '.join(settings)} (hash {run['config_hash']})"
        yield f"<p><strong>{escape(run['label'])}</strong>: {escape(text)}</p>"


def _sources() -> str:
    facts = {
        f"{line.source}, {line.table}": f"{line.citation} ({line.protocol})"
        for line in read("sources.csv").itertuples()
    }
    return f"<section><h2>Sources of published numbers</h2>{_facts(facts)}</section>"


def _facts(pairs: dict[str, Any]) -> str:
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
        for name, value in pairs.items()
        if _present(value)
    )
    return f"<dl>{items}</dl>"


def _warnings(sentences: Iterable[str]) -> str:
    return "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in sentences)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _present(value: Any) -> bool:
    return value is not None and value == value  # NaN is not equal to itself
