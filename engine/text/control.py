"""Control tokens of the chat format: names, and the ids of the full vocabulary (chat-encoding 2.1).

Code asks the tokenizer for an id by name. The table of ids is only for checking a vocabulary that
claims to be the full one; the demo model has others.
"""

import enum
from typing import Literal

Task = Literal["title", "query", "authority", "domain", "read_url", "action"]


class Control(enum.Enum):
    """A token the encoder writes by id. The value is its spelling in tokenizer.json."""

    BOS = "<｜begin▁of▁sentence｜>"
    EOS = "<｜end▁of▁sentence｜>"
    PAD = "<｜▁pad▁｜>"
    USER = "<｜User｜>"
    ASSISTANT = "<｜Assistant｜>"
    THINK = "<think>"
    THINK_END = "</think>"
    DSML = "｜DSML｜"
    REMINDER = "<｜latest_reminder｜>"
    ACTION = "<｜action｜>"
    QUERY = "<｜query｜>"
    AUTHORITY = "<｜authority｜>"
    DOMAIN = "<｜domain｜>"
    TITLE = "<｜title｜>"
    READ_URL = "<｜read_url｜>"


# No chat can be written without these; the others are looked for when a feature needs them.
REQUIRED = (Control.BOS, Control.EOS, Control.USER, Control.ASSISTANT, Control.THINK_END)

TASK_CONTROLS: dict[str, Control] = {
    "title": Control.TITLE,
    "query": Control.QUERY,
    "authority": Control.AUTHORITY,
    "domain": Control.DOMAIN,
    "read_url": Control.READ_URL,
    "action": Control.ACTION,
}

FULL_VOCAB_SIZE = 129_280
FULL_VOCAB_IDS: dict[str, int] = {
    "<｜begin▁of▁sentence｜>": 0,
    "<｜end▁of▁sentence｜>": 1,
    "<｜▁pad▁｜>": 2,
    "<｜User｜>": 128803,
    "<｜Assistant｜>": 128804,
    "<think>": 128821,
    "</think>": 128822,
    "｜DSML｜": 128825,
    "<｜begin▁sys｜>": 128826,
    "<｜end▁sys｜>": 128827,
    "<｜latest_reminder｜>": 128828,
    "<｜action｜>": 128829,
    "<｜query｜>": 128830,
    "<｜authority｜>": 128831,
    "<｜domain｜>": 128832,
    "<｜title｜>": 128836,
    "<｜extracted_url｜>": 128844,
    "<｜read_url｜>": 128845,
    "<｜end_of_query｜>": 128846,
}

# The token that tells a V4.1 vocabulary, whose chat format is another one.
SYSTEM_OF_V41 = "<｜System｜>"
