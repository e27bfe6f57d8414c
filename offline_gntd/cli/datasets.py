"""offline-gntd datasets …"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_gntd.collection.discrete import Recipe
    from offline_gntd.collection.splits import Size

TRAINING_OPTIONS = ("steps", "algorithm", "checkpoint_seconds")
MUJOCO_OPTIONS = ("seed", "size", *TRAINING_OPTIONS)


def add_commands(commands) -> None:
    datasets = commands.add_parser(
        "datasets", help="list, build, extend, fetch, show, check and convert datasets"
    )
    verbs = datasets.add_subparsers(dest="verb", metavar="VERB", required=True)

    verb = verbs.add_parser("list", help="every dataset there is, and which are here")
    verb.set_defaults(handler=list_datasets)

    verb = verbs.add_parser("build", help="build datasets from scratch")
    verb.add_argument("names", nargs="+", metavar="NAME")
    verb.add_argument("--transitions", type=int, metavar="N", help="rows per dataset (default: by its name)")
    verb.add_argument(
        "--set", action="append", metavar="FIELD=VALUE", help="episodes=100, warm_up=5000 …; may be repeated"
    )
    verb.add_argument("--workers", type=int, metavar="W", help="processes (default: one per core or body)")
    verb.add_argument("--force", action="store_true", help="replace a dataset built with other options")
    verb.add_argument("--format", choices=("d4rl",), help="write a file in D4RL's v2 layout as well")
    discrete = verb.add_argument_group("discrete families", "cartpole-replay …: one dataset for each seed")
    discrete.add_argument(
        "--seeds", type=int, metavar="N", help="members to build: cartpole-replay-s0 … (default: 5)"
    )
    mujoco = verb.add_argument_group(
        "MuJoCo splits", "hopper-medium-local …: one training per body; none for random"
    )
    mujoco.add_argument("--size", choices=("small", "full"), help="full: D4RL's (default: small)")
    mujoco.add_argument("--steps", type=int, metavar="N", help="of the environment, to train for")
    mujoco.add_argument("--algorithm", metavar="A", help="td3_bc, or gntd3_bc for Gauss-Newton critics")
    mujoco.add_argument("--seed", type=int, metavar="S", help="of the training (default: 0)")
    mujoco.add_argument("--checkpoint-seconds", type=float, metavar="S", help="default: 60")
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

    verb = verbs.add_parser("extend", help="more rows by the behaviour policy that a D4RL file stores")
    verb.add_argument("name", metavar="FILE")
    verb.add_argument(
        "--transitions", type=int, default=200_000, metavar="N", help="new rows (default: 200000)"
    )
    verb.add_argument("--seed", type=int, default=0, metavar="S")
    verb.add_argument("--env", metavar="E", help="what a file that does not say it was recorded in: hopper …")
    verb.add_argument("--force", action="store_true", help="replace what is there")
    verb.set_defaults(handler=extend)


def _add_source(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME_OR_FILE")
    verb.add_argument("--env", metavar="E", help="what a file that does not say it was recorded in: hopper …")
    verb.add_argument("--episode-limit", type=int, metavar="N", help="steps, for a file without timeouts")


def list_datasets(args: argparse.Namespace) -> None:
    from offline_gntd.datasets.describe import listing

    print(listing())


def build(args: argparse.Namespace) -> None:
    from offline_gntd import processes
    from offline_gntd.collection import builders
    from offline_gntd.datasets import built_datasets
    from offline_gntd.datasets.describe import headline
    from offline_gntd.datasets.exchange import convert

    processes.prepare()
    for name in args.names:
        built_datasets.task_of(name)  # a wrong name stops before anything is built
    discrete = [name for name in args.names if built_datasets.family_of(name)]
    mujoco = [name for name in args.names if name not in discrete]
    _check_options(args, discrete, mujoco)
    seeds = built_datasets.DEFAULT_SEEDS if args.seeds is None else args.seeds
    if discrete:
        recipes = {name: _recipe(args, name) for name in builders.members_of(discrete, seeds)}
        builders.build_discrete(discrete, recipes.__getitem__, seeds, args.force, args.workers)
    if mujoco:
        pause = {} if args.checkpoint_seconds is None else {"checkpoint_seconds": args.checkpoint_seconds}
        builders.build_splits(mujoco, _size(args), args.seed or 0, args.force, args.workers, **pause)
    for name in builders.members_of(args.names, seeds):
        print(headline(built_datasets.load(name)))
        if args.format:
            print(convert(name, args.format, replace=True))


def _check_options(args: argparse.Namespace, discrete: list[str], mujoco: list[str]) -> None:
    """Refuse options that apply to none of the named datasets, or differently to two kinds of them."""
    from offline_gntd.collection.splits import RECIPES
    from offline_gntd.datasets import built_datasets
    from offline_gntd.errors import UserError

    for option in MUJOCO_OPTIONS:
        if getattr(args, option) is not None and not mujoco:
            words = (
                f"--{option.replace('_', '-')} applies only to MuJoCo datasets such as hopper-medium-local"
            )
            raise UserError(f"{words}, not to {args.names[0]}")
    trained = any(RECIPES[name].trained for name in mujoco)
    for option in TRAINING_OPTIONS:
        if getattr(args, option) is not None and not trained:
            words = f"--{option.replace('_', '-')} applies only to splits that need a training"
            raise UserError(f"{words}, not to {mujoco[0]}")
    if args.seeds is not None and not any(name in built_datasets.FAMILIES for name in discrete):
        raise UserError(f"--seeds applies only to families such as cartpole-replay, not to {args.names[0]}")
    if args.set and discrete and mujoco:
        raise UserError("--set has other fields for discrete than for MuJoCo datasets; build them apart")


def _recipe(args: argparse.Namespace, name: str) -> "Recipe":
    """The recipe of a discrete dataset with --transitions and --set."""
    import dataclasses

    from offline_gntd.collection.discrete import recipe_of

    recipe = recipe_of(name)
    if args.transitions is not None:
        recipe = dataclasses.replace(recipe, transitions=args.transitions)
    return _with_settings(recipe, args.set)


def _size(args: argparse.Namespace) -> "Size":
    """The amount to build of MuJoCo datasets, by --size, --transitions, --steps, --algorithm and --set."""
    import dataclasses

    from offline_gntd.collection.splits import SIZES

    size = SIZES[args.size or "small"]
    if args.transitions is not None:
        size = size.of_rows(args.transitions)
    fields = {"steps": args.steps, "algorithm": args.algorithm}
    practice = dataclasses.replace(size.practice, **{k: v for k, v in fields.items() if v is not None})
    return dataclasses.replace(size, practice=_with_settings(practice, args.set))


def _with_settings(config: Any, settings: list[str] | None) -> Any:
    """The settings changed by --set FIELD=VALUE."""
    from offline_gntd.configuration import replace
    from offline_gntd.errors import UserError

    for setting in settings or ():
        field, separator, value = setting.partition("=")
        if not separator:
            raise UserError(f"--set takes field=value, not {setting!r}")
        config = replace(config, field, value)
    return config


def show(args: argparse.Namespace) -> None:
    from offline_gntd.datasets import load
    from offline_gntd.datasets.describe import card

    print(card(load(args.name, args.env, args.episode_limit)))


def check(args: argparse.Namespace) -> int:
    import json

    from offline_gntd.datasets.check import check
    from offline_gntd.datasets.describe import diagnosis

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


def extend(args: argparse.Namespace) -> None:
    from offline_gntd import processes
    from offline_gntd.collection.extend import extend

    processes.prepare()
    print(extend(args.name, args.transitions, args.seed, args.env, args.force))
