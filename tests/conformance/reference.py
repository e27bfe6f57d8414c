"""Runs in the venv that has d4rl 1.1, and nothing of ours: d4rl's own answers, written to a file.

python reference.py OUT.npz FILE…   d4rl.qlearning_dataset of each file, read as env.get_dataset() does
python reference.py OUT.json        d4rl.infos
"""

import json
import os
import sys
import types

os.environ["D4RL_SUPPRESS_IMPORT_ERROR"] = "1"
import d4rl
import h5py
import numpy as np

LIMIT = 1000


def dataset_of(path):
    """OfflineEnv.get_dataset, without an environment's spaces."""
    data = {}
    with h5py.File(path, "r") as file:
        for key in d4rl.get_keys(file):
            try:
                data[key] = file[key][:]
            except ValueError:
                data[key] = file[key][()]
    for key in ("rewards", "terminals"):
        if data[key].shape == (len(data["observations"]), 1):
            data[key] = data[key][:, 0]
    return data


def main(out, *files):
    if out.endswith(".json"):
        infos = {
            name: [url, d4rl.infos.REF_MIN_SCORE.get(name), d4rl.infos.REF_MAX_SCORE.get(name)]
            for name, url in d4rl.infos.DATASET_URLS.items()
        }
        with open(out, "w") as file:
            json.dump(infos, file)
        return
    stub = types.SimpleNamespace(_max_episode_steps=LIMIT)
    arrays = {}
    for number, path in enumerate(files):
        found = d4rl.qlearning_dataset(stub, dataset=dataset_of(path))
        arrays |= {f"{number}/{key}": value for key, value in found.items()}
    np.savez(out, **arrays)


main(*sys.argv[1:])
