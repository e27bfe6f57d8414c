"""What a table's rows or columns can be: datasets, algorithms, presets, or a field of their settings."""

from typing import Any

import pandas as pd

from offline_gntd.errors import unknown

AXES = ("dataset", "algorithm", "preset")  # or a field's path: kfac.damping


def axis(lines: pd.DataFrame, name: str) -> pd.Series:
    """What every run, with its dataset, algorithm, label and config, stands under."""
    if name == "dataset":
        return lines["dataset"]
    if name == "algorithm":
        return lines["label"]
    if name == "preset":
        return lines["algorithm"].str.partition("@")[0]
    fields = lines["config"].map(flat)
    known = {field for config in fields for field in config}
    if name not in known:
        raise unknown("row or column", name, {*AXES, *known})
    return fields.map(lambda config: text(config.get(name)))


def ordered(places: pd.Series, name: str) -> list[str]:
    """Each once: datasets and algorithms in the experiment's order, the values of a field by size."""
    once = list(dict.fromkeys(places))
    return once if name in AXES else sorted(once, key=_by_size)


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Stored settings by path, {'kfac.damping': 0.25, …}; a part that is off is one entry, None."""
    paths: dict[str, Any] = {}
    for name, value in config.items():
        paths |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return paths


def text(value: Any) -> str:
    """A setting as --set takes it."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)
