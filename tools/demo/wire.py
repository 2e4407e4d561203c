"""Chat turns as the engine's prompt encoder writes them, for training text and sample prompts.

Only the shapes the corpus uses: plain chat, thinking for sums, one tool. A turn is a list of
pieces; a control token is a piece of its own and never comes out of text (chat-encoding 3 and 4).
"""

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from tools.demo.config import ASSISTANT, BOS, DSML, END_THINK, EOS, SPECIALS, THINK, USER

Piece = tuple[bool, str]  # (is a control token, spelling)

_TOOLS = """\
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<@tool_calls>" block like the following:

<@tool_calls>
<@invoke name="$TOOL_NAME">
<@parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</@parameter>
...
</@invoke>
<@invoke name="$TOOL_NAME2">
...
</@invoke>
</@tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning \
inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """role: "system", "user", "assistant" or "tool". call: (tool name, arguments) of an assistant
    turn. reasoning: None for a reply without thinking."""

    role: str
    content: str
    reasoning: str | None = None
    call: tuple[str, dict[str, Any]] | None = None


def text(value: str) -> Piece:
    return (False, value)


def control(spelling: str) -> Piece:
    return (True, spelling)


def tools_block(schemas: list[dict[str, Any]]) -> list[Piece]:
    """The tools section of a system message; DSML and think spellings in it are control tokens."""
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    head, tail = _TOOLS.split("{schemas}")
    return [*_own(head), text(lines), *_own(tail)]


def _own(written: str) -> list[Piece]:
    """Text of the encoder itself: its control spellings are tokens."""
    written = written.replace("<@", f"<{DSML}").replace("</@", f"</{DSML}")
    pieces: list[Piece] = []
    while written:
        found = [(written.find(s), s) for s in (DSML, THINK, END_THINK) if s in written]
        at, spelling = min(found, default=(len(written), ""))
        if at:
            pieces.append(text(written[:at]))
        if spelling:
            pieces.append(control(spelling))
        written = written[at + len(spelling) :]
    return pieces


def call_pieces(name: str, arguments: dict[str, Any]) -> list[Piece]:
    """A tool call in an assistant turn (chat-encoding 6.2)."""
    pieces = [*_own('\n\n<@tool_calls>\n<@invoke name="'), text(name), text('">\n')]
    for key, value in arguments.items():
        is_text = isinstance(value, str)
        raw = value if is_text else json.dumps(value, ensure_ascii=False)
        kind = "true" if is_text else "false"
        pieces += _own('<@parameter name="')
        pieces += [text(f'{key}" string="{kind}">{raw}'), *_own("</@parameter>\n")]
    return [*pieces, *_own("</@invoke>\n</@tool_calls>")]


def pieces(turns: list[Turn], tools: list[dict[str, Any]] | None = None) -> list[Piece]:
    """A whole conversation without BOS; every assistant turn is complete and ends with EOS.

    Thinking turns keep their reasoning only where the encoder would: in the last one, or in all
    when tools are declared. The corpus has no other shape.
    """
    made: list[Piece] = []
    if tools:
        head = turns[0].content if turns[0].role == "system" else ""
        made += [text(head + "\n\n"), *tools_block(tools)]
    elif turns[0].role == "system":
        made.append(text(turns[0].content))
    for turn in turns:
        if turn.role == "user":
            made += [control(USER), text(turn.content)]
        elif turn.role == "tool":
            made += [control(USER), text(f"<tool_result>{turn.content}</tool_result>")]
        elif turn.role == "assistant":
            made.append(control(ASSISTANT))
            if turn.reasoning is not None:
                made += [control(THINK), text(turn.reasoning)]
            made += [control(END_THINK), text(turn.content)]
            made += call_pieces(*turn.call) if turn.call else []
            made.append(control(EOS))
    return made


class WireEncoder:
    """Pieces to ids: runs of text with a tokenizer that knows no control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        raw = json.loads(tokenizer.to_str())
        ids = {entry["content"]: entry["id"] for entry in raw["added_tokens"]}
        self.controls = {name: ids[name] for name in SPECIALS}
        raw["added_tokens"] = []
        self.plain = Tokenizer.from_str(json.dumps(raw))

    def ids(self, parts: list[Piece]) -> list[int]:
        return self.batch([parts])[0]

    def batch(self, documents: list[list[Piece]]) -> list[list[int]]:
        """Many documents at once; neighbouring text pieces are joined before encoding."""
        runs, plans = [], []
        for parts in documents:
            plan: list[int | None] = []
            for is_control, spelling in parts:
                if is_control:
                    plan.append(self.controls[spelling])
                elif plan and plan[-1] is None:
                    runs[-1] += spelling
                else:
                    plan.append(None)
                    runs.append(spelling)
            plans.append(plan)
        encoded = iter(self.plain.encode_batch(runs, add_special_tokens=False))
        made = []
        for plan in plans:
            row: list[int] = []
            for step in plan:
                row += next(encoded).ids if step is None else [step]
            made.append(row)
        return made


def chat_prompt(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
    """Ids of a chat that ends with the header of the next reply, without thinking unless the last
    message says `"thinking": "yes"`."""
    turns = [Turn(message["role"], message["content"]) for message in messages]
    header = THINK if messages[-1].get("thinking") else END_THINK
    parts = [control(BOS), *pieces(turns), control(ASSISTANT), control(header)]
    return WireEncoder(tokenizer).ids(parts)
