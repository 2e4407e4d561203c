"""Tool declarations and calls as the model reads them (chat-encoding 6).

Returns pieces: the markup's control tokens apart from text, so that a value which spells a closing
tag cannot close it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from engine.text.control import Control
from engine.text.messages import Call, JsonObject

Markup = list[Control | str]

_MARKS = {"{dsml}": Control.DSML, "{think}": Control.THINK, "{/think}": Control.THINK_END}


def _pieces(template: str) -> Markup:
    """Split our own template at its marks. Never used on text from outside."""
    parts = re.split(r"(\{dsml\}|\{think\}|\{/think\})", template)
    return [_MARKS.get(part, part) for part in parts if part]


_INTRODUCTION = _pieces(
    """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<{dsml}tool_calls>" block like the following:

<{dsml}tool_calls>
<{dsml}invoke name="$TOOL_NAME">
<{dsml}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{dsml}parameter>
...
</{dsml}invoke>
<{dsml}invoke name="$TOOL_NAME2">
...
</{dsml}invoke>
</{dsml}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, \
booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {think}), you MUST output your complete reasoning inside \
{think}...{/think} BEFORE any tool calls or final response.

Otherwise, output directly after {/think} with tool calls or final response.

### Available Tool Schemas

"""
)
_CLOSING = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_CALLS_OPEN = _pieces("\n\n<{dsml}tool_calls>\n")
_CALLS_CLOSE = _pieces("\n</{dsml}tool_calls>")
_INVOKE_OPEN = _pieces('<{dsml}invoke name="')
_INVOKE_CLOSE = _pieces("\n</{dsml}invoke>")
_PARAMETER_OPEN = _pieces('<{dsml}parameter name="')
_PARAMETER_CLOSE = _pieces("</{dsml}parameter>")


def to_json(value: Any) -> str:
    """JSON as everywhere in the prompt: key order kept, `", "` and `": "`, ASCII not forced."""
    return json.dumps(value, ensure_ascii=False)


def tools_block(tools: Sequence[JsonObject]) -> Markup:
    """The section of the system text that declares `tools` and explains how to call them."""
    schemas = "\n".join(to_json(tool["function"]) for tool in tools)
    return [*_INTRODUCTION, schemas, _CLOSING]


def calls_block(calls: Iterable[Call]) -> Markup:
    """The calls of an assistant turn, blank line before, nothing after."""
    pieces: Markup = list(_CALLS_OPEN)
    for number, call in enumerate(calls):
        if number:
            pieces.append("\n")
        pieces += [*_INVOKE_OPEN, call.name, '">\n', *_parameters(call.arguments), *_INVOKE_CLOSE]
    return pieces + _CALLS_CLOSE


def _parameters(arguments: str) -> Markup:
    pieces: Markup = []
    for key, value in parse_arguments(arguments).items():
        if pieces:
            pieces.append("\n")
        text, kind = (value, "true") if isinstance(value, str) else (to_json(value), "false")
        pieces += [*_PARAMETER_OPEN, key, f'" string="{kind}">', text, *_PARAMETER_CLOSE]
    return pieces


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Arguments of a call in the history; what is no JSON object is one parameter `arguments`."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
