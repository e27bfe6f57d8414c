"""Algorithm settings as frozen dataclasses: read from text, compared, hashed.

A field is named by its path (`kfac.damping`). `kfac=none` switches an optional part off; setting a field of a
part that is off switches it on with its defaults.
"""

import dataclasses
import hashlib
import json
import math
import types
import typing
from typing import Any

from offline_gntd.errors import UserError, unknown


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def added(default: Any) -> Any:
    """A field added after results were published. At its default it does not change the hash, so that those
    results keep their settings."""
    return dataclasses.field(default=default, metadata={"added": True})


def hashed_fields(config: Any) -> dict[str, Any]:
    """The settings that decide a hash: all fields but those `added` later that are at their default.

    A number in a float field is a float, so that alpha=1 and alpha=1.0 are the same settings.
    """
    hints, fields = typing.get_type_hints(type(config)), {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value == field.default and "added" in field.metadata:
            continue
        if dataclasses.is_dataclass(value):
            value = hashed_fields(value)
        elif type(value) is int and float in (hints[field.name], *typing.get_args(hints[field.name])):
            value = float(value)
        fields[field.name] = value
    return fields


def digest(value: Any) -> str:
    """A short hash of plain data that does not depend on the machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{'kfac.damping': 0.25, …}"""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = value
    return flat


def replace(config: Any, path: str, text: str) -> Any:
    """`config` with the field at `path` read from `text`."""
    try:
        return _replace(config, path.split("."), text, path)
    except (ValueError, TypeError) as error:
        raise UserError(f"cannot set {path}={text}: {error}") from error


def from_dict(kind: type, value: dict[str, Any]) -> Any:
    """Settings of a class from the output of `to_dict`; raises UserError for unknown fields."""
    hints = typing.get_type_hints(kind)
    for name in set(value) - {field.name for field in dataclasses.fields(kind)}:
        raise unknown(f"field of {kind.__name__}", name, hints)
    fields = {}
    for name, item in value.items():
        parts = _parts(hints[name])
        if parts and isinstance(item, dict):
            item = from_dict(parts[0], item)
        fields[name] = tuple(item) if isinstance(item, list) else item
    return kind(**fields)


def to_text(value: Any) -> str:
    """A value as it appears in names: `1` for 1.0, `256x256` for (256, 256), `on` for a part with fields."""
    if dataclasses.is_dataclass(value):
        return "on"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return "x".join(map(to_text, value))
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _replace(config: Any, names: list[str], text: str, path: str) -> Any:
    hints = typing.get_type_hints(type(config))
    name, *rest = names
    if name not in hints:
        prefix = path[: len(path) - len(".".join(names))]
        raise unknown("field", path, _paths(type(config), prefix), list_all=True)
    if not rest:
        return dataclasses.replace(config, **{name: _parse(text, hints[name])})
    part = getattr(config, name)
    if part is None:
        part = next((kind() for kind in _parts(hints[name])), None)
    if not dataclasses.is_dataclass(part):
        raise UserError(f"{path.rsplit('.', len(rest))[0]!r} has no fields; set it as a whole")
    return dataclasses.replace(config, **{name: _replace(part, rest, text, path)})


def _paths(kind: type, prefix: str) -> list[str]:
    paths = []
    for name, hint in typing.get_type_hints(kind).items():
        inside = [path for part in _parts(hint) for path in _paths(part, f"{prefix}{name}.")]
        paths += [prefix + name, *inside]
    return paths


def _parts(hint: Any) -> list[type]:
    """The settings classes among a field's types: KFAC for `KFAC | None`."""
    options = (hint, *typing.get_args(hint))
    return [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]


def _parse(text: str, hint: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if text.lower() == "none":
        if type(None) in options:
            return None
        raise ValueError("it cannot be none")
    kind = next(option for option in options if option is not type(None))
    if _parts(kind):
        if text.lower() in ("default", "on"):
            return kind()
        raise ValueError(f"use 'on', 'none', or set its fields: {', '.join(_paths(kind, ''))}")
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("it must be true or false")
        return text.lower() == "true"
    if typing.get_origin(kind) is tuple:  # commas separate the values of a sweep
        return tuple(_number(item, int, "whole numbers separated by x: 256x256") for item in text.split("x"))
    if kind in (int, float):
        return _number(text, kind, "a whole number" if kind is int else "a number")
    return kind(text)


def _number(text: str, kind: type, expected: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"it must be {expected}") from None
    if kind is int and abs(value) >= 2**63:
        raise ValueError("it does not fit into 64 bits")
    if kind is float and not math.isfinite(value):
        raise ValueError("it must be finite")
    return value
