"""The report: one self-contained HTML page about any number of experiments.

It begins with an overview, one line per experiment. Figures are PNG images of screen resolution with a small
palette, so that the page stays small.
"""

import base64
import contextlib
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from offline_gntd import __version__
from offline_gntd.analysis import FIGURES, TABLES, published, render, statistics, table, td_error
from offline_gntd.analysis.explain import warnings
from offline_gntd.analysis.scores import flatten, matrices, setting_text
from offline_gntd.analysis.selection import Selection, run_values
from offline_gntd.analysis.table import written_as
from offline_gntd.datasets import catalogue
from offline_gntd.errors import UserError
from offline_gntd.theory import figures as theory_figures
from offline_gntd.theory import tables as theory_tables

DPI = 80
COLOURS = 128  # in a PNG's palette


class Section(NamedTuple):
    name: str
    run: str  # for the overview: what was run
    outcome: str  # for the overview: what came out
    html: str


def page_of(sections: Iterable[Section], refused: Iterable[str] = ()) -> str:
    """The page; `refused` says what could not be shown."""
    sections = list(sections)
    rows = "".join(
        f'<tr><td class="words"><a href="#{escape(part.name)}-section">{escape(part.name)}</a></td>'
        f'<td class="words">{escape(part.run)}</td><td class="words">{escape(part.outcome)}</td></tr>'
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
    experiment = selection.experiment
    html = [
        f'<section id="{escape(experiment.name)}-section"><h2>{escape(experiment.name)}</h2>',
        f"<p>{escape(selection.protocol_text)}</p>",
        _warnings(filter(None, [*warnings(selection), selection.few_seeds])),
        table.html_table(render.make(selection), "Results", with_protocol=False),
        f'<div class="figures">{"".join(_figures(selection))}</div>',
        *_other_tables(selection),
        _folded("Datasets", "".join(_datasets(selection))),
        _folded("Provenance and settings", "".join(_provenance(selection))),
        "</section>",
    ]
    missing = f", {len(selection.missing)} runs missing" if selection.missing else ""
    run = (
        f"{_count(len(experiment.datasets), 'dataset')} × {_count(len(experiment.algorithms), 'algorithm')}"
        f" × {_count(experiment.seeds, 'seed')}, {experiment.protocol.steps:,} {selection.unit}{missing}"
    )
    return Section(experiment.name, run, _outcome(selection), "\n".join(html))


def _outcome(selection: Selection) -> str:
    """Verdicts where claims apply; otherwise on how many datasets each algorithm has the highest mean."""
    measure = selection.measure
    if selection.experiment.table.kind == "td_error":
        with contextlib.suppress(UserError):  # no pair of algorithms to compare
            return _first(td_error.verdict_counts(td_error.claims(selection, measure).long), 2, "; ")
    values = run_values(selection, measure)
    means = values.groupby(["dataset", "label"], sort=False)["value"].mean().unstack()
    means = means.reindex(columns=list(dict.fromkeys(values["label"])))
    if len(means.columns) == 1:
        mean = written_as(measure.metric)(means.iloc[:, 0].mean())
        return f"{means.columns[0]}: mean {measure.metric} {mean}"
    signed = (measure.direction or 1) * means
    wins = signed.eq(signed.max(axis=1), axis=0).sum().sort_values(ascending=False, kind="stable")
    best = _first([f"{label} on {count}" for label, count in wins[wins > 0].items()], 3, ", ")
    text = f"highest mean {measure.metric}: {best} of {_count(len(means), 'dataset')}"
    return "; ".join([text, *(_improvements(selection) if len(means) > 1 else ())])


def _first(texts: Sequence[str], count: int, separator: str) -> str:
    return separator.join(texts[:count]) + (" …" if len(texts) > count else "")


def _improvements(selection: Selection) -> Iterable[str]:
    """The probability of improvement of each Gauss-Newton algorithm over its baseline."""
    sign = selection.measure.direction or 1
    with contextlib.suppress(UserError):  # no seed has runs on all datasets
        found = matrices(selection, run_values(selection, selection.measure))
        scores = {selection.labels[name]: sign * values for name, values in found.items()}
        for label in scores:
            baseline = td_error.baseline_of(label)
            if baseline != label and baseline in scores:
                rng = np.random.default_rng(statistics.SEED)
                estimate = statistics.improvement(scores[label], scores[baseline], rng)
                several = min(len(scores[label]), len(scores[baseline])) > 1
                yield f"P({label} > {baseline}) = {estimate.text('{:.2f}'.format, several)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def theory_section() -> Section:
    name, made = render.THEORY, theory_tables.table()
    pictures = "".join(_picture(figure, f"theory: {kind}") for kind, figure in theory_figures.draw(2).items())
    html = (
        f'<section id="{name}-section"><h2>{name}</h2>{table.html_table(made, "Predicted and measured")}'
        f'<div class="figures">{pictures}</div></section>'
    )
    return Section(
        name, f"{len(made.rows)} quantities on problems solved exactly", "predictions and measurements", html
    )


def _other_tables(selection: Selection) -> Iterable[str]:
    """Tables that apply to the runs and are not the main one."""
    for kind, entry in TABLES.items():
        if kind != selection.experiment.table.kind and entry.in_report:
            with contextlib.suppress(UserError):  # the kind does not apply to these runs
                yield _folded(
                    entry.title, table.html_table(render.make(selection, kind), with_protocol=False)
                )


def _figures(selection: Selection) -> Iterable[str]:
    for kind, entry in FIGURES.items():
        if entry.in_report:
            with contextlib.suppress(UserError):  # the runs have no data for it
                yield _picture(render.draw(selection, kind, 2), entry.title.format(unit=selection.unit))


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
            "source": selection.origins[run["dataset"]],
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
        for line in published.read("sources.csv").itertuples()
    }
    return (
        f"<section><h2>Sources of published numbers</h2>{_facts(facts)}"
        f"<p>{escape(published.inconsistencies())}</p></section>"
    )


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
