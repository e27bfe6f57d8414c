"""offline-gntd table, figure, explain, report."""

import argparse
import json
import sys

from offline_gntd.analysis import FIGURES, TABLES
from offline_gntd.errors import UserError
from offline_gntd.files import listing

FORMATS = ("md", "tex", "csv", "html")  # as in analysis/table.py, which is slow to import
MOST_MISSING = 10  # missing runs that are listed


def add_commands(commands) -> None:
    command = commands.add_parser("table", help="print an experiment's table and write it to analysis/")
    add = command.add_argument
    add("experiment", metavar="EXPERIMENT")
    add("--format", choices=FORMATS, default="md", help="of the printed table (default: md)")
    kinds = "; ".join(f"{name}: {kind.title}" for name, kind in TABLES.items()).replace("%", "%%")
    add("--kind", choices=TABLES, help=f"default: the kind that the experiment names. {kinds}")
    add("--metric", metavar="M", help="a column of the results: score, return, td_error_abs_target, …")
    aggregate = "of a run's evaluations: last, best, or final-N (mean of the last N)"
    add("--aggregate", metavar="A", help=aggregate)
    add("--rows", metavar="AXIS", help="dataset, algorithm, preset, or a setting such as kfac.damping")
    add("--columns", metavar="AXIS", help="the same choices as for --rows")
    add("--datasets", nargs="+", default=[], metavar="D", help="only these datasets")
    add("--without", nargs="+", default=[], metavar="D", help="leave out these datasets")
    add("--algorithms", nargs="+", default=[], metavar="A", help="only these algorithms")
    _add_mixed(command)
    command.set_defaults(handler=table)

    command = commands.add_parser("figure", help="draw an experiment's figures into analysis/")
    add = command.add_argument
    add("experiment", metavar="EXPERIMENT")
    add("--kind", nargs="+", choices=FIGURES, default=[], help="only these (default: all)")
    add("--columns", type=int, default=2, metavar="N", help="panels per row (default: 2)")
    _add_mixed(command)
    command.set_defaults(handler=figure)

    command = commands.add_parser("explain", help="show the runs, data and commands behind a cell of a table")
    add = command.add_argument
    add("experiment", metavar="EXPERIMENT")
    add("dataset", metavar="DATASET")
    add("algorithm", metavar="ALGORITHM", help="its name, or its label in the table")
    add("--json", action="store_true", help="machine-readable output")
    command.set_defaults(handler=explain)

    command = commands.add_parser("report", help="write all tables and figures to analysis/report.html")
    command.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="default: all with results")
    _add_mixed(command)
    command.set_defaults(handler=report)


def _add_mixed(command: argparse.ArgumentParser) -> None:
    mixed = "show datasets of several origins or versions in one table; the caption says so"
    command.add_argument("--allow-mixed-data", action="store_true", help=mixed)


def table(args: argparse.Namespace) -> int:
    from offline_gntd.analysis import render

    names = ["experiment", "kind", "metric", "aggregate", "rows", "columns", "datasets", "algorithms"]
    names += ["without", "allow_mixed_data"]
    rendered = render.table(**{name: getattr(args, name) for name in names})
    print(rendered.text(args.format), flush=True)  # first, since the folder may be read-only
    print(f"written to {listing(render.write(rendered))}", file=sys.stderr)
    for run in rendered.missing[:MOST_MISSING]:
        print(f"missing: {run}", file=sys.stderr)
    if (more := len(rendered.missing) - MOST_MISSING) > 0:
        print(f"missing: {more} more; see offline-gntd status {args.experiment}", file=sys.stderr)
    return 1 if rendered.missing else 0


def figure(args: argparse.Namespace) -> None:
    from offline_gntd.analysis import render

    written = render.figure(args.experiment, args.kind, args.columns, args.allow_mixed_data)
    print(f"written to {listing(written)}")


def explain(args: argparse.Namespace) -> None:
    from offline_gntd.analysis.explain import explain
    from offline_gntd.analysis.render import THEORY

    if args.experiment == THEORY:
        raise UserError(f"{THEORY} has measurements and no runs; see: offline-gntd table {THEORY}")
    explanation = explain(args.experiment, args.dataset, args.algorithm)
    if args.json:
        print(json.dumps(explanation.to_dict(), indent=2, ensure_ascii=False))
    else:
        print(explanation.text())


def report(args: argparse.Namespace) -> None:
    from offline_gntd.analysis import render

    print(f"written: {render.report(args.experiments, args.allow_mixed_data)}")
