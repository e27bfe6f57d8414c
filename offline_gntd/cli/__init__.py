"""The command `offline-gntd`.

Exit codes: 0 done; 1 runs failed, a table is incomplete, or a check has warnings; 2 bad input, damaged files
or a check with errors; 130 interrupted.

Commands import the layers they need when they are called, so that --help does not import torch.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from offline_gntd import __version__, extensions
from offline_gntd.cli import analysis, bench, datasets, runs
from offline_gntd.errors import UserError, shortened


class Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see: {self.prog} --help\n")


class Command(Parser):
    """A command; all commands accept --import."""

    def __init__(self, **options):
        super().__init__(**options)
        self.add_argument(
            "--import",
            dest="imports",
            action="append",
            type=Path,
            default=argparse.SUPPRESS,  # so that a subcommand does not reset the value of its command
            metavar="FILE",
            help="a Python file that defines PRESETS or DATASETS",
        )


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="offline-gntd",
        description="Offline-RL benchmarks around Gauss-Newton temporal-difference learning.",
        epilog="datasets/, results/ and analysis/ are in $OFFLINE_GNTD_HOME (default: the current folder).",
    )
    top.add_argument("--version", action="version", version=f"offline-gntd {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Command)
    for part in (datasets, runs, analysis, bench):
        part.add_commands(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        for path in getattr(args, "imports", []):
            extensions.use(path)
        return args.handler(args) or 0
    except UserError as error:
        print(f"offline-gntd: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a name that is too long, a folder that may not be read
        where = f"cannot use {shortened(str(error.filename))}: " if error.filename else ""
        print(f"offline-gntd: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("offline-gntd: interrupted", file=sys.stderr)
        return 130
