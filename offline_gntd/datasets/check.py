"""`datasets check`: report everything that is wrong or unusual in a dataset, without changing it.

An error is what `load` refuses. A warning is something to know before trusting a score.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import (
    authors,
    built_datasets,
    cache,
    catalogue,
    conversion,
    d4rl,
    hdf5,
    loading,
    minari_store,
    user_datasets,
)
from offline_gntd.datasets.d4rl import Recording
from offline_gntd.datasets.dataset import DatasetInfo
from offline_gntd.datasets.download import locate
from offline_gntd.datasets.hdf5 import PART
from offline_gntd.datasets.identity import Identity, identify
from offline_gntd.errors import UserError
from offline_gntd.locomotion import EPISODE_LIMIT, Locomotion, of_environment
from offline_gntd.tasks import Task

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

    def add(self, level: str, what: str, message: str) -> None:
        self.findings.append(Finding(level, what, message))

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
    report = _check(source, env, episode_limit)
    if report.exit_code < 2:
        _check_cache(report, source, env, episode_limit)
    return report


def _check(source: str | Path, env: str | None, episode_limit: int | None) -> Report:
    kind = loading.kind_of(source)
    if kind == "file":
        return _check_file(Path(source), str(source), env, episode_limit)
    if kind == "d4rl":
        entry = catalogue.entries()[str(source)]
        return _check_file(locate(entry), entry.id, env, episode_limit)
    if kind == "built":
        return _check_minari(
            built_datasets.existing(str(source)), str(source), built_datasets.task_of(str(source))
        )
    if kind == "imported":
        return _check_user_dataset(str(source))
    if kind == "authors":
        return _check_authors(Path(source), env, episode_limit)
    return _check_minari(minari_store.existing(str(source)), str(source), None, env)


def _check_cache(report: Report, source: str | Path, env: str | None, episode_limit: int | None) -> None:
    """Verify the rows of the dataset's cache, if it has one, against their sha256."""
    stored = loading.cached_source(source, env, episode_limit)
    try:
        cache.read(stored.folder, stored.key, verify=True)
    except cache.NoCache:
        pass
    except cache.Unusable as error:
        report.add("warning", "cache", f"{error}; the next command that opens it builds it again")


def _check_user_dataset(name: str) -> Report:
    report = Report(name, "imported")
    try:
        task, _ = user_datasets.task_of(name)
        report.env_id = task.env_id
        _examine_recording(report, user_datasets.recording(name), Identity(task, "imported"))
    except UserError as error:
        report.add("error", "unreadable", str(error))
    return report


def _check_authors(path: Path, env: str | None, episode_limit: int | None) -> Report:
    report = Report(str(path), str(path))
    task, limit = loading.authors_task(path, env, episode_limit)
    report.env_id = task.env_id
    try:
        rows, episodes = authors.read(path, task, limit)
        report.steps = report.transitions = len(rows)
        if _all_finite(report, rows):
            _examine_rows(report, rows, task)
            _examine_returns(report, episodes, task)
    except UserError as error:
        report.add("error", "unreadable", str(error))
    return report


def _check_file(path: Path, name: str, env: str | None, episode_limit: int | None) -> Report:
    report = Report(name, str(path))
    identity = identify(path, env, episode_limit)
    report.env_id = identity.task.env_id
    try:
        with hdf5.reading(path) as columns:
            recording = d4rl.recording(columns, identity.task, str(path), identity.episode_limit)
            _examine_identity(report, identity)
            _examine_recording(report, recording, identity)
    except UserError as error:
        report.add("error", "unreadable", str(error))
    return report


def _check_minari(folder: Path, name: str, task: Task | None, env: str | None = None) -> Report:
    report = Report(name, str(folder))
    try:
        task = task or minari_store.task_in(folder, env)
        if conversion.NOTE in minari_store.notes_of(folder):
            info = DatasetInfo(name=name, task=task, origin="minari")
            recording, info = conversion.recording_in(folder, info)
            report.env_id = info.task.env_id
            for note in info.notes:
                report.add("warning", "known-issue", note)
            _examine_recording(report, recording, Identity(info.task, info.origin))
            return report
        report.env_id = task.env_id
        _examine_minari(report, folder, task)
    except UserError as error:
        report.add("error", "unreadable", str(error))
    return report


# ---- what a file is ----


def _examine_identity(report: Report, identity: Identity) -> None:
    entry = identity.entry or identity.namesake
    if identity.entry:
        report.add("note", "published", f"is the published {identity.entry.id}, byte for byte")
    elif identity.namesake:
        report.add("note", "not-published", f"has the file name of {identity.namesake.id}, but other content")
    for note in entry.notes if entry else ():
        report.add("warning", "known-issue", note)


