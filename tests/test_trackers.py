"""TensorBoard and W&B have the rows of the CSV files, once each, also after a resumption."""

import bits
import pytest

from offline_gntd.experiments.definitions import Cell, Protocol
from offline_gntd.experiments.job import Options, run_job

CELL = Cell(
    "study",
    "cartpole-replay-small",
    "dqn@hidden_dims=16x16@batch_size=32",
    (0, 1),
    Protocol(steps=100, evaluate_every=20, evaluate_episodes=2, seeds_per_process=2),
)


def stopped_and_resumed(monkeypatch, tracker):
    """Killed after its third evaluation with a checkpoint at the second: the third is logged twice."""
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 20)
    options = Options(trackers=(tracker,))
    checks = iter([False, True])
    assert run_job(CELL, options, stopping=lambda: next(checks)).kind == "stopped"

    def die(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(CELL, options, die)
    assert run_job(CELL, options).kind == "done"


@pytest.mark.slow
def test_tensorboard(small_dataset, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stopped_and_resumed(monkeypatch, "tensorboard")
    for seed in (0, 1):
        events = EventAccumulator(str(CELL.folder(seed) / "tensorboard")).Reload()
        scores = bits.rows(CELL.folder(seed) / "scores.csv")
        logged = [(event.step, event.value) for event in events.Scalars("score")]
        assert logged == [(int(row["step"]), pytest.approx(float(row["score"]))) for row in scores]
        losses = bits.rows(CELL.folder(seed) / "metrics.csv")
        logged = [(event.step, event.value) for event in events.Scalars("loss")]
        assert logged == [(int(row["step"]), pytest.approx(float(row["loss"]))) for row in losses]


def wandb_records(content, header=7, block=32768):
    """What a .wandb file holds: LevelDB's log, of blocks of chunks (checksum, length, which part)."""
    at, parts = header, b""
    while at + header <= len(content):
        if block - at % block < header:
            at += block - at % block
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # whole, or last
            yield parts
            parts = b""


@pytest.mark.slow
def test_wandb_offline(small_dataset, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    stopped_and_resumed(monkeypatch, "wandb")
    for seed in (0, 1):
        logged, ids = {}, set()
        for path in sorted(CELL.folder(seed).glob("wandb/offline-run-*/*.wandb")):
            for data in wandb_records(path.read_bytes()):
                record = wandb_internal_pb2.Record.FromString(data)
                if record.run.run_id:
                    ids.add(record.run.run_id)
                values = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                if values:
                    logged[int(values["_step"])] = float(values["score"])
        scores = bits.rows(CELL.folder(seed) / "scores.csv")
        assert logged == {int(row["step"]): pytest.approx(float(row["score"])) for row in scores}
        assert len(ids) == 1  # one run there, however often it was resumed
