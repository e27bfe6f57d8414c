"""`datasets check`: report everything that is wrong or unusual in a dataset, without changing it.

An error is what `load` refuses. A warning is something to know before trusting a score.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import (
    authors,
    built_datasets,
    cache,
    catalogue,
    conversion,
    loading,
    minari_store,
    ogbench_files,
)
from offline_gntd.datasets.cache import illegal_actions
from offline_gntd.datasets.d4rl import Identity, Recording, identify, timeouts_by_next_observations
from offline_gntd.datasets.dataset import DatasetInfo
from offline_gntd.datasets.download import locate
from offline_gntd.datasets.hdf5 import PART
from offline_gntd.errors import UserError
from offline_gntd.tasks import EPISODE_LIMIT, Locomotion, Task, of_environment

LEVELS = ("note", "warning", "error")
VERDICTS = {"note": "sound", "warning": "warnings", "error": "unusable"}
EXIT_CODES = {"sound": 0, "warnings": 1, "unusable": 2}
LEGAL_SCORES = (-30.0, 160.0)  # normalised; others suggest another environment or scaled rewards
BINS = 10


@dataclass(frozen=True)
class Finding:
    level: str  # note | warning | error
    what: str  # identifies the finding in --json
    message: str


@dataclass
class Report:
    name: str
    source: str
    env_id: str | None = None
    steps: int = 0  # rows stored
    transitions: int = 0  # rows used
    returns: dict[str, Any] = field(default_factory=dict)  # episode returns: statistics, scores, histogram
    findings: list[Finding] = field(default_factory=list)

    def note(self, what: str, message: str) -> None:
        self.findings.append(Finding("note", what, message))

    def warn(self, what: str, message: str) -> None:
        self.findings.append(Finding("warning", what, message))

    def error(self, what: str, message: str) -> None:
        self.findings.append(Finding("error", what, message))

    @property
    def verdict(self) -> str:
        worst = max((LEVELS.index(finding.level) for finding in self.findings), default=0)
        return VERDICTS[LEVELS[worst]]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def check(source: str | Path, env: str | None = None, episode_limit: int | None = None) -> Report:
    """Examine a dataset of any kind. Raises UserError only if it is unknown or not on this machine."""
    name, kind = str(source), loading.kind_of(source)
    if kind in ("d4rl", "file"):
        path = locate(catalogue.entries()[name]) if kind == "d4rl" else Path(source)
        identity = identify(path, env, episode_limit)
        report = Report(name, str(path), identity.task.env_id)
        examine = partial(_check_file, report, path, identity)
    elif kind == "authors":
        task, limit = authors.task_of(Path(source), env, episode_limit)
        report = Report(name, name, task.env_id)
        examine = partial(_check_authors, report, Path(source), task, limit)
    elif kind == "ogbench":
        report = Report(name, str(loading.ogbench_path(name)))
        examine = partial(_check_ogbench, report, Path(report.source))
    elif kind == "imported":
        report = Report(name, "imported")
        examine = partial(_check_user_dataset, report, name)
    else:
        built = kind == "built"
        folder = built_datasets.existing(name) if built else minari_store.existing(name)
        report = Report(name, str(folder))
        examine = partial(_check_minari, report, folder, built_datasets.task_of(name) if built else None, env)
    try:
        examine()
    except UserError as error:
        report.error("unreadable", str(error))
    if report.exit_code < 2:
        _check_cache(report, source, env, episode_limit)
    return report


def _check_cache(report: Report, source: str | Path, env: str | None, episode_limit: int | None) -> None:
    """Verify the rows of the dataset's cache, if it has one, against their sha256."""
    stored = loading.cached_source(source, env, episode_limit)
    try:
        cache.read(stored.folder, stored.key, verify=True)
    except cache.NoCache:
        pass
    except cache.Unusable as error:
        report.warn("cache", f"{error}; the next command that opens it builds it again")


def _check_file(report: Report, path: Path, identity: Identity) -> None:
    with identity.reading(path) as recording:
        entry = identity.entry or identity.namesake
        if identity.entry:
            report.note("published", f"is the published {identity.entry.id}, byte for byte")
        elif identity.namesake:
            report.note("not-published", f"has the file name of {identity.namesake.id}, but other content")
        for note in entry.notes if entry else ():
            report.warn("known-issue", note)
        _check_recording(report, recording, identity)


