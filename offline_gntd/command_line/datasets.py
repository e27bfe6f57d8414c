"""offline-gntd datasets …"""

import argparse


def add_commands(commands) -> None:
    datasets = commands.add_parser("datasets", help="list, build and show datasets")
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
    verb.add_argument("name", metavar="NAME")
    verb.set_defaults(handler=show)


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

    print(card(load(args.name)))
