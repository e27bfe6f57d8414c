"""offline-gntd run, status, evaluate, algorithms, quickstart, export."""

import argparse
import dataclasses
import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from offline_gntd.errors import UserError, unknown
from offline_gntd.files import listing

THEORY_OPTIONS = ("command", "handler", "experiment", "imports", "workers", "rerun_stale", "dry_run")
RETRIES = 2  # as in experiments/grid.py, which is slow to import
THEORY_DEFAULTS = {  # of the other options, where it is not None
    **{"settings": [], "slurm": [], "engine": "local", "device": "cpu", "retries": RETRIES},
    **{"tensorboard": False, "wandb": False},
}


def add_commands(commands) -> None:
    command = commands.add_parser("quickstart", help="build a small dataset, train on it, show the table")
    command.set_defaults(handler=quickstart)

    command = commands.add_parser("algorithms", help="list the presets, or the fields of one")
    command.add_argument("name", nargs="?", metavar="ALGORITHM", help="show the fields of this preset")
    command.set_defaults(handler=algorithms)

    _add_run(commands)

    command = commands.add_parser("status", help="show the progress of experiments, wherever they run")
    add = command.add_argument
    add("experiment", nargs="?", metavar="EXPERIMENT", help="show each of its runs (default: summarise all)")
    add("--json", action="store_true", help="machine-readable output")
    add("--verify", action="store_true", help="compare finished runs with their checkpoints (checksums)")
    command.set_defaults(handler=status)

    command = commands.add_parser("evaluate", help="evaluate the stored policy of a run again")
    add = command.add_argument
    add("run", metavar="RUN", help="a run's folder: results/EXPERIMENT/DATASET/ALGORITHM/seed-N")
    add("--episodes", type=int, metavar="N", help="number of episodes (default: the run's)")
    command.set_defaults(handler=evaluate)

    command = commands.add_parser("export", help="write the results of an experiment as CSV files")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.set_defaults(handler=export)


