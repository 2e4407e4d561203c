"""One call while it arrives, and the judgement whether it may be executed (chat-encoding 8.4).

Arguments grow as JSON text that can be shown while it comes. A call is executable only if its
markup was whole and its arguments fit the tool's declared schema; else `error` says why, for the
model to read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.protocol import ToolCall
from engine.text.messages import JsonObject
from engine.text.schema import mismatch

_WRAPPERS = ("arguments", "input")


class DeclaredTools:
    """Parameter schemas by tool name. Malformed declarations count as not declared."""

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._schemas[function["name"]] = (
                    parameters if isinstance(parameters, Mapping) else {}
                )

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        return self._schemas[name]


@dataclass(slots=True)
class _Parameter:
    name: str
    is_string: bool
    text: str = ""


@dataclass(slots=True)
class CallDraft:
    """A call whose markup is being read. Each method returns the JSON text it adds to the
    arguments.
    """

    id: str
    name: str
    parameters: list[_Parameter] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def open_parameter(self, name: str, is_string: bool) -> str:
        if any(known.name == name for known in self.parameters):
            self.faults.append(f"parameter {name!r} is given twice")
        lead = ", " if self.parameters else "{"
        self.parameters.append(_Parameter(name, is_string))
        return self._add(f"{lead}{_quote(name)}: " + ('"' if is_string else ""))

    def value(self, text: str) -> str:
        parameter = self.parameters[-1]
        parameter.text += text
        return self._add(_quote(text)[1:-1] if parameter.is_string else text)

    def close_parameter(self) -> str:
        parameter = self.parameters[-1]
        if parameter.is_string:
            return self._add('"')
        try:
            _strict_json(parameter.text)
        except (ValueError, RecursionError):
            self.faults.append(f"the value of {parameter.name!r} is not JSON")
        return ""

    def close(self) -> str:
        if self.parameters:
            if self._stray():
                self.faults.append("there is text between the parameters")
            return self._add("}")
        body = "".join(self.body).strip()
        if not body:
            return self._add("{}")
        if json_object(body) is not None:
            return self._add(body)
        self.faults.append("it has no parameters but other text")
        return self._add("{}")

    def finished(self, tools: DeclaredTools) -> ToolCall:
        """The call, its arguments unwrapped if needed, with the reason why it may not run."""
        arguments = "".join(self.pieces)
        if self.name not in tools:
            return ToolCall(self.id, self.name, arguments, f"no tool is named {self.name!r}")
        if self.faults:
            return ToolCall(self.id, self.name, arguments, self.faults[0])
        schema = tools.schema(self.name)
        value = json_object(arguments)
        if value is None:
            return ToolCall(self.id, self.name, arguments, "the arguments are not a JSON object")
        inner = _unwrapped(value, schema)
        if inner is not None:
            return ToolCall(self.id, self.name, json.dumps(inner, ensure_ascii=False))
        return ToolCall(self.id, self.name, arguments, mismatch(value, schema) or "")

    def _stray(self) -> bool:
        return any(text.strip() for text in self.body)

    def _add(self, text: str) -> str:
        self.pieces.append(text)
        return text


def json_object(text: str) -> dict[str, Any] | None:
    """The object `text` spells in strict JSON, or None."""
    try:
        value = _strict_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _strict_json(text: str) -> Any:
    """As json.loads, without NaN and Infinity and without repeated keys, which JSON readers take
    apart.
    """
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_keys)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"repeated key {key!r}")
        result[key] = value
    return result


def _unwrapped(value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The real arguments if all of them were put into one parameter the schema does not have."""
    if len(value) != 1:
        return None
    ((key, inner),) = value.items()
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None  # free-form arguments: the key may be meant
    if key not in _WRAPPERS or key in properties:
        return None
    if isinstance(inner, str):
        inner = json_object(inner)
    if not isinstance(inner, dict) or not all(name in properties for name in inner):
        return None
    return inner if mismatch(inner, schema) is None else None


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
