"""A tiny model folder with random weights and a byte tokenizer, for tests of the engine process."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from engine.checkpoint.layouts import to_nvidia
from engine.checkpoint.synthetic import (
    random_parameters,
    small_config,
    write_checkpoint,
)
from engine.model.config import ModelConfig

CONTROL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
)


def write_tokenizer(path: Path) -> int:
    """A byte-level tokenizer without merges; returns its vocabulary size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index for index, text in enumerate([*CONTROL, *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.save(str(path))
    return len(vocab)


def write_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random model in NVIDIA's layout, two shards."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = write_tokenizer(folder / "tokenizer.json")
    raw = small_config(vocab_size=vocab, **changes)
    parameters = random_parameters(ModelConfig.parse(raw), seed)
    write_checkpoint(folder, raw, to_nvidia(parameters), shards=2)
    return folder
