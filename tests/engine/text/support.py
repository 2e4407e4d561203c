"""What several text tests need: tools, sampled ids written down as text, and a way to parse."""

from collections.abc import Sequence

from engine.protocol import Delta, StopReason
from engine.text.control import Control
from engine.text.parser import PromptEnd, Reply, ReplyStart, StreamParser
from engine.text.tokenizer import Tokenizer

D = Control.DSML.value
STRUCTURAL = (Control.THINK, Control.THINK_END, Control.DSML, Control.EOS)

THINKING = ReplyStart("thinking")
ANSWER = ReplyStart("answer")


def tool(name: str, properties: dict, required: Sequence[str] = ()) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("read_clock", {"zone": {"type": "string"}}, ["zone"]),
    tool(
        "set_lamp",
        {"lamp": {"type": "string"}, "level": {"type": "integer"}, "fade": {"type": "boolean"}},
        ["lamp", "level"],
    ),
    tool("list_lamps", {}),
]


def sampled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a reply written down as text, each structural spelling as its token."""
    ids: list[int] = []
    rest = text
    while rest:
        found = [
            (rest.find(c.value), c) for c in STRUCTURAL if tokenizer.has(c) and c.value in rest
        ]
        at, control = min(found, key=lambda item: item[0], default=(len(rest), None))
        ids += tokenizer.encode_text(rest[:at])
        if control is None:
            break
        ids.append(tokenizer.id_of(control))
        rest = rest[at + len(control.value) :]
    return ids


def parse(
    tokenizer: Tokenizer,
    reply: str | Sequence[int],
    start: PromptEnd = THINKING,
    tools: Sequence[dict] = TOOLS,
    reason: StopReason = "stop",
    chunk: int = 1,
) -> tuple[Reply, list[Delta]]:
    """Parse a whole reply; the result and all deltas."""
    ids = sampled(tokenizer, reply) if isinstance(reply, str) else list(reply)
    parser = StreamParser(tokenizer, start, tools)
    deltas: list[Delta] = []
    for at in range(0, len(ids), chunk):
        deltas += parser.feed(ids[at : at + chunk])
    result = parser.finish(reason)
    return result, deltas + result.deltas


def shown(deltas: Sequence[Delta], channel: str) -> str:
    return "".join(delta.text for delta in deltas if delta.channel == channel)


def block(*calls: str) -> str:
    """A block of calls as the model writes it after its text."""
    return f"\n\n<{D}tool_calls>\n" + "\n".join(calls) + f"\n</{D}tool_calls>"


def invoke(name: str, *parameters: str) -> str:
    return f'<{D}invoke name="{name}">\n' + "\n".join(parameters) + f"\n</{D}invoke>"


def param(name: str, value: str, string: str = "true") -> str:
    return f'<{D}parameter name="{name}" string="{string}">{value}</{D}parameter>'