def _add_run(commands) -> None:
    command = commands.add_parser(
        "run",
        help="run an experiment; finished runs are skipped",
        epilog="Defaults are those of a new experiment; built-in experiments and .toml files set their own.",
    )
    add = command.add_argument
    add(
        "experiment",
        metavar="EXPERIMENT",
        help="table1, table2, table-minari, table-ogbench, figure1, theory, a new name or a .toml file",
    )
    add("--algorithms", nargs="+", metavar="A", help="presets, such as gntd or td3_bc@alpha=1")
    add("--datasets", nargs="+", metavar="D", help="names or files; for online algorithms, environment ids")
    add("--version", metavar="V", help="data of table2: v0, v2 or local (default: v0)")
    add("--seeds", type=int, metavar="N", help="run the seeds 0 … N−1 (default: 5)")
    steps = "updates per run; for online algorithms, environment steps (default: 20000)"
    add("--steps", type=int, metavar="N", help=steps)
    add("--evaluate-every", type=int, metavar="N", help="steps between evaluations (default: 500)")
    add("--evaluate-episodes", type=int, metavar="N", help="episodes per evaluation (default: 20)")
    stack = "seeds trained together in one process (default: 1; on a GPU, all)"
    add("--seeds-per-process", type=int, metavar="N", help=stack)
    settings = "set a field of every algorithm; several values make several variants"
    metavar = "FIELD=VALUE[,VALUE…]"
    add("--set", action="append", default=[], dest="settings", metavar=metavar, help=settings)
    workers = "runs at a time, one thread each (default: number of cores)"
    add("--workers", type=int, metavar="W", help=workers)
    engines = ("local", "ray", "slurm")
    add("--engine", choices=engines, default="local", help="where to run (default: local)")
    add("--address", metavar="A", help="a Ray cluster: auto, ray://host:port, …")
    slurm = "parameters of Slurm jobs: partition=… time=MINUTES mem=8GB …"
    add("--slurm", nargs="+", default=[], metavar="NAME=VALUE", help=slurm)
    add("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    checkpoints = "seconds between checkpoints (default: 10, or more if they take over 0.5 %% of the time)"
    add("--checkpoint-seconds", type=float, metavar="S", help=checkpoints)
    retries = "further attempts at a run that fails (default: %(default)s)"
    add("--retries", type=int, default=RETRIES, metavar="N", help=retries)
    stale = "run again what was finished with other settings, other data or fewer steps"
    add("--rerun-stale", action="store_true", help=stale)
    add("--tensorboard", action="store_true", help="write TensorBoard logs too")
    add("--wandb", action="store_true", help="log to W&B too; WANDB_MODE=offline writes files")
    add("--dry-run", action="store_true", help="list the runs and how long they would take; run nothing")
    command.set_defaults(handler=run)


def quickstart(args: argparse.Namespace) -> int:
    """Write everything to the folder quickstart/, unless OFFLINE_GNTD_HOME is set."""
    os.environ.setdefault("OFFLINE_GNTD_HOME", "quickstart")
    from offline_gntd import processes
    from offline_gntd.analysis import render
    from offline_gntd.collection.builders import build_discrete
    from offline_gntd.experiments import definitions, grid

    processes.prepare()
    experiment = definitions.BUILT_IN["quickstart"]
    build_discrete(experiment.datasets, seeds=experiment.seeds)
    grid.run(experiment)
    table = render.table(experiment.name)
    written = render.write(table) + render.figure(experiment.name, ["updates"])
    print("\n" + table.text("md"))
    print(f"written to {listing(written)}")
    return 1 if table.missing else 0


def algorithms(args: argparse.Namespace) -> None:
    from offline_gntd.algorithms import catalogue, preset
    from offline_gntd.configuration import flatten, to_text

    if args.name:
        fields = flatten(preset(args.name).config)
        width = max(map(len, fields))
        for path, value in fields.items():
            print(f"{path:<{width}}  {to_text(value)}")
    else:
        for name, entry in catalogue().items():
            print(f"{name:<14} {entry.label}")


def run(args: argparse.Namespace) -> int:
    """Run an experiment; returns 1 if a cell of its grid is not finished."""
    if args.experiment == "theory":
        return _run_theory(args)
    from offline_gntd.experiments import grid, planning
    from offline_gntd.experiments.job import Options

    experiment = experiment_of(args)
    device = _device(args.device)
    settings = _engine_settings(args)
    trackers = tuple(name for name in ("tensorboard", "wandb") if getattr(args, name))
    options = Options(device, args.checkpoint_seconds, trackers)
    grid.check(args.workers, options, args.retries, args.engine)
    if args.dry_run:
        workers = os.cpu_count() or 1 if args.workers is None else args.workers
        preview = planning.preview(experiment, workers, args.rerun_stale)
        print(preview.text())
        return 1 if preview.plan.missing else 0
    if device == "cpu" and args.engine == "local":
        _warn_of_slow_bfloat16(experiment)
    result = grid.run(
        experiment,
        workers=args.workers,
        options=options,
        rerun_stale=args.rerun_stale,
        retries=args.retries,
        engine_name=args.engine,
        **settings,
    )
    counts = {
        "done": result.done,
        "diverged": result.diverged,
        "done by another process": result.done_elsewhere,
        "finished before": result.finished_before,
        "failed": result.failed,
        "stale": result.stale,
    }
    summary = ", ".join(f"{len(cells)} {state}" for state, cells in counts.items() if cells)
    print(f"{experiment.name}: {summary or 'nothing done'}")
    if result.stale:
        print(
            f"stale: finished with other settings, data or steps, e.g. {result.stale[0]}; "
            "--rerun-stale runs them again",
            file=sys.stderr,
        )
    if result.stopped:
        print(f"stopped ({result.stopped}); the same command resumes the runs", file=sys.stderr)
    if changed := planning.with_changed_files(result.finished_before):
        print(
            f"{len(changed)} finished runs, e.g. {changed[0]}, stay although the imported file changed; "
            "delete their folders to repeat them",
            file=sys.stderr,
        )
    if result.all_diverged:
        print(f"{experiment.name}: every run diverged; lower the learning rate or see: offline-gntd status")
    if result.complete:
        print(f"next: offline-gntd table {experiment.name}", file=sys.stderr)
    return 0 if result.complete else 1


def _warn_of_slow_bfloat16(experiment: Any) -> None:
    from offline_gntd.algorithms import configured
    from offline_gntd.nn.mlp import warn_if_bfloat16_is_slow

    configs = [configured(name, experiment.protocol_of(name).steps) for name in experiment.algorithms]
    if any(getattr(config, "precision", "") == "bfloat16" for config in configs):
        warn_if_bfloat16_is_slow()


def _run_theory(args: argparse.Namespace) -> int:
    """Run the measurements of the theorems, which have no grid settings."""
    from offline_gntd.theory import runner

    for name, value in vars(args).items():
        if name not in THEORY_OPTIONS and value != THEORY_DEFAULTS.get(name):
            option = {"settings": "set"}.get(name, name.replace("_", "-"))
            raise UserError(
                f"--{option} does not apply to theory, which takes --workers, --rerun-stale and --dry-run"
            )
    if args.dry_run:
        names = set(runner.measurements())
        done = set() if args.rerun_stale else names & runner.finished()
        print(f"{len(names - done)} to measure, {len(done)} finished")
        return 0
    measured, finished = runner.run(args.workers, args.rerun_stale)
    print(f"{measured} measured, {finished} finished before")
    return 0


def _engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the engine's class; raises UserError for options of another engine."""
    for option, engine in (("address", "ray"), ("slurm", "slurm")):
        if getattr(args, option) and args.engine != engine:
            raise UserError(f"--{option} applies to --engine {engine}, not to --engine {args.engine}")
    if args.engine == "ray":
        return {"address": args.address}
    if args.engine == "slurm":
        pairs = [setting.partition("=") for setting in args.slurm]
        for name, separator, value in pairs:
            if not (name and separator and value):
                raise UserError(f"--slurm takes name=value, not {name!r}")
        return {"parameters": {name: value for name, _, value in pairs}}
    return {}


def status(args: argparse.Namespace) -> int:
    """Returns 2 if a run is damaged."""
    from offline_gntd.experiments import definitions, progress
    from offline_gntd.theory import runner

    summaries: list[dict[str, Any]] = []  # for --json
    lines, damaged = [], False
    for name in [args.experiment] if args.experiment else definitions.with_results():
        if name == runner.NAME:
            continue
        try:
            experiment = progress.read_status(name, args.verify)
        except UserError as error:
            if args.experiment:
                raise
            summaries.append({"experiment": name, "error": str(error)})
            lines.append(f"{name}: {error}")
            damaged = True  # the other experiments are still shown
            continue
        summaries.append(experiment.to_dict())
        lines.append(experiment.text() if args.experiment else experiment.headline())
        damaged |= experiment.damaged
    measurements, measured = set(runner.measurements()), runner.finished()
    if args.experiment == runner.NAME or (not args.experiment and measured):
        done, count = len(measurements & measured), len(measurements)
        summaries.append({"experiment": runner.NAME, "measurements": count, "done": done})
        lines.append(f"{runner.NAME}: {done} of {count} measured")
    if args.json:
        print(json.dumps(summaries, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(lines) or "there are no runs here yet; start with: offline-gntd quickstart")
    return 2 if damaged else 0


def evaluate(args: argparse.Namespace) -> int:
    from offline_gntd import processes
    from offline_gntd.experiments.run import evaluate_stored

    processes.prepare()
    evaluation = evaluate_stored(Path(args.run), args.episodes)
    print(f"{args.run}, step {evaluation.step}: {evaluation.text()}")
    return 0 if evaluation.reproduced in (True, None) else 1


def export(args: argparse.Namespace) -> None:
    from offline_gntd.experiments import definitions, results
    from offline_gntd.theory import runner

    if args.experiment == runner.NAME:
        written = runner.export()
    else:
        written = results.export(definitions.find(args.experiment))
        found = results.read(args.experiment)
        if unfinished := len(found.runs) - len(found.finished()):
            state = f"offline-gntd status {args.experiment}"
            print(f"not exported: {unfinished} unfinished or failed runs; see: {state}", file=sys.stderr)
    print(f"written to {listing(written)}")


def _device(name: str) -> str:
    import torch

    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise UserError(f"no device {name!r}; use cpu, cuda or cuda:N")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no device {name!r} here: {str(error).splitlines()[0]}") from error
    return name


def experiment_of(args: argparse.Namespace):
    """The experiment that the arguments describe: a known one with changes, or a new one."""
    from offline_gntd.experiments import definitions
    from offline_gntd.experiments.definitions import BUILT_IN, Experiment, Protocol

    if args.version is not None:
        if args.experiment != "table2":
            raise UserError(f"--version applies only to table2, not to {args.experiment}")
        if args.version not in definitions.VERSIONS:
            raise unknown("version", args.version, definitions.VERSIONS)
        base = BUILT_IN[definitions.table2_name(args.version)]
    elif args.experiment.endswith(".toml"):
        base = definitions.from_file(Path(args.experiment))
    elif args.experiment in BUILT_IN:
        base = BUILT_IN[args.experiment]
    elif args.algorithms and args.datasets:
        base = definitions.stored(args.experiment) or Experiment(args.experiment, (), ())
    else:
        try:
            base = definitions.find(args.experiment)
        except UserError as error:
            raise UserError(f"{error} A new experiment needs --algorithms … --datasets …") from error
    fields = {field.name for field in dataclasses.fields(Protocol)}
    protocol = {name: value for name, value in vars(args).items() if name in fields and value is not None}
    seeds = base.seeds if args.seeds is None else args.seeds
    if args.device != "cpu":
        protocol.setdefault("seeds_per_process", seeds)  # one process uses the whole GPU
    algorithms = _variants(tuple(args.algorithms or base.algorithms), args.settings)
    if not algorithms or not (args.datasets or base.datasets):
        raise UserError(f"{base.name} has no algorithms or no datasets; add --algorithms … --datasets …")
    return dataclasses.replace(
        base,
        datasets=tuple(args.datasets or base.datasets),
        algorithms=algorithms,
        seeds=seeds,
        protocol=dataclasses.replace(base.protocol, **protocol),
        algorithm_steps={
            variant: steps
            for name, steps in base.algorithm_steps.items()
            if args.steps is None
            for variant in algorithms
            if variant in (name, *_variants((name,), args.settings))
        },
    ).canonical()


def _variants(algorithms: tuple[str, ...], settings: list[str]) -> tuple[str, ...]:
    """gntd with --set kfac.damping=1,2 gives gntd@kfac.damping=1 and gntd@kfac.damping=2."""
    choices = []
    for setting in settings:
        path, separator, values = setting.partition("=")
        if not separator or not path or not values:
            raise UserError(f"--set takes field=value, not {setting!r}")
        choices.append([f"@{path}={value}" for value in values.split(",")])
    return tuple(
        algorithm + "".join(chosen) for algorithm in algorithms for chosen in itertools.product(*choices)
    )
