"""Only here does analysis touch the disk: tables, figures and the report, written to analysis/."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from offline_gntd.analysis import aggregates, bellman, grid, pairwise, versus_published
from offline_gntd.analysis.grid import Layout
from offline_gntd.analysis.selection import Selection, select
from offline_gntd.analysis.table import FORMS, Table
from offline_gntd.analysis.values import Measure, default_measure
from offline_gntd.datasets.names import safe
from offline_gntd.errors import UserError, unknown
from offline_gntd.experiments import definitions
from offline_gntd.experiments.definitions import with_results
from offline_gntd.files import home, write_text, writing
from offline_gntd.theory import tables as theory
from offline_gntd.theory.runner import finished as measured

KINDS = {
    "statistics": aggregates.table,
    "improvement": aggregates.improvement_table,
    "published": versus_published.table,
    "duels": pairwise.table,
}


def path(name: str, suffix: str) -> Path:
    return home() / "analysis" / f"{name}.{suffix}"


def main_table(selection: Selection) -> Table:
    kind, measure = selection.experiment.table.kind, default_measure(selection.experiment)
    if kind == "td_error":
        return bellman.table(selection)
    if kind == "pairwise" and len(selection.experiment.algorithms) > 1:
        return pairwise.table(selection, measure)
    return grid.table(selection, measure)


def table(
    experiment: str,
    kind: str | None = None,
    metric: str | None = None,
    aggregate: str | None = None,
    rows: str | None = None,
    columns: str | None = None,
    datasets: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    mixed: bool = False,
) -> Table:
    """An experiment's own table, one of the other kinds, or a grid laid out as asked for."""
    if experiment == theory.NAME:
        if any((kind, metric, aggregate, rows, columns, datasets, algorithms)):
            raise UserError(f"{theory.NAME} has one table, without options: offline-gntd table {theory.NAME}")
        return theory.table()
    layout = Layout(*_axes(rows, columns))
    usual = definitions.find(experiment).table
    measure = Measure(metric or usual.metric, aggregate or usual.aggregate)
    if kind is not None and kind not in KINDS:
        raise unknown("kind of table", kind, KINDS)
    if kind and (rows or columns):
        raise UserError(f"--rows and --columns lay out a grid, not the {kind} table")
    if kind and metric and kind != "duels":
        raise UserError(f"--metric is for grids and duels; the {kind} table is of scores")
    selection = select(experiment, datasets, algorithms, mixed)
    if kind:
        made = KINDS[kind](selection, measure)
    elif metric or aggregate or rows or columns:
        made = grid.table(selection, measure, layout)
    else:
        made = main_table(selection)
    asked = [kind, metric, aggregate, rows, columns, *datasets, *algorithms]
    return dataclasses.replace(made, name=safe("-".join([experiment, *filter(None, asked)])))


def write(made: Table) -> list[Path]:
    written = [path(made.name, form) for form in FORMS]
    for file, form in zip(written, FORMS, strict=True):
        write_text(file, made.text(form))
    return written


def figure(experiment: str, kinds: Sequence[str] = (), columns: int = 2, mixed: bool = False) -> list[Path]:
    from offline_gntd.analysis import figures  # matplotlib is slow to import
    from offline_gntd.theory import figures as theory_figures

    if columns < 1:
        raise UserError(f"--columns must be at least 1, not {columns}")
    if experiment == theory.NAME:
        if kinds:
            raise UserError(f"{theory.NAME} has figures of its own: offline-gntd figure {theory.NAME}")
        drawn = theory_figures.draw(columns)
    else:
        selection = select(experiment, mixed=mixed)
        drawn = figures.draw(selection, default_measure(selection.experiment), columns, kinds)
    written = []
    for kind, made in drawn.items():
        for suffix in ("png", "pdf"):
            written.append(path(f"{experiment}-{kind}", suffix))
            with writing(written[-1]) as temporary:
                # without its date, so that the same results give the same file
                metadata = {"CreationDate": None} if suffix == "pdf" else None
                made.savefig(temporary, format=suffix, dpi=150, metadata=metadata)
        figures.close(made)
    return written


def _axes(rows: str | None, columns: str | None) -> tuple[str, str]:
    """One of them given, the other is what remains of dataset × algorithm."""
    if rows and not columns:
        columns = "algorithm" if rows == "dataset" else "dataset"
    elif columns and not rows:
        rows = "algorithm" if columns == "dataset" else "dataset"
    return rows or "dataset", columns or "algorithm"


def report(experiments: Sequence[str] = (), mixed: bool = False) -> Path:
    """One page about the experiments named, or all that have results, those of mixed data said to be."""
    from offline_gntd.analysis.report import page_of, section, theory_section

    names = experiments or [*with_results(), *([theory.NAME] if measured() else [])]
    if not names:
        raise UserError("there are no results to report on; make some with: offline-gntd quickstart")
    sections, refused = {}, []
    mixed = mixed or not experiments
    for name in names:
        try:
            sections[name] = theory_section() if name == theory.NAME else section(select(name, mixed=mixed))
        except UserError as error:
            if experiments:  # asked for by name
                raise
            refused.append(f"{name} is not shown: {error}")
    written = path("report", "html")
    write_text(written, page_of(sections, refused))
    return written