# ---- D4RL's layouts ----


def _examine_recording(report: Report, recording: Recording, identity: Identity) -> None:
    task, columns = identity.task, recording.columns
    known = of_environment(task.env_id)
    report.steps, report.transitions = len(recording), int(recording.used.sum())
    if recording.boundaries != "as stored":
        report.add("warning", "no-timeouts", recording.boundaries)
    _examine_finite(report, recording)
    _examine_flags(report, recording, known)
    _examine_lengths(report, recording, identity, known)
    if known and not task.discrete:
        _examine_actions(report, _parts(columns["actions"]), -1.0, 1.0)
        _examine_resets(report, recording, known)
    _examine_next_observations(report, recording)
    _examine_qpos(report, columns)
    if any(finding.what == "not-finite" for finding in report.findings):
        return
    rows = np.concatenate(list(recording.transitions()))
    _examine_rows(report, rows, task)
    _examine_returns(report, recording.episodes(), task)


def _examine_finite(report: Report, recording: Recording) -> None:
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
        for level, what, rows in (
            ("error", "not-finite", wrong & needed),
            ("warning", "not-finite-unused", wrong & ~needed),
        ):
            if rows.any():
                words = f"{int(rows.sum()):,} rows contain NaN, infinite or too large values"
                unused = ", which are not used" if level == "warning" else ""
                report.add(level, what, f"{key}: {words}{unused}, first in row {int(np.argmax(rows)):,}")


def _examine_flags(report: Report, recording: Recording, known: Locomotion | None) -> None:
    both = int((recording.terminals & recording.timeouts).sum())
    if both:
        message = f"{both:,} rows are both terminal and timeout; they are left out, as in d4rl"
        report.add("warning", "terminal-and-timeout", message)
    terminals = int(recording.terminals.sum())
    if terminals and known and not known.terminates:
        message = f"{terminals:,} rows are terminal, but {known.body} has no terminal states"
        report.add("warning", "impossible-terminal", message)
    if not (recording.terminals[-1] or recording.timeouts[-1]):
        report.add("note", "cut-episode", "the end of the file cuts the last episode")


def _examine_lengths(
    report: Report, recording: Recording, identity: Identity, known: Locomotion | None
) -> None:
    limit = identity.episode_limit or (EPISODE_LIMIT if known else None)
    if limit is None:
        return
    lengths = recording.lengths
    long = int((lengths > limit).sum())
    if long:
        longest = int(lengths.max())
        message = (
            f"{long:,} episodes are longer than {limit} steps, up to {longest:,}: boundaries are missing"
        )
        report.add("warning", "too-long", message)
    cut = (
        recording.timeouts[recording.ends - 1] & ~recording.terminals[recording.ends - 1] & (lengths < limit)
    )
    cut = int(cut[:-1].sum())  # the recording may have stopped inside the last episode
    if cut:
        message = (
            f"{cut:,} of {len(lengths):,} episodes time out before {limit} steps: their returns are partial"
        )
        report.add("warning", "early-timeout", message)


def _examine_actions(report: Report, parts: Iterator[np.ndarray], low: Any, high: Any) -> None:
    count, largest = 0, 0.0
    for part in parts:
        excess = np.maximum(np.maximum(part - high, low - part), 0.0)
        excess = np.where(np.isfinite(excess), excess, 0.0)
        count += int((excess > 1e-5).any(axis=1).sum())
        largest = max(largest, float(excess.max(initial=0.0)))
    if count:
        message = f"{count:,} rows have actions outside the environment's range, by up to {largest:.3g}"
        report.add("warning", "action-range", message)


def _examine_resets(report: Report, recording: Recording, known: Locomotion) -> None:
    """Initial states in the middle of an episode: a boundary is missing there."""
    count, first, done = 0, None, 0
    starts = np.zeros(len(recording) + 1, bool)
    starts[0] = True
    starts[recording.ends] = True
    nominal = np.zeros(known.obs_dim)
    nominal[0] = known.height
    for part in _parts(recording.columns["observations"]):
        initial = (np.abs(part - nominal) <= known.reset_noise).all(axis=1)
        start = starts[done : done + len(part)]
        # the state after one step may still look like an initial state
        near_start = start | np.concatenate([[done == 0 or starts[done - 1]], start[:-1]])
        wrong = initial & ~near_start
        if wrong.any() and first is None:
            first = done + int(np.argmax(wrong)) - 1
        count += int(wrong.sum())
        done += len(part)
    if count:
        message = f"{count:,} rows inside an episode look like an initial state, first after row {first:,}: "
        report.add("warning", "cross-episode", message + "transitions there join two episodes")


