"""offline-gntd table, figure."""

import argparse
import sys

FORMATS = ("md", "tex", "csv")


def add_commands(commands) -> None:
    command = commands.add_parser("table", help="print an experiment's table and write it to analysis/")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("--format", choices=FORMATS, default="md", help="what is printed (default md)")
    command.set_defaults(handler=table)

    command = commands.add_parser("figure", help="draw an experiment's figure into analysis/")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.set_defaults(handler=figure)


def table(args: argparse.Namespace) -> int:
    from offline_gntd.analysis import render

    table, written = render.table(args.experiment)
    print(table.text(args.format))
    print("written: " + ", ".join(map(str, written)), file=sys.stderr)
    for line in table.missing:
        print(f"missing: {line}", file=sys.stderr)
    return 1 if table.missing else 0


def figure(args: argparse.Namespace) -> None:
    from offline_gntd.analysis import render

    print("written: " + ", ".join(map(str, render.figure(args.experiment))))
