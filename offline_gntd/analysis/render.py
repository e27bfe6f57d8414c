"""Only here does analysis touch the disk: tables, figures and the report, written to analysis/."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from offline_gntd.analysis import aggregates, bellman, grid, pairwise, versus_published
from offline_gntd.analysis.grid import Layout
from offline_gntd.analysis.selection import Selection, select
from offline_gntd.analysis.table import FORMS, Table
from offline_gntd.analysis.values import Measure
from offline_gntd.datasets.names import safe
from offline_gntd.errors import UserError, unknown
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
TABLE1 = ("table1", "quickstart")  # shown as the paper's Table 1; table2 and others as grids of scores
FIGURE1 = "figure1"  # shown as one algorithm against the other
FINAL = {"table2": "final-10", FIGURE1: "final-4"}  # table2's is the paper's; others show the last evaluation
METRIC = {FIGURE1: "return"}  # as in the paper; of others the score


def path(name: str, suffix: str) -> Path:
    return home() / "analysis" / f"{name}.{suffix}"


def usual(experiment: str) -> Measure:
    """How the runs of an experiment, or of a version of it (table2-v2), are read unless said otherwise."""
    family = experiment.partition("-")[0]
    return Measure(METRIC.get(family, "score"), FINAL.get(family, "last"))


def main_table(selection: Selection) -> Table:
    if selection.experiment.name.partition("-")[0] in TABLE1:
        return bellman.table(selection)
    if selection.experiment.name == FIGURE1 and len(selection.experiment.algorithms) > 1:
        return pairwise.table(selection, usual(FIGURE1))
    return grid.table(selection, usual(selection.experiment.name))


def table(
    experiment: str,
    kind: str | None = None,
    metric: str | None = None,
    protocol: str | None = None,
    rows: str | None = None,
    columns: str | None = None,
    datasets: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    mixed: bool = False,
) -> Table:
    """An experiment's own table, one of the other kinds, or a grid laid out as asked for."""
    if experiment == theory.NAME:
        if any((kind, metric, protocol, rows, columns, datasets, algorithms)):
            raise UserError(f"{theory.NAME} has one table, without options: offline-gntd table {theory.NAME}")
        return theory.table()
    layout = Layout(*_axes(rows, columns))
    measure = Measure(metric or usual(experiment).metric, protocol or usual(experiment).protocol)
    if kind is not None and kind not in KINDS:
        raise unknown("kind of table", kind, KINDS)
    if kind and (rows or columns):
        raise UserError(f"--rows and --columns lay out a grid, not the {kind} table")
    if kind and metric and kind != "duels":
        raise UserError(f"--metric is for grids and duels; the {kind} table is of scores")
    selection = select(experiment, datasets, algorithms, mixed)
    if kind:
        made = KINDS[kind](selection, measure)
    elif metric or protocol or rows or columns:
        made = grid.table(selection, measure, layout)
    else:
        made = main_table(selection)
    asked = [kind, metric, protocol, rows, columns, *datasets, *algorithms]
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
        drawn = figures.draw(select(experiment, mixed=mixed), usual(experiment), columns, kinds)
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