def _check_user_dataset(report: Report, name: str) -> None:
    task, _ = loading.user_task(name)
    report.env_id = task.env_id
    _check_recording(report, loading.user_recording(name), Identity(task, "imported"))


def _check_ogbench(report: Report, path: Path) -> None:
    name = Path(report.name).stem if report.name.endswith(".npz") else report.name
    task = ogbench_files.task_named(name)
    report.env_id = task.env_id
    rows, episodes = ogbench_files.read(path, name, task)
    report.steps = report.transitions = len(rows)
    if _all_finite(report, rows):
        low, high = task.action_range or (-1.0, 1.0)
        _check_actions(report, iter([rows[:, task.obs_dim : task.obs_dim + task.action_dim]]), low, high)
        _check_rows(report, rows, task)
        _check_returns(report, episodes, task)


def _check_authors(report: Report, path: Path, task: Task, limit: int | None) -> None:
    rows, episodes = authors.read(path, task, limit)
    report.steps = report.transitions = len(rows)
    if _all_finite(report, rows):
        _check_rows(report, rows, task)
        _check_returns(report, episodes, task)


def _check_minari(report: Report, folder: Path, task: Task | None, env: str | None) -> None:
    task = task or minari_store.task_in(folder, env)
    if conversion.NOTE in minari_store.notes_of(folder):
        info = DatasetInfo(name=report.name, task=task, origin="minari")
        recording, info = conversion.recording_in(folder, info)
        report.env_id = info.task.env_id
        for note in info.notes:
            report.warn("known-issue", note)
        entry = catalogue.entries().get(info.d4rl_id or "")
        limit = entry.episode_limit if entry else None
        _check_recording(report, recording, Identity(info.task, info.origin, episode_limit=limit))
    else:
        report.env_id = task.env_id
        _check_minari_episodes(report, folder, task)


# ---- D4RL's layouts ----


def _check_recording(report: Report, recording: Recording, identity: Identity) -> None:
    task, columns = identity.task, recording.columns
    known = of_environment(task.env_id)
    report.steps, report.transitions = len(recording), int(recording.used.sum())
    if recording.boundaries != "as stored":
        report.warn("no-timeouts", recording.boundaries)
    _check_finite(report, recording)
    _check_flags(report, recording, known)
    limit = identity.episode_limit or (EPISODE_LIMIT if known else None)
    if limit is not None:
        _check_lengths(report, recording, limit)
    if not task.discrete:
        low, high = task.action_range or (-1.0, 1.0)
        _check_actions(report, _parts(columns["actions"]), low, high)
    if known:
        _check_resets(report, recording, known)
    _check_next_observations(report, recording)
    _check_qpos(report, columns)
    if any(finding.what == "not-finite" for finding in report.findings):
        return
    rows = np.concatenate(list(recording.transitions()))
    _check_rows(report, rows, task)
    _check_returns(report, recording.episodes(), task)


def _check_finite(report: Report, recording: Recording) -> None:
    """NaN, infinite and too large values: an error where `load` uses the value, else a warning."""
    used = np.append(recording.used, False)  # [steps]
    next_used = np.concatenate([[False], recording.used])
    rows_used = {
        "observations": used | next_used,
        "actions": used,
        "rewards": np.ones(len(used), bool),  # all count in episode returns
        "next_observations": np.zeros(len(used), bool),
    }
    for key, needed in rows_used.items():
        if key not in recording.columns:
            continue
        with np.errstate(over="ignore"):
            parts = [
                np.isfinite(part.reshape(len(part), -1).astype(np.float32)).all(axis=1)
                for part in _parts(recording.columns[key])
            ]
        wrong = ~np.concatenate(parts)
        for add, what, rows, comment in (
            (report.error, "not-finite", wrong & needed, ""),
            (report.warn, "not-finite-unused", wrong & ~needed, ", which are not used"),
        ):
            if rows.any():
                count, first = int(rows.sum()), int(np.argmax(rows))
                message = f"{key}: {count:,} rows contain NaN, infinite or too large values{comment}"
                add(what, f"{message}, first in row {first:,}")