def _examine_next_observations(report: Report, recording: Recording) -> None:
    """`load` takes the next row's observation; compare it with the stored next observation."""
    if "next_observations" not in recording.columns or "timeouts" not in recording.columns:
        return
    wrong = d4rl.timeouts_by_next_observations(recording.columns)[:-1]
    wrong &= recording.used & ~recording.terminals[:-1]
    if wrong.any():
        first = int(np.argmax(wrong))
        message = (
            f"{int(wrong.sum()):,} rows have next_observations that differ from the next row, first {first:,}"
        )
        report.add("warning", "cross-episode", message)


def _examine_qpos(report: Report, columns: Mapping[str, Any]) -> None:
    qpos = columns.get("infos/qpos")
    if qpos is not None and len(qpos.shape) == 2 and len(qpos) > 1 and qpos.dtype.kind == "f":
        values = qpos[: min(len(qpos), PART)]
        if (values == values[0]).all():
            report.add("warning", "frozen-qpos", "infos/qpos is constant: states cannot be restored from it")


# ---- Minari ----


def _examine_minari(report: Report, folder: Path, task: Task) -> None:
    totals: list[tuple[float, int, bool]] = []
    no_end, end_inside = 0, 0
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    for episode, _, space in minari_store.episodes(folder):
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        done = np.asarray(episode.terminations, bool) | np.asarray(episode.truncations, bool)
        no_end += not done[-1]
        end_inside += bool(done[:-1].any())
    if no_end:
        report.add("warning", "no-end", f"{no_end:,} episodes end without being terminated or truncated")
    if end_inside:
        message = f"{end_inside:,} episodes are terminated or truncated before their last step"
        report.add("warning", "end-inside", message)
    rows = np.concatenate(
        list(minari_store.transitions(folder, task, totals)) or [np.zeros((0, 1), np.float32)]
    )
    report.steps = report.transitions = len(rows)
    if not len(rows):
        report.add("error", "empty", "there are no episodes")
        return
    if not _all_finite(report, rows):
        return
    if not task.discrete and low is not None and high is not None:
        actions = rows[:, task.obs_dim : task.obs_dim + task.action_dim]
        _examine_actions(report, iter([actions]), low.reshape(-1), high.reshape(-1))
    if task.discrete:
        numbers = rows[:, task.obs_dim]
        wrong = (numbers < 0) | (numbers >= task.action_dim) | (numbers != np.round(numbers))
        if wrong.any():
            message = f"{int(wrong.sum()):,} actions are not whole numbers from 0 to {task.action_dim - 1}"
            report.add("error", "action-range", message)
    if "since the Minari dataset gives none" in task.reference_source or task.reference_source.startswith(
        "none"
    ):
        report.add("note", "no-references", f"no reference returns; used: {task.reference_source}")
    _examine_rows(report, rows, task)
    _examine_returns(report, np.asarray(totals), task)


# ---- rows and returns of any dataset ----


def _all_finite(report: Report, rows: np.ndarray) -> bool:
    wrong = ~np.isfinite(rows).all(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        message = f"{int(wrong.sum()):,} transitions contain NaN or infinite values, first {first:,}"
        report.add("error", "not-finite", message)
    return not wrong.any()


def _examine_rows(report: Report, rows: np.ndarray, task: Task) -> None:
    repeated = len(rows) - distinct(rows)
    if repeated:
        report.add("warning", "duplicates", f"{repeated:,} of {len(rows):,} transitions are duplicates")
    constant = np.flatnonzero(np.ptp(rows[:, : task.obs_dim], axis=0) == 0)
    if len(constant) and len(rows) > 1:
        message = f"observation columns {', '.join(map(str, constant))} are constant"
        report.add("warning", "constant-observation", message)
    if len(rows) > 1 and np.ptp(rows[:, -task.obs_dim - 2]) == 0 and not task.discrete:
        report.add("warning", "constant-reward", "the reward is constant")


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


def _examine_returns(report: Report, episodes: np.ndarray, task: Task) -> None:
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
        message = f"{int(outside.sum()):,} episodes score outside {LEGAL_SCORES}, up to {worst:.0f}: check "
        report.add("warning", "returns", message + f"that the environment is {task.env_id}, rewards unscaled")


def _parts(column: Any) -> Iterator[np.ndarray]:
    for start in range(0, len(column), PART):
        yield column[start : start + PART]
