"""Names of datasets, and the names of folders made from them."""

import re
from pathlib import Path

FILE_SUFFIXES = (".hdf5", ".h5", ".npz")
SEED = "{seed}"  # in the name or path of a family of datasets, one for each seed
AUTHORS_BUFFER = re.compile(r"(CartPole|Acrobot)-v1_\{seed\}_((?:Medium-)?Replay)")
MINARI_ID = re.compile(r"(?:[-_\w]+/)*[-_\w]+-v\d+")


def safe(text: str) -> str:
    """Letters, digits, - _ . only, not hidden: mujoco/hopper/medium-v0 becomes mujoco-hopper-medium-v0."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"


def results_name(source: str) -> str:
    """The folder name for results on a dataset: the dataset's name, or its file's name without the suffix.

    A family has one name, without the seed: cartpole-replay for cartpole-replay-s{seed} and for the authors'
    buffers, buffers/CartPole-v1_{seed}_Replay.
    """
    if authors := AUTHORS_BUFFER.fullmatch(Path(source).name):
        return f"{authors[1]}-{authors[2]}".lower()
    source = re.sub(r"[-_.](?:s|seed)?\{seed\}|\{seed\}", "", source)
    path = Path(source)
    if path.suffix in FILE_SUFFIXES:
        return safe(path.stem)
    is_path = "/" in source and not MINARI_ID.fullmatch(source)
    return safe(path.name if is_path else source)
