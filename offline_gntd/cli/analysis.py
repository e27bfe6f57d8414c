"""offline-gntd table, figure, explain, report."""

import argparse
import sys

from offline_gntd.analysis import FIGURES, TABLES
from offline_gntd.files import listing

FORMATS = ("md", "tex", "csv", "html")


def add_commands(commands) -> None:
    command = commands.add_parser("table", help="print an experiment's table and write it to analysis/")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("--format", choices=FORMATS, default="md", help="of the printed table (default md)")
    kinds = "; ".join(f"{name}: {kind.title}" for name, kind in TABLES.items())
    command.add_argument(
        "--kind", choices=TABLES, help=f"default: the experiment's own. {kinds}".replace("%", "%%")
    )
    command.add_argument(
        "--metric", metavar="M", help="a column of the results: score, return, td_error_abs_target, …"
    )
    command.add_argument(
        "--aggregate", metavar="A", help="of a run's evaluations: last, best, or final-N (mean of the last N)"
    )
    command.add_argument(
        "--rows", metavar="AXIS", help="dataset, algorithm, preset, or a setting such as kfac.damping"
    )
    command.add_argument("--columns", metavar="AXIS", help="the same choices as for --rows")
    command.add_argument("--datasets", nargs="+", default=[], metavar="D", help="only these datasets")
    command.add_argument("--without", nargs="+", default=[], metavar="D", help="leave out these datasets")
    command.add_argument("--algorithms", nargs="+", default=[], metavar="A", help="only these algorithms")
    _add_mixed(command)
    command.set_defaults(handler=table)

    command = commands.add_parser("figure", help="draw an experiment's figures into analysis/")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("--kind", nargs="+", choices=FIGURES, default=[], help="only these (default: all)")
    command.add_argument("--columns", type=int, default=2, metavar="N", help="panels per row (default 2)")
    _add_mixed(command)
    command.set_defaults(handler=figure)

    command = commands.add_parser("explain", help="show the runs, data and commands behind a cell of a table")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("dataset", metavar="DATASET")
    command.add_argument("algorithm", metavar="ALGORITHM", help="its name, or its label in the table")
    command.add_argument("--json", action="store_true", help="machine-readable output")
    command.set_defaults(handler=explain)

    command = commands.add_parser("report", help="write one HTML page with everything, analysis/report.html")
    command.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="default: all with results")
    _add_mixed(command)
    command.set_defaults(handler=report)


def _add_mixed(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--allow-mixed-data",
        action="store_true",
        help="show datasets of several origins or versions in one table; the caption says so",
    )


def table(args: argparse.Namespace) -> int:
    from offline_gntd.analysis import render

    names = ["experiment", "kind", "metric", "aggregate", "rows", "columns", "datasets", "algorithms"]
    names += ["without", "allow_mixed_data"]
    made = render.table(**{name: getattr(args, name) for name in names})
    print(made.text(args.format), flush=True)  # before it is written: the folder may be read-only
    print(f"written to {listing(render.write(made))}", file=sys.stderr)
    for run in made.missing:
        print(f"missing: {run}", file=sys.stderr)
    return 1 if made.missing else 0


def figure(args: argparse.Namespace) -> None:
    from offline_gntd.analysis import render

    written = render.figure(args.experiment, args.kind, args.columns, args.allow_mixed_data)
    print(f"written to {listing(written)}")


def explain(args: argparse.Namespace) -> None:
    import json

    from offline_gntd.analysis.explain import explain
    from offline_gntd.analysis.render import THEORY
    from offline_gntd.errors import UserError

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
