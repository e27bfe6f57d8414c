"""Make tables, figures and the report from results/, and write them to analysis/."""

import dataclasses
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from offline_gntd.analysis import FIGURES, TABLES, Kind, scores
from offline_gntd.analysis.selection import Measure, Selection, select
from offline_gntd.analysis.table import FORMATS, Table
from offline_gntd.errors import UserError, unknown
from offline_gntd.experiments import definitions
from offline_gntd.files import home, safe_name, write_text, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEORY = "theory"  # an experiment of measurements, with tables and figures of its own


def path(name: str, suffix: str) -> Path:
    return home() / "analysis" / f"{name}.{suffix}"


def function_of(kind: Kind) -> Callable:
    module, _, function = kind.function.partition(":")
    return getattr(import_module(f"offline_gntd.analysis.{module}"), function)


def make(
    selection: Selection,
    kind: str | None = None,
    measure: Measure | None = None,
    layout: scores.Layout | None = None,
) -> Table:
    """A table of the given kind; kind and measure are those of the experiment unless given.

    layout  of rows and columns, for the kind `scores` only"""
    experiment = selection.experiment
    one_algorithm = len(experiment.algorithms) == 1
    usual = "scores" if experiment.table.kind == "pairwise" and one_algorithm else experiment.table.kind
    function = function_of(TABLES[kind or usual])
    options = {} if layout is None else {"layout": layout}
    return dataclasses.replace(
        function(selection, measure or selection.measure, **options),
        name="-".join(filter(None, (experiment.name, kind))),
        missing=selection.missing,
        notes=selection.notes,
        protocol=selection.protocol,
    )


def table(
    experiment: str,
    kind: str | None = None,
    metric: str | None = None,
    aggregate: str | None = None,
    rows: str | None = None,
    columns: str | None = None,
    datasets: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    without: Sequence[str] = (),
    allow_mixed_data: bool = False,
) -> Table:
    """The experiment's own table, or the one that the arguments ask for."""
    if experiment == THEORY:
        if any((kind, metric, aggregate, rows, columns, datasets, algorithms, without)):
            raise UserError(f"{THEORY} has one table, without options: offline-gntd table {THEORY}")
        from offline_gntd.theory import tables as theory

        return theory.table()
    if kind is not None and kind not in TABLES:
        raise unknown("kind of table", kind, TABLES)
    if kind not in (None, "scores") and (rows or columns):
        raise UserError(f"--rows and --columns apply to --kind scores, not to --kind {kind}")
    if kind and metric and not TABLES[kind].metric:
        with_metric = " and ".join(name for name, each in TABLES.items() if each.metric)
        raise UserError(f"--metric applies to --kind {with_metric}, not to --kind {kind}")
    usual = definitions.find(experiment).table
    measure = Measure(metric or usual.metric, aggregate or usual.aggregate)
    layout = scores.Layout(*_axes(rows, columns)) if rows or columns else None
    selection = select(experiment, datasets, algorithms, without, allow_mixed_data)
    parts = [experiment, kind, metric, aggregate, rows, columns, *datasets, *algorithms]
    parts += ["without", *without] if without else []
    asked = metric or aggregate or rows or columns
    made = make(selection, kind or ("scores" if asked else None), measure, layout)
    return dataclasses.replace(made, name=safe_name("-".join(filter(None, parts))))


def _axes(rows: str | None, columns: str | None) -> tuple[str, str]:
    """If only one is given, the other is dataset, or algorithm if that is taken."""
    if rows and not columns:
        columns = "algorithm" if rows == "dataset" else "dataset"
    elif columns and not rows:
        rows = "algorithm" if columns == "dataset" else "dataset"
    return rows or "dataset", columns or "algorithm"


def write(made: Table) -> list[Path]:
    written = [path(made.name, form) for form in FORMATS]
    for file, form in zip(written, FORMATS, strict=True):
        write_text(file, made.text(form))
    return written


def draw(selection: Selection, kind: str, columns: int) -> "Figure":
    """A figure of the given kind; raises UserError if the runs have no data for it."""
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    made = function_of(FIGURES[kind])(selection, selection.measure, columns)
    if made is None:
        raise UserError(f"the runs of {selection.experiment.name} have no data for the figure {kind!r}")
    return made


def figure(
    experiment: str, kinds: Sequence[str] = (), columns: int = 2, allow_mixed_data: bool = False
) -> list[Path]:
    """Write an experiment's figures as PNG and PDF: the given kinds, or all that its runs have data for."""
    from matplotlib import pyplot  # slow to import

    if columns < 1:
        raise UserError(f"--columns must be at least 1, not {columns}")
    if experiment == THEORY:
        from offline_gntd.theory import figures as theory_figures

        if kinds:
            raise UserError(f"{THEORY} has its own figures, without --kind: offline-gntd figure {THEORY}")
        drawn = theory_figures.draw(columns)
    else:
        selection, drawn = select(experiment, allow_mixed_data=allow_mixed_data), {}
        for kind in kinds or FIGURES:
            try:
                drawn[kind] = draw(selection, kind, columns)
            except UserError:
                if kinds:  # named by the user
                    raise
    written = []
    for kind, made in drawn.items():
        for suffix in ("png", "pdf"):
            written.append(path(f"{experiment}-{kind}", suffix))
            with writing(written[-1]) as temporary:
                # no date, so that the same results give the same file
                metadata = {"CreationDate": None} if suffix == "pdf" else None
                made.savefig(temporary, format=suffix, dpi=150, metadata=metadata)
        pyplot.close(made)
    return written


def report(experiments: Sequence[str] = (), allow_mixed_data: bool = False) -> Path:
    """One HTML page about the given experiments, or about all that have results."""
    from offline_gntd.analysis import report as page
    from offline_gntd.theory.runner import finished as theory_is_measured

    names = experiments or [*definitions.with_results(), *([THEORY] if theory_is_measured() else [])]
    if not names:
        raise UserError("there are no results to report on; make some with: offline-gntd quickstart")
    sections, refused = [], []
    for name in names:
        try:
            if name == THEORY:
                sections.append(page.theory_section())
            else:
                sections.append(
                    page.section(select(name, allow_mixed_data=allow_mixed_data or not experiments))
                )
        except UserError as error:
            if experiments:  # named by the user
                raise
            refused.append(f"{name} is not shown: {error}")
    written = path("report", "html")
    write_text(written, page.page_of(sections, refused))
    return written
