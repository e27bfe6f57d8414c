"""Names that are safe as the name of a folder."""

import re
from pathlib import Path

FILE_SUFFIXES = (".hdf5", ".h5")


def safe(text: str) -> str:
    """Letters, digits, - _ and . only, not hidden: mujoco/hopper/medium-v0 is mujoco-hopper-medium-v0."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"


def results_name(source: str) -> str:
    """What results on a dataset are filed under: a file's own name, or the dataset's."""
    path = Path(source)
    return safe(path.stem if path.suffix in FILE_SUFFIXES else source)
