"""offline-gntd table, figure, explain, report."""

import argparse
import sys

FORMATS = ("md", "tex", "csv", "html")
KINDS = ("statistics", "improvement", "published", "duels")
FIGURES = ("updates", "seconds", "bellman", "profiles", "efficiency", "kfac")


def add_commands(commands) -> None:
    command = commands.add_parser("table", help="print an experiment's table and write it to analysis/")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("--format", choices=FORMATS, default="md", help="what is printed (default md)")
    command.add_argument(
        "--kind",
        choices=KINDS,
        help="instead of the main table: aggregates, who beats whom, published numbers beside, differences",
    )
    command.add_argument(
        "--metric", metavar="M", help="a column of the results: score, return, bellman_error …"
    )
    command.add_argument(
        "--aggregate",
        metavar="A",
        help="of a run's evaluations: last, best, or final-N for the mean of the last N",
    )
    command.add_argument(
        "--rows", metavar="AXIS", help="dataset, algorithm, preset, or a field: kfac.damping"
    )
    command.add_argument("--columns", metavar="AXIS")
    command.add_argument("--datasets", nargs="+", default=[], metavar="D", help="only these")
    command.add_argument("--algorithms", nargs="+", default=[], metavar="A", help="only these")
    _add_mixed(command)
    command.set_defaults(handler=table)

    command = commands.add_parser("figure", help="draw an experiment's figures into analysis/")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("--kind", nargs="+", choices=FIGURES, default=[], help="only these (default: all)")
    command.add_argument("--columns", type=int, default=2, metavar="N", help="panels abreast (default 2)")
    _add_mixed(command)
    command.set_defaults(handler=figure)

    command = commands.add_parser(
        "explain", help="where a table's cell comes from: its runs, data and command"
    )
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("dataset", metavar="DATASET")
    command.add_argument("algorithm", metavar="ALGORITHM", help="its name, or its label in the table")
    command.add_argument("--json", action="store_true", help="for a program to read")
    command.set_defaults(handler=explain)

    command = commands.add_parser("report", help="everything in one HTML page, analysis/report.html")
    command.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="default: all with results")
    _add_mixed(command)
    command.set_defaults(handler=report)


def _add_mixed(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--mixed", action="store_true", help="allow data of several origins or versions; the caption says so"
    )


def table(args: argparse.Namespace) -> int:
    from offline_gntd.analysis import render

    table = render.table(
        args.experiment,
        args.kind,
        args.metric,
        args.aggregate,
        args.rows,
        args.columns,
        args.datasets,
        args.algorithms,
        args.mixed,
    )
    print(table.text(args.format), flush=True)  # before it is written: it can be read where nothing can be
    print("written: " + ", ".join(map(str, render.write(table))), file=sys.stderr)
    for run in table.missing:
        print(f"missing: {run}", file=sys.stderr)
    return 1 if table.missing else 0


def figure(args: argparse.Namespace) -> None:
    from offline_gntd.analysis import render

    written = render.figure(args.experiment, args.kind, args.columns, args.mixed)
    print("written: " + ", ".join(map(str, written)))


def explain(args: argparse.Namespace) -> None:
    import json

    from offline_gntd.analysis.explain import explain
    from offline_gntd.errors import UserError
    from offline_gntd.theory import runner

    if args.experiment == runner.NAME:
        raise UserError(f"{runner.NAME} has measurements, not runs: offline-gntd table {runner.NAME}")
    explanation = explain(args.experiment, args.dataset, args.algorithm)
    if args.json:
        print(json.dumps(explanation.to_dict(), indent=2, ensure_ascii=False))
    else:
        print(explanation.text())


def report(args: argparse.Namespace) -> None:
    from offline_gntd.analysis import render

    print(f"written: {render.report(args.experiments, args.mixed)}")
