"""The content of run folders without times, to be compared bit for bit."""

import csv
import json

from offline_gntd.files import load_tensors


def read(folder):
    """The rows and the state of a run, and keys of its run.json."""
    [checkpoint] = folder.glob("checkpoint-*.pt")
    content = load_tensors(checkpoint)
    run = json.loads((folder / "run.json").read_text())
    return {
        "scores": [_untimed(row) for row in rows(folder / "scores.csv")],
        "metrics": [_untimed(row) for row in rows(folder / "metrics.csv")],
        "state": {
            (part, name): tensor.numpy().tobytes()
            for part, state in content["state"].items()
            for name, tensor in state.items()
        },
        "checkpoint scores": [_untimed(row) for row in content["scores"]],
        "checkpoint metrics": [_untimed(row) for row in content["metrics"]],
        "run.json": {key: run[key] for key in ("status", "steps", "config_hash", "dataset_sha256", "seed")},
    }


def of_cells(cells):
    return {(str(cell), seed): read(cell.folder(seed)) for cell in cells for seed in cell.seeds}


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def _untimed(row):
    return {name: value for name, value in row.items() if "seconds" not in name}
