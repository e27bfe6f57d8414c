"""offline-gntd datasets …"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_gntd.collection.discrete import ReplaySettings
    from offline_gntd.collection.splits import Size

TRAINING_OPTIONS = ("steps", "algorithm", "checkpoint_seconds")
MUJOCO_OPTIONS = ("seed", "size", *TRAINING_OPTIONS)

BUILD_COSTS = """\
costs, on one core:
  cartpole-*, acrobot-*   one to a few minutes per member; one process per core
  *-random-local          no training: --transitions 2000 takes 5 s, the default 200000 about 1 min
  other *-local splits    one training per body for all its splits. --size small: 300,000 steps, 200,000 rows
                          per split, about 25 min; --size full (D4RL's): 1,000,000 steps, 1,000,000 rows
                          (medium-expert 2,000,000), about 2 h. --steps N changes the time in proportion,
                          --transitions N only the roll-outs, about 1 min per 200,000 rows
build measures its speed and prints an estimate before it starts. A killed training continues when run again.
"""


def add_commands(commands) -> None:
    datasets = commands.add_parser(
        "datasets", help="list, build, extend, fetch, show, check and convert datasets"
    )
    verbs = datasets.add_subparsers(dest="verb", metavar="VERB", required=True)

    verb = verbs.add_parser("list", help="all datasets, and which are on this machine")
    verb.set_defaults(handler=list_datasets)

    verb = verbs.add_parser(
        "build",
        help="build datasets from scratch",
        epilog=BUILD_COSTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("names", nargs="+", metavar="NAME")
    verb.add_argument(
        "--transitions",
        type=int,
        metavar="N",
        help="rows per dataset (default: 100000, 10000 for …-small; for MuJoCo by --size)",
    )
    verb.add_argument(
        "--set",
        action="append",
        metavar="FIELD=VALUE",
        help="any other setting, such as episodes=100 or warm_up=5000; repeatable",
    )
    verb.add_argument(
        "--workers", type=int, metavar="W", help="processes (default: one per core, or per MuJoCo body)"
    )
    verb.add_argument("--force", action="store_true", help="replace a dataset built with other options")
    verb.add_argument("--format", choices=("d4rl",), help="also write a file in D4RL's v2 layout")
    discrete = verb.add_argument_group("CartPole and Acrobot", "cartpole-replay …: one dataset per seed")
    discrete.add_argument(
        "--seeds", type=int, metavar="N", help="members to build: cartpole-replay-s0 … (default: 5)"
    )
    mujoco = verb.add_argument_group(
        "MuJoCo", "hopper-medium-local …: one training per body, none for random"
    )
    mujoco.add_argument("--size", choices=("small", "full"), help="amount, see below (default: small)")
    mujoco.add_argument(
        "--steps", type=int, metavar="N", help="environment steps of the training (default: by --size)"
    )
    mujoco.add_argument("--algorithm", metavar="A", help="td3_bc or gntd3_bc (default: td3_bc)")
    mujoco.add_argument("--seed", type=int, metavar="S", help="random seed (default: 0)")
    mujoco.add_argument(
        "--checkpoint-seconds", type=float, metavar="S", help="time between checkpoints (default: 60)"
    )
    verb.set_defaults(handler=build)

    verb = verbs.add_parser("show", help="size, returns, reference scores and provenance of a dataset")
    _add_source(verb)
    verb.set_defaults(handler=show)

    verb = verbs.add_parser(
        "check", help="report what is wrong with a dataset (exit code 0 sound, 1 warnings, 2 unusable)"
    )
    _add_source(verb)
    verb.add_argument("--json", action="store_true", help="print the report as JSON")
    verb.set_defaults(handler=check)

    verb = verbs.add_parser("fetch", help="download and verify a D4RL file or a Minari dataset")
    verb.add_argument("name", metavar="NAME")
    verb.add_argument("--from-file", type=Path, metavar="F", help="a D4RL file that you downloaded by hand")
    verb.set_defaults(handler=fetch)

    verb = verbs.add_parser("convert", help="convert a D4RL file to a Minari dataset, or the reverse")
    _add_source(verb)
    verb.add_argument("--format", choices=("minari", "d4rl"), required=True, help="the format to write")
    verb.add_argument("--force", action="store_true", help="replace an existing result")
    verb.set_defaults(handler=convert)

    verb = verbs.add_parser("extend", help="add rows by rolling out the policy stored in a D4RL file")
    verb.add_argument("name", metavar="FILE")
    verb.add_argument(
        "--transitions", type=int, default=200_000, metavar="N", help="new rows (default: 200000)"
    )
    verb.add_argument("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
    _add_env(verb)
    verb.add_argument("--force", action="store_true", help="replace an existing result")
    verb.set_defaults(handler=extend)


def _add_source(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME_OR_FILE")
    _add_env(verb)
    verb.add_argument(
        "--episode-limit", type=int, metavar="N", help="longest episode, for a file without timeouts"
    )


def _add_env(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--env",
        metavar="E",
        help="environment of a file that does not name it: hopper, Hopper-v5, module:Env-v0 …",
    )


def list_datasets(args: argparse.Namespace) -> None:
    from offline_gntd.datasets.describe import listing

    print(listing())


def build(args: argparse.Namespace) -> None:
    from offline_gntd import processes
    from offline_gntd.collection import builders
    from offline_gntd.datasets import built_datasets
    from offline_gntd.datasets.describe import headline
    from offline_gntd.datasets.loading import convert

    processes.prepare()
    for name in args.names:
        built_datasets.task_of(name)  # raises UserError before anything is built
    discrete = [name for name in args.names if built_datasets.family_of(name)]
    mujoco = [name for name in args.names if name not in discrete]
    _check_options(args, discrete, mujoco)
    for name in mujoco:  # raises UserError before anything is built
        builders.spec_of(name, _size(args), args.seed or 0)
    seeds = built_datasets.DEFAULT_SEEDS if args.seeds is None else args.seeds
    if discrete:
        settings = {name: _replay_settings(args, name) for name in builders.members_of(discrete, seeds)}
        builders.build_discrete(discrete, settings.__getitem__, seeds, args.force, args.workers)
    if mujoco:
        pause = {} if args.checkpoint_seconds is None else {"checkpoint_seconds": args.checkpoint_seconds}
        builders.build_splits(mujoco, _size(args), args.seed or 0, args.force, args.workers, **pause)
    for name in builders.members_of(args.names, seeds):
        print(headline(built_datasets.load(name)))
        if args.format:
            print(convert(name, args.format, replace=True))


def _check_options(args: argparse.Namespace, discrete: list[str], mujoco: list[str]) -> None:
    """Raise UserError for options that apply to none of the named datasets, or to two kinds differently."""
    from offline_gntd.collection.splits import LOCAL_SPLITS
    from offline_gntd.datasets import built_datasets
    from offline_gntd.errors import UserError

    trained = any(LOCAL_SPLITS[name].trained for name in mujoco)
    for option in MUJOCO_OPTIONS:
        needed = trained if option in TRAINING_OPTIONS else mujoco
        if getattr(args, option) is not None and not needed:
            kind = "splits that need a training" if mujoco else "MuJoCo datasets such as hopper-medium-local"
            flag = f"--{option.replace('_', '-')}"
            raise UserError(f"{flag} applies only to {kind}, not to {args.names[0]}")
    if args.seeds is not None and not any(name in built_datasets.FAMILIES for name in discrete):
        raise UserError(f"--seeds applies only to families such as cartpole-replay, not to {args.names[0]}")
    if args.set and discrete and mujoco:
        raise UserError(
            "--set has different fields for discrete and for MuJoCo datasets; use one command for each"
        )


def _replay_settings(args: argparse.Namespace, name: str) -> "ReplaySettings":
    """The settings of a discrete dataset, with --transitions and --set."""
    import dataclasses

    from offline_gntd.collection.discrete import default_settings

    settings = default_settings(name)
    if args.transitions is not None:
        settings = dataclasses.replace(settings, transitions=args.transitions)
    return _with_settings(settings, args.set)


def _size(args: argparse.Namespace) -> "Size":
    """The size of MuJoCo datasets, with --size, --transitions, --steps, --algorithm and --set."""
    import dataclasses

    from offline_gntd.collection.splits import SIZES

    size = SIZES[args.size or "small"]
    if args.transitions is not None:
        size = size.of_rows(args.transitions)
    fields = {"steps": args.steps, "algorithm": args.algorithm}
    training = dataclasses.replace(size.training, **{k: v for k, v in fields.items() if v is not None})
    return dataclasses.replace(size, training=_with_settings(training, args.set))


def _with_settings(config: Any, settings: list[str] | None) -> Any:
    """A config with the fields of --set FIELD=VALUE replaced."""
    from offline_gntd.configuration import replace
    from offline_gntd.errors import UserError

    for setting in settings or ():
        field, separator, value = setting.partition("=")
        if not separator:
            raise UserError(f"--set takes FIELD=VALUE, not {setting!r}")
        config = replace(config, field, value)
    return config


def show(args: argparse.Namespace) -> None:
    from offline_gntd.datasets import load
    from offline_gntd.datasets.describe import describe

    print(describe(load(args.name, args.env, args.episode_limit)))


def check(args: argparse.Namespace) -> int:
    import json

    from offline_gntd.datasets.check import check
    from offline_gntd.datasets.describe import report_text

    report = check(args.name, args.env, args.episode_limit)
    if args.json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(report_text(report))
    return report.exit_code


def fetch(args: argparse.Namespace) -> None:
    from offline_gntd.datasets.download import fetch

    print(fetch(args.name, args.from_file))


def convert(args: argparse.Namespace) -> None:
    from offline_gntd.datasets.loading import convert

    print(convert(args.name, args.format, args.env, args.episode_limit, args.force))


def extend(args: argparse.Namespace) -> None:
    from offline_gntd import processes
    from offline_gntd.collection.extend import extend

    processes.prepare()
    print(extend(args.name, args.transitions, args.seed, args.env, args.force))
