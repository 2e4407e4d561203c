"""Every command of the app, once.

Slash commands, the palette, key bindings and key help all read this table.
"""

from dataclasses import dataclass
from typing import Literal

Group = Literal["chat", "branches", "engine", "look inside", "app"]


@dataclass(frozen=True, slots=True)
class Command:
    """`action` is the app's action. `slash` may take an argument, named by `argument`."""

    action: str
    title: str
    help: str
    group: Group
    keys: tuple[str, ...] = ()
    slash: str = ""
    argument: str = ""
    hint: str = ""  # short word for the key line; empty: not there
    browse: bool = False  # key works while the composer does not have the focus

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(key_name(key) for key in self.keys)


_NAMES = {
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "escape": "esc",
}


def key_name(key: str) -> str:
    """A key as people write it: ctrl+r, F5, esc, [."""
    if key.startswith("f") and key[1:].isdigit():
        return key.upper()
    return _NAMES.get(key, key)


# fmt: off
COMMANDS: tuple[Command, ...] = (
    Command("stop", "Stop", "stop the answer; what it has said stays", "chat", ("escape",), "stop",
            hint="stop"),
    Command("regenerate", "Regenerate", "answer again, beside the old answer", "chat", ("ctrl+r",),
            "regenerate", hint="again"),
    Command("edit", "Edit and resend", "edit your last message; again: the one before", "chat",
            ("ctrl+e",), "edit", hint="edit"),
    Command("new_chat", "New chat", "begin a new conversation", "chat", ("ctrl+n",), "new"),
    Command("history", "Chats", "all chats: search, open, rename, delete", "chat", ("ctrl+l",),
            "chats", "WORDS", hint="chats"),
    Command("rename", "Rename chat", "give this chat a name", "chat", (), "rename", "NAME"),
    Command("copy_answer", "Copy answer", "copy the last answer, or the message N back", "chat",
            ("ctrl+y",), "copy", "N"),
    Command("copy_code", "Copy code block", "copy the last code block, or block N", "chat", (),
            "code", "N"),
    Command("editor", "Editor", "write the message in $VISUAL or $EDITOR", "chat", ("ctrl+o",),
            "editor"),
    Command("export", "Export chat", "write all branches to FILE.md or FILE.json", "chat", (),
            "export", "FILE|md|json"),
    Command("import", "Import chat", "open a chat from a JSON export", "chat", (), "import",
            "FILE"),
    Command("find", "Find in chat", "mark a text in this chat, thinking too; again: the next",
            "chat", ("ctrl+f",), "find", "TEXT"),
    Command("find_next(1)", "Next match", "of the text that is looked for", "chat", ("n",),
            browse=True),
    Command("find_next(-1)", "Previous match", "of the text that is looked for", "chat", ("N",),
            browse=True),
    Command("mend", "Mend chat", "repair the message that the model cannot take", "chat", ("m",),
            "mend", browse=True),
    Command("thinking", "Fold thinking", "show or fold the thinking", "chat", ("ctrl+t",),
            "thinking", hint="thinking"),
    Command("system", "System prompt", "set the system prompt; alone: clear it", "chat", (),
            "system", "TEXT"),
    Command("branches", "Branches", "choose a branch from the tree", "branches", ("ctrl+b",),
            "branches"),
    Command("branch(-1)", "Previous branch", "the answer before, at the last fork", "branches",
            ("alt+left",)),
    Command("branch(1)", "Next branch", "the answer after, at the last fork", "branches",
            ("alt+right",)),
    Command("router", "Router path", "next router path, or the one named", "engine", ("f5",),
            "router", "fused|two-kernel|bf16", hint="router"),
    Command("gsa_mode", "gsa mode",
            "activation scales: measured each token, or from the checkpoint", "engine", ("f6",),
            "gsa", "runtime|checkpoint", hint="gsa"),
    Command("taps", "Taps", "record what every token does, for the panels", "engine", ("f7",),
            "taps", "on|off"),
    Command("set_value('temperature')", "Temperature", "0 takes the best token", "engine", (),
            "temperature", "T"),
    Command("set_value('top_p')", "top-p", "keep the best tokens up to this mass", "engine", (),
            "top-p", "P"),
    Command("set_value('min_p')", "min-p", "drop tokens below this share of the best", "engine", (),
            "min-p", "P"),
    Command("set_value('seed')", "Seed", "seed of the sampler, or random", "engine", (), "seed",
            "N|random"),
    Command("set_value('max_tokens')", "Longest answer", "in tokens, or auto", "engine", (),
            "max-tokens", "N|auto"),
    Command("effort", "Effort", "how long to think first: next, or the one named", "engine",
            ("alt+t",), "effort", "none|low|high|max"),
    Command("restart", "Restart engine", "start the engine again; the chat stays", "engine",
            ("f8",), "restart"),
    Command("debug", "Debug screen", "all panels on the full screen", "look inside", ("f2",),
            "debug", hint="inside"),
    Command("panel(1)", "Next panel", "the panel after, in the column", "look inside", ("f3",)),
    Command("token(-1)", "Previous token", "move the token cursor back", "look inside",
            ("f9", "left_square_bracket"), hint="", browse=True),
    Command("token(1)", "Next token", "move the token cursor on", "look inside",
            ("f10", "right_square_bracket"), hint="", browse=True),
    Command("token_live", "Follow the newest token", "let go of the token cursor", "look inside",
            ("f11",), "live"),
    Command("force", "Take another token", "branch at the token cursor with another token",
            "look inside", ("f",), "force", "RANK|TEXT|id N", browse=True),
    Command("compare", "Compare", "answer again with the same seed and another setting",
            "look inside", ("f12",), "compare", "router=NAME|gsa=MODE|…"),
    Command("paths", "Compare router paths", "run these tokens on the other router paths",
            "look inside", ("p",), "paths", browse=True),
    Command("dump", "Dump bundle", "write everything about this chat for dsv4chat replay",
            "look inside", ("ctrl+g",), "dump", "FILE"),
    Command("layer(-1)", "Previous layer", "layer shown in detail", "look inside",
            ("left_curly_bracket",), browse=True),
    Command("layer(1)", "Next layer", "layer shown in detail", "look inside",
            ("right_curly_bracket",), browse=True),
    Command("focus_switch", "Composer or transcript", "move between writing and reading", "app",
            ("f4",)),
    Command("palette", "Commands", "find a command by name", "app", ("ctrl+p",), "commands",
            hint="commands"),
    Command("help", "Keys and help", "every key and command", "app", ("f1",), "help", hint="help"),
    Command("theme", "Theme", "next colour theme, or the one named", "app", (), "theme", "NAME"),
    Command("quit", "Quit", "end the chat and the engine", "app", ("ctrl+q",), "quit", hint="quit"),
)
# fmt: on

SLASH: dict[str, Command] = {command.slash: command for command in COMMANDS if command.slash}
ALIASES = {
    "regen": "regenerate",
    "exit": "quit",
    "q": "quit",
    "temp": "temperature",
    "?": "help",
    "clear": "new",
    "history": "chats",
    "resume": "chats",
}


def parse_slash(text: str) -> tuple[Command, str] | str | None:
    """A slash command and its argument; a message if there is no such command.

    None for ordinary text.

    `//` at the start sends a message that begins with one slash. A path such as `/usr/lib is full`
    is text: only a single word of letters right after the slash counts.
    """
    if not text.startswith("/") or text.startswith("//"):
        return None
    word, _, argument = text[1:].partition(" ")
    name = word.strip().lower().replace("_", "-")
    if not name or not all(ch.isalpha() or ch in "-?" for ch in name):
        return None
    command = SLASH.get(ALIASES.get(name, name))
    if command is None:
        close = [slash for slash in SLASH if slash.startswith(name[:3])]
        hint = f" Did you mean /{close[0]}?" if close else ""
        return f"No command /{name}.{hint} Start with // to send it as text; F1 lists the commands."
    return command, argument.strip()