def _check_flags(report: Report, recording: Recording, known: Locomotion | None) -> None:
    both = int((recording.terminals & recording.timeouts).sum())
    if both:
        rows = f"{both:,} rows are both terminal and timeout"
        report.warn("terminal-and-timeout", f"{rows}; they are left out, as in d4rl")
    terminals = int(recording.terminals.sum())
    if terminals and known and not known.terminates:
        report.warn(
            "impossible-terminal", f"{terminals:,} rows are terminal, but {known.body} has no terminal states"
        )
    if not (recording.terminals[-1] or recording.timeouts[-1]):
        report.note("cut-episode", "the end of the file cuts the last episode")


def _check_lengths(report: Report, recording: Recording, limit: int) -> None:
    lengths, last = recording.lengths, recording.ends - 1
    long = int((lengths > limit).sum())
    if long:
        longest = f"{limit} steps, up to {int(lengths.max()):,}"
        report.warn("too-long", f"{long:,} episodes are longer than {longest}: boundaries are missing")
    early = recording.timeouts[last] & ~recording.terminals[last] & (lengths < limit)
    count = int(early[:-1].sum())  # the recording may have stopped inside the last episode
    if count:
        episodes = f"{count:,} of {len(lengths):,} episodes"
        report.warn("early-timeout", f"{episodes} time out before {limit} steps: their returns are partial")


def _check_actions(report: Report, parts: Iterator[np.ndarray], low: Any, high: Any) -> None:
    count, largest = 0, 0.0
    for part in parts:
        excess = np.maximum(np.maximum(part - high, low - part), 0.0)
        excess = np.where(np.isfinite(excess), excess, 0.0)
        count += int((excess > 1e-5).any(axis=1).sum())
        largest = max(largest, float(excess.max(initial=0.0)))
    if count:
        report.warn(
            "action-range",
            f"{count:,} rows have actions outside the environment's range, by up to {largest:.3g}",
        )


def _check_resets(report: Report, recording: Recording, known: Locomotion) -> None:
    """Initial states in the middle of an episode: a boundary is missing there."""
    nominal = np.zeros(known.obs_dim)
    nominal[0] = known.height
    initial = [
        (np.abs(part - nominal) <= known.reset_noise).all(axis=1)
        for part in _parts(recording.columns["observations"])
    ]
    near_start = np.zeros(len(recording) + 2, bool)
    starts = np.append(0, recording.ends)
    near_start[starts] = near_start[starts + 1] = True  # one step later, a state may still look like it
    wrong = np.concatenate(initial) & ~near_start[: len(recording)]
    if wrong.any():
        rows = f"{int(wrong.sum()):,} rows inside an episode look like an initial state"
        first = f"first after row {int(np.argmax(wrong)) - 1:,}"
        report.warn("cross-episode", f"{rows}, {first}: transitions there join two episodes")


def _check_next_observations(report: Report, recording: Recording) -> None:
    """`load` takes the next row's observation; compare it with the stored next observation."""
    if "next_observations" not in recording.columns or "timeouts" not in recording.columns:
        return
    wrong = timeouts_by_next_observations(recording.columns)[:-1]
    wrong &= recording.used & ~recording.terminals[:-1]
    if wrong.any():
        rows = f"{int(wrong.sum()):,} rows have next_observations that differ from the next row"
        report.warn("cross-episode", f"{rows}, first {int(np.argmax(wrong)):,}")


def _check_qpos(report: Report, columns: Mapping[str, Any]) -> None:
    qpos = columns.get("infos/qpos")
    if qpos is not None and len(qpos.shape) == 2 and len(qpos) > 1 and qpos.dtype.kind == "f":
        values = qpos[: min(len(qpos), PART)]
        if (values == values[0]).all():
            report.warn("frozen-qpos", "infos/qpos is constant: states cannot be restored from it")


# ---- Minari ----


