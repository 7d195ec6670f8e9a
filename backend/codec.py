"""Frozen dataclasses to JSON values and back, for everything that crosses a process or lies on disk.

Stdlib only. It knows types, not meanings: unknown keys and wrong types are errors that name the field.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Return `value` as JSON values: dataclass -> dict, Path -> str, Enum -> its value, tuple -> list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"cannot encode a {type(value).__name__}")


def decode(kind: type[T], data: Any, where: str = "") -> T:
    """Return `data` as a `kind`; raises ValueError naming the field where a key or type is wrong."""
    return typing.cast(T, _decode(kind, data, where or getattr(kind, "__name__", str(kind))))


def encode_tagged(value: Any) -> dict[str, Any]:
    """Like `encode` for a dataclass, with its class name under "type"."""
    return {"type": type(value).__name__, **encode(value)}


def decode_tagged(kinds: Any, data: dict[str, Any]) -> Any:
    """Inverse of `encode_tagged` for a union of dataclasses."""
    table = _by_name(kinds)
    name = data.get("type")
    if name not in table:
        raise ValueError(f"unknown type {name!r}")
    return decode(table[name], {key: item for key, item in data.items() if key != "type"})


@functools.cache
def _by_name(kinds: Any) -> dict[str, type]:
    return {kind.__name__: kind for kind in (get_args(kinds) or (kinds,))}


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        options = get_args(kind)
        if data is None and type(None) in options:
            return None
        return _decode(next(option for option in options if option is not type(None)), data, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"{where}: expected a list, got {data!r}")
        item_kind = get_args(kind)[0]
        return tuple(_decode(item_kind, item, f"{where}[{index}]") for index, item in enumerate(data))
    if origin is dict or kind in (dict, object, Any):
        return data
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _decode_enum(kind, data, where)
    return _decode_scalar(kind, data, where)


def _decode_dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, got {data!r}")
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(hints))}")
    try:
        return kind(**{key: _decode(hints[key], item, f"{where}.{key}") for key, item in data.items()})
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def _decode_enum(kind: type[Enum], data: Any, where: str) -> Enum:
    try:
        return kind(data)
    except ValueError as error:
        choices = ", ".join(str(item.value) for item in kind)
        raise ValueError(f"{where}={data!r}: must be one of {choices}") from error


def _decode_scalar(kind: Any, data: Any, where: str) -> Any:
    if isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, kind) and not (kind in (int, float) and isinstance(data, bool)):
        return data
    raise ValueError(f"{where}={data!r}: must be a {kind.__name__}")
