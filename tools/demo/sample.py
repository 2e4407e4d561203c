"""Greedy answers of a model by full recompute, in the engine's default precision.

python -m tools.demo.sample --master DIR --tokenizer FILE [PROMPT ...]
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.demo import master
from tools.demo.config import DEMO
from tools.demo.model import DemoModel
from tools.demo.packed import EOS_ID, PAD_ID
from tools.demo.wire import chat_prompt

_GRAIN = 128


@torch.no_grad()
def generate(
    model: DemoModel, prompts: list[list[int]], max_tokens: int, quantised: bool = True
) -> list[list[int]]:
    """Greedy replies to prompts of ids, together in one batch. Padding on the right is causal."""
    device = model.embed.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths.max()) + max_tokens
    width = -(-longest // _GRAIN) * _GRAIN
    ids = torch.full((len(prompts), width), PAD_ID, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    first, rows = lengths.clone(), torch.arange(len(prompts), device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    top_k_only = torch.tensor(False, device=device)
    for _ in range(max_tokens):
        used = -(-int(lengths.max()) // _GRAIN) * _GRAIN
        streams, _, _ = model.trunk(ids[:, :used], dtype, top_k_only, quantised)
        last = streams.view(len(prompts), used, *streams.shape[1:])[rows, lengths - 1]
        token = model.logits(last, quantised).float().argmax(-1)
        done |= token == EOS_ID
        ids[rows, lengths] = torch.where(done, PAD_ID, token)
        lengths += (~done).long()
        if bool(done.all()):
            break
    return [ids[row, first[row] : lengths[row]].tolist() for row in range(len(prompts))]


def answers(model: DemoModel, tokenizer_path: Path, chats: list[list[dict[str, str]]]) -> str:
    """Prompt and answer of each chat (messages with role and content), as text to read."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    made = []
    for start in range(0, len(chats), 32):
        batch = chats[start : start + 32]
        replies = generate(model, [chat_prompt(tokenizer, chat) for chat in batch], 160)
        for chat, reply in zip(batch, replies, strict=True):
            text = tokenizer.decode(reply, skip_special_tokens=False)
            made.append(f"> {chat[-1]['content'][-300:]}\n{text}\n")
    return "\n".join(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("prompts", nargs="+")
    args = parser.parse_args()
    model = DemoModel(DEMO)
    master.load(model, args.master)
    chats = [[{"role": "user", "content": prompt}] for prompt in args.prompts]
    print(answers(model, args.tokenizer, chats))


if __name__ == "__main__":
    main()