def _check_minari_episodes(report: Report, folder: Path, task: Task) -> None:
    no_end, end_inside = 0, 0
    action_space: Any = None
    for episode, _, space in minari_store.episodes(folder):
        action_space = space
        done = np.asarray(episode.terminations, bool) | np.asarray(episode.truncations, bool)
        no_end += not done[-1]
        end_inside += bool(done[:-1].any())
    if no_end:
        report.warn("no-end", f"{no_end:,} episodes end without being terminated or truncated")
    if end_inside:
        report.warn(
            "end-inside", f"{end_inside:,} episodes are terminated or truncated before their last step"
        )
    totals: list[tuple[float, int, bool]] = []
    parts = list(minari_store.transitions(folder, task, totals))
    if not parts:
        report.error("empty", "there are no episodes")
        return
    rows = np.concatenate(parts)
    report.steps = report.transitions = len(rows)
    if not _all_finite(report, rows):
        return
    low, high = getattr(action_space, "low", None), getattr(action_space, "high", None)
    if not task.discrete and low is not None and high is not None:
        actions = rows[:, task.obs_dim : task.obs_dim + task.action_dim]
        _check_actions(report, iter([actions]), low.reshape(-1), high.reshape(-1))
    if task.reference_source.endswith(minari_store.NO_REFERENCES) or task.reference_source.startswith("none"):
        report.note("no-references", f"no reference returns; used: {task.reference_source}")
    _check_rows(report, rows, task)
    _check_returns(report, np.asarray(totals), task)


# ---- rows and returns of any dataset ----


def _all_finite(report: Report, rows: np.ndarray) -> bool:
    wrong = ~np.isfinite(rows).all(axis=1)
    if wrong.any():
        transitions = f"{int(wrong.sum()):,} transitions contain NaN or infinite values"
        report.error("not-finite", f"{transitions}, first {int(np.argmax(wrong)):,}")
    return not wrong.any()


def _check_rows(report: Report, rows: np.ndarray, task: Task) -> None:
    if task.discrete and (wrong := illegal_actions(rows[:, task.obs_dim], task.action_dim)).any():
        legal = f"whole numbers from 0 to {task.action_dim - 1}"
        report.error("action-range", f"{int(wrong.sum()):,} actions are not {legal}")
    repeated = len(rows) - distinct(rows)
    if repeated:
        report.warn("duplicates", f"{repeated:,} of {len(rows):,} transitions are duplicates")
    constant = np.flatnonzero(np.ptp(rows[:, : task.obs_dim], axis=0) == 0)
    if len(constant) and len(rows) > 1:
        report.warn(
            "constant-observation", f"observation columns {', '.join(map(str, constant))} are constant"
        )
    if len(rows) > 1 and np.ptp(rows[:, -task.obs_dim - 2]) == 0 and not task.discrete:
        report.warn("constant-reward", "the reward is constant")


def distinct(rows: np.ndarray) -> int:
    """Number of different rows, by a 64-bit hash of each."""
    rng = np.random.default_rng(0)
    factors = np.asarray(rng.integers(1 << 63, size=rows.shape[1], dtype=np.uint64)) | np.uint64(1)
    hashes = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), PART):
        words = np.ascontiguousarray(rows[start : start + PART]).view(np.uint32).astype(np.uint64)
        mixed = words * factors
        mixed ^= mixed >> np.uint64(29)
        hashes[start : start + PART] = (mixed * factors[::-1]).sum(axis=1, dtype=np.uint64)
    return len(np.unique(hashes))


def _check_returns(report: Report, episodes: np.ndarray, task: Task) -> None:
    returns, lengths = episodes[:, 0], episodes[:, 1]
    counts, edges = np.histogram(returns, bins=BINS)
    scores = task.score(returns)
    report.returns = {
        "episodes": len(returns),
        "mean": float(returns.mean()),
        "median": float(np.median(returns)),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "mean_score": float(scores.mean()),
        "reference_min": task.reference_min,
        "reference_max": task.reference_max,
        "reference_source": task.reference_source,
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }
    outside = (scores < LEGAL_SCORES[0]) | (scores > LEGAL_SCORES[1])
    if outside.any() and not task.reference_source.startswith("none"):
        worst = scores[outside][np.argmax(np.abs(scores[outside]))]
        episodes_outside = f"{int(outside.sum()):,} episodes score outside {LEGAL_SCORES}, up to {worst:.0f}"
        remedy = f"check that the environment is {task.env_id}, rewards unscaled"
        report.warn("returns", f"{episodes_outside}: {remedy}")


def _parts(column: Any) -> Iterator[np.ndarray]:
    for start in range(0, len(column), PART):
        yield column[start : start + PART]
