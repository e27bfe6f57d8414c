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

from offline_gntd.errors import UserError, shortened, unknown


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


def from_dict(kind: type, value: Any, name: str = "") -> Any:
    """Settings of a class from a dict, as `to_dict`, JSON or TOML give it.

    Raises UserError for unknown fields and for values of the wrong type. `name` is the field that
    holds these settings, for the error.
    """
    if not isinstance(value, dict):
        raise UserError(f"{name or kind.__name__} must be a table of settings, not {shortened(value)}")
    hints = typing.get_type_hints(kind)
    for field in set(value) - set(hints):
        raise unknown(f"{kind.__name__} setting", field, hints)
    for field in dataclasses.fields(kind):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in value:
            raise UserError(f"{kind.__name__} needs a value for {field.name}")
    return kind(**{field: _typed(field, item, hints[field]) for field, item in value.items()})


def _typed(name: str, value: Any, hint: Any) -> Any:
    """A field's value from plain data: lists become tuples, dicts become settings."""
    kind, optional = _kind(hint)
    if value is None and optional:
        return None
    if _has_fields(kind):
        return from_dict(kind, value, name)
    container, items = typing.get_origin(kind), typing.get_args(kind)
    if container is tuple:
        if not isinstance(value, list | tuple):
            words = "names" if items[0] is str else "values"
            raise UserError(f"{name} must be a list of {words}, not {shortened(value)}")
        return tuple(_typed(f"every item of {name}", item, items[0]) for item in value)
    if container is dict:
        if not isinstance(value, dict):
            raise UserError(f"{name} must be a table, not {shortened(value)}")
        return {key: _typed(key, item, items[1]) for key, item in value.items()}
    legal, words = PLAIN_TYPES.get(kind, ((type(value),), ""))  # other types are not checked
    if type(value) not in legal:
        raise UserError(f"{name} must be {words}, not {shortened(value)}")
    return value


PLAIN_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "text"),
}


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
    part, (kind, _) = getattr(config, name), _kind(hints[name])
    if part is None and _has_fields(kind):
        part = kind()
    if not dataclasses.is_dataclass(part):
        raise UserError(f"{path.rsplit('.', len(rest))[0]!r} has no fields; set its value")
    return dataclasses.replace(config, **{name: _replace(part, rest, text, path)})


def _paths(settings: type, prefix: str) -> list[str]:
    """The paths of all fields of a settings class."""
    paths = []
    for name, hint in typing.get_type_hints(settings).items():
        kind, _ = _kind(hint)
        paths.append(prefix + name)
        paths += _paths(kind, f"{prefix}{name}.") if _has_fields(kind) else []
    return paths


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of a field without `| None`, and whether the field may be None."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)  # X | None, Optional[X]
    options = typing.get_args(hint) if union else (hint,)
    return next(option for option in options if option is not type(None)), type(None) in options


def _has_fields(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _parse(text: str, hint: Any) -> Any:
    kind, optional = _kind(hint)
    if text.lower() == "none":
        if optional:
            return None
        raise ValueError("it cannot be none")
    if _has_fields(kind):
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
