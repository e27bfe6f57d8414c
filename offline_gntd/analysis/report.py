"""Everything there is to say of experiments, as one HTML page that needs no network."""

import base64
import io
from collections.abc import Iterable
from html import escape
from typing import Any

from matplotlib.figure import Figure

from offline_gntd import __version__
from offline_gntd.analysis import (
    aggregates,
    figures,
    page,
    render,
    statistics,
    versus_published,
    warnings,
)
from offline_gntd.analysis.axes import flat, text
from offline_gntd.analysis.published import read
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.values import default_measure
from offline_gntd.datasets import catalogue
from offline_gntd.errors import UserError
from offline_gntd.theory import figures as theory_figures
from offline_gntd.theory import tables as theory_tables

TITLES = {
    aggregates.table: "Aggregates over datasets",
    aggregates.improvement_table: "Who beats whom",
    versus_published.table: "Published numbers beside ours",
}


def page_of(sections: dict[str, str], refused: Iterable[str] = ()) -> str:
    """Sections under their names; what could not be shown is said at the top."""
    links = "".join(f'<li><a href="#{escape(name)}-section">{escape(name)}</a></li>' for name in sections)
    parts = [
        f"<h1>offline_gntd {escape(__version__)}: results</h1>",
        "<p>Tables sort by the column whose head is pressed. Every cell can be traced: "
        "<code>offline-gntd explain EXPERIMENT DATASET ALGORITHM</code>.</p>",
        page.warnings(refused),
        f"<nav><ul>{links}</ul></nav>",
        *sections.values(),
        _sources(),
    ]
    return page.whole("offline_gntd: results", "\n".join(parts))


def section(selection: Selection) -> str:
    name = escape(selection.experiment.name)
    return "\n".join(
        [
            f'<section id="{name}-section"><h2>{name}</h2>',
            page.warnings([*warnings.of(selection), *statistics.caution(selection.experiment.seeds)]),
            _protocol(selection),
            "<h3>Tables</h3>",
            *tables(selection),
            "<h3>Figures</h3>",
            f'<div class="figures">{"".join(_figures(selection))}</div>',
            "<h3>Datasets</h3>",
            *_datasets(selection),
            "<h3>Provenance</h3>",
            *_provenance(selection),
            "</section>",
        ]
    )


def theory_section() -> str:
    table = page.table(theory_tables.table(), "Predicted and measured")
    drawn = theory_figures.draw(columns=1)
    pictures = "".join(_picture(figure, f"theory: {kind}") for kind, figure in drawn.items())
    return "\n".join(
        [
            f'<section id="{theory_tables.NAME}-section"><h2>{theory_tables.NAME}</h2>',
            f'{table}<h3>Figures</h3><div class="figures">{pictures}</div></section>',
        ]
    )


def tables(selection: Selection) -> Iterable[str]:
    """The main one, and those of the others that apply."""
    yield page.table(render.main_table(selection), "Results")
    for make, title in TITLES.items():
        try:
            yield page.table(make(selection, default_measure(selection.experiment)), title)
        except UserError as error:  # nothing is published, or no seed has all datasets
            yield f"<p>{title}: none, since {escape(str(error))}.</p>"


def _figures(selection: Selection) -> Iterable[str]:
    drawn = figures.draw(selection, default_measure(selection.experiment), columns=1)
    for kind, figure in drawn.items():
        yield _picture(figure, figures.caption(selection, kind))


def _picture(figure: Figure, caption: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    figures.close(figure)
    picture, words = base64.b64encode(data.getvalue()).decode(), escape(caption)
    return (
        f'<figure><img alt="{words}" src="data:image/png;base64,{picture}">'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _protocol(selection: Selection) -> str:
    experiment = selection.experiment
    facts = {
        selection.unit: f"{experiment.protocol.steps:,}",
        "evaluated every": f"{experiment.protocol.evaluate_every:,} {selection.unit}, and at the end",
        "episodes per evaluation": experiment.protocol.evaluate_episodes,
        "seeds": f"{experiment.seeds}, {experiment.protocol.seeds_per_process} trained together",
        "a run's score": experiment.table.aggregate,
        "runs": f"{len(selection.runs)} of {len(selection.runs) + len(selection.missing)}",
    }
    return page.facts(facts)


def _datasets(selection: Selection) -> Iterable[str]:
    for run in selection.runs.drop_duplicates("dataset").to_dict("records"):
        task = run["task"]
        facts = {
            "transitions": f"{run['dataset_rows']:,}" if run["dataset_rows"] else "collected as it learns",
            "origin": " ".join(
                str(run[key]) for key in ("dataset_origin", "dataset_version") if _there(run[key])
            ),
            "stands for": run["dataset_d4rl_id"] if _there(run["dataset_d4rl_id"]) else "itself",
            "scored in": run["env_id"],
            "mean score of its episodes": f"{run['dataset_score']:.1f}"
            if _there(run.get("dataset_score"))
            else "—",
            "score 0 and 100": f"{task.get('reference_min')} and {task.get('reference_max')} "
            f"({task.get('reference_source')})",
            "sha256 of its rows": run["dataset_sha256"] if _there(run["dataset_sha256"]) else "—",
        }
        entry = catalogue.entries().get(run["dataset_d4rl_id"])
        facts |= {f"known issue {i}": note for i, note in enumerate(entry.notes if entry else (), start=1)}
        yield page.folded(run["dataset"], page.facts(facts))


def _provenance(selection: Selection) -> Iterable[str]:
    runs = selection.runs
    facts = {
        "finished": f"{runs['finished'].min()} to {runs['finished'].max()}",
        "commits": ", ".join(str(commit) for commit in runs["commit"].unique()),
        "versions": "; ".join(
            _unique(", ".join(f"{k} {v}" for k, v in each.items()) for each in runs["versions"])
        ),
        "machines": "; ".join(
            _unique(f"{each.get('cpu')}, {each.get('cores')} cores" for each in runs["machine"])
        ),
        "devices": ", ".join(_unique(runs["device"])),
    }
    yield page.folded("Versions and machines", page.facts(facts))
    for run in runs.drop_duplicates("algorithm").to_dict("records"):
        settings = {path: text(value) for path, value in flat(run["config"]).items()}
        settings["config hash"] = run["config_hash"]
        yield page.folded(f"{run['label']}: settings", page.facts(settings))


def _sources() -> str:
    facts = {
        f"{line.source}, {line.table}": f"{line.citation} ({line.protocol})"
        for line in read("sources.csv").itertuples()
    }
    return f"<section><h2>Sources of published numbers</h2>{page.facts(facts)}</section>"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _there(value: Any) -> bool:
    return value is not None and value == value  # NaN is not itself
