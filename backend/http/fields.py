"""Single fields of a `/v1/videos` body: each is of its own kind, or refused with its name, its value and the rule.

Knows values, not what they mean for a video.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backend import limits
from backend.errors import InvalidRequest, Problem


def text(fields: Mapping[str, Any], name: str) -> str | None:
    """A field as text; None where it is absent."""
    if name not in fields:
        return None
    value = fields[name]
    if not isinstance(value, str):
        raise bad(name, shown(value), "must be text")
    return value


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """A field as text; None where it is absent, null or empty."""
    return None if fields.get(name) is None else text(fields, name) or None


def whole(fields: Mapping[str, Any], name: str) -> int | None:
    """A field as a whole number, exact in all its digits; None where it is absent or empty."""
    value = fields.get(name)
    as_float = number(fields, name)
    if as_float is None:
        return None
    try:
        exact = int(value) if isinstance(value, int | str) else int(as_float)
    except ValueError:
        exact = None
    if exact is None or float(exact) != as_float:
        raise bad(name, shown(value), "must be a whole number")
    return exact


def number(fields: Mapping[str, Any], name: str) -> float | None:
    """A field as a number; None where it is absent or empty."""
    value = fields.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not abs(number) <= 2**63:
        raise bad(name, shown(value), "must be a number")
    return number


def numbers(fields: Mapping[str, Any], name: str, count: int) -> tuple[float | None, ...]:
    """A field that holds one number (or null) for each of `count` files, or one number for all of them."""
    value = fields.get(name)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad(name, shown(value), "must be a number or a JSON list of numbers") from error
    if not isinstance(value, list):
        return (number(fields, name),) * count
    if len(value) != count:
        raise bad(name, f"{len(value)} numbers", f"must be one for each file, {count} here", "write null for none")
    return tuple(number({name: item}, name) for item in value)


def json_object(value: Any, name: str) -> dict[str, Any]:
    """`value`, or the JSON it holds, as an object; {} where it is absent or empty."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad(name, shown(value), "must be a JSON object") from error
    if not isinstance(value, dict):
        raise bad(name, shown(value), "must be a JSON object")
    refuse_half_characters(value, name)
    return value


def json_objects(value: Any, name: str) -> list[dict[str, Any]]:
    """`value`, or the JSON it holds, as a list of objects; one object is a list of one."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad(name, shown(value), "must be JSON") from error
    items = value if isinstance(value, list) else [] if value is None or value == "" else [value]
    if len(items) > limits.MAX_REFERENCES:
        raise bad(name, f"{len(items)} files", f"at most {limits.MAX_REFERENCES} in all")
    return [json_object(item, name) for item in items]


def refuse_half_characters(value: Any, name: str) -> None:
    """InvalidRequest where text inside `value` is no Unicode: half a surrogate pair can be neither stored nor sent."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise bad(name, "", "its text must be valid Unicode", "send it as UTF-8") from error


def shown(value: Any) -> str:
    """A value as an error shows it: short, and always text that can be sent."""
    return (
        (value if isinstance(value, str) else json.dumps(value, default=str))[:40].encode("utf-8", "replace").decode()
    )


def bad(field: str, value: str, rule: str, way_out: str = "") -> InvalidRequest:
    """The error about one field."""
    return InvalidRequest((Problem(field=field, value=value, rule=rule, way_out=way_out),))
