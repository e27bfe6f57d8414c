"""offline-gntd datasets …"""

import argparse
from pathlib import Path


def add_commands(commands) -> None:
    datasets = commands.add_parser("datasets", help="list, build, fetch, show, check and convert datasets")
    verbs = datasets.add_subparsers(dest="verb", metavar="VERB", required=True)

    verb = verbs.add_parser("list", help="every dataset there is, and which are here")
    verb.set_defaults(handler=list_datasets)

    verb = verbs.add_parser("build", help="build datasets from scratch")
    verb.add_argument("names", nargs="+", metavar="NAME")
    verb.add_argument("--transitions", type=int, metavar="N", help="rows per dataset (default: by its name)")
    verb.add_argument("--seed", type=int, default=0, metavar="S")
    verb.add_argument("--force", action="store_true", help="replace a dataset built with other options")
    verb.set_defaults(handler=build)

    verb = verbs.add_parser("show", help="a dataset's card: size, returns, references, provenance")
    _add_source(verb)
    verb.set_defaults(handler=show)

    verb = verbs.add_parser(
        "check", help="say what is wrong with a dataset (exit code 0 sound, 1 warnings, 2 unusable)"
    )
    _add_source(verb)
    verb.add_argument("--json", action="store_true", help="the report for a program to read")
    verb.set_defaults(handler=check)

    verb = verbs.add_parser("fetch", help="get a D4RL file or a Minari dataset, verified")
    verb.add_argument("name", metavar="NAME")
    verb.add_argument("--from-file", type=Path, metavar="F", help="a D4RL file that was fetched by hand")
    verb.set_defaults(handler=fetch)

    verb = verbs.add_parser("convert", help="write a D4RL file as a Minari dataset, or the other way round")
    _add_source(verb)
    verb.add_argument("--format", choices=("minari", "d4rl"), required=True, help="what to write")
    verb.add_argument("--force", action="store_true", help="replace what is there")
    verb.set_defaults(handler=convert)


def _add_source(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME_OR_FILE")
    verb.add_argument("--env", metavar="E", help="what a file that does not say it was recorded in: hopper …")
    verb.add_argument("--episode-limit", type=int, metavar="N", help="steps, for a file without timeouts")


def list_datasets(args: argparse.Namespace) -> None:
    from offline_gntd.datasets.cards import listing

    print(listing())


def build(args: argparse.Namespace) -> None:
    import torch

    from offline_gntd.datasets.cards import headline
    from offline_gntd.datasets.discrete import build, recipe_of

    torch.set_num_threads(1)  # networks this small lose by more
    for name in args.names:
        recipe_of(name)  # a wrong name stops before anything is built
    for name in args.names:
        print(headline(build(name, args.transitions, args.seed, args.force)))


def show(args: argparse.Namespace) -> None:
    from offline_gntd.datasets import load
    from offline_gntd.datasets.cards import card

    print(card(load(args.name, args.env, args.episode_limit)))


def check(args: argparse.Namespace) -> int:
    import json

    from offline_gntd.datasets.cards import diagnosis
    from offline_gntd.datasets.check import check

    report = check(args.name, args.env, args.episode_limit)
    if args.json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(diagnosis(report))
    return report.exit_code


def fetch(args: argparse.Namespace) -> None:
    from offline_gntd.datasets.exchange import fetch

    print(fetch(args.name, args.from_file))


def convert(args: argparse.Namespace) -> None:
    from offline_gntd.datasets.exchange import convert

    print(convert(args.name, args.format, args.env, args.episode_limit, args.force))
