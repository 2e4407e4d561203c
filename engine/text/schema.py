"""Checks arguments against the part of JSON Schema that decides whether a call may run.

Types, required and forbidden properties, enumerations, nested. What it does not know (formats,
ranges, references) it accepts: the tool itself checks those.
"""

from collections.abc import Mapping
from typing import Any


def mismatch(value: Any, schema: Any, path: str = "") -> str | None:
    """Why `value` does not fit `schema`, in words; None if it fits."""
    if not isinstance(schema, Mapping):
        return None
    name = path or "the arguments"
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if isinstance(types, list) and not any(_is_type(value, type) for type in types):
        return f"{name} must be {' or '.join(map(str, types))}"
    choices = schema.get("enum")
    if isinstance(choices, list) and value not in choices:
        return f"{name} must be one of {choices!r}"
    if isinstance(value, dict):
        return _object_mismatch(value, schema, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            fault = mismatch(item, schema.get("items"), f"{path}[{index}]")
            if fault:
                return fault
    return None


def _object_mismatch(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> str | None:
    required = schema.get("required")
    for key in required if isinstance(required, list) else ():
        if isinstance(key, str) and key not in value:
            return f"{_join(path, key)} is missing"
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    for key, item in value.items():
        if key in properties:
            fault = mismatch(item, properties[key], _join(path, key))
            if fault:
                return fault
        elif schema.get("additionalProperties") is False:
            return f"{_join(path, key)} is not a parameter"
    return None


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _is_type(value: Any, type: object) -> bool:
    match type:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "null":
            return value is None
    return True  # a type this check does not know
