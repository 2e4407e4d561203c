"""Writes what ships beside the model: held-out text with recorded losses, DATA.md.

    python -m tools.demo.datasheet --run build/run --corpus build/corpus --out assets/demo

DATA.md ends with what `make demo-eval` measures; this leaves that part as it finds it.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tools.demo import master
from tools.demo.checks import heldout
from tools.demo.config import DEMO
from tools.demo.corpus.__main__ import WORDS
from tools.demo.corpus.sources import SOURCES
from tools.demo.model import DemoModel
from tools.demo.shares import SHARES

MEASURED = "# Measured"

_HEAD = """# The demo model: data

A DeepSeek-V4-architecture chat model of 22 million parameters (8 million work on a token), trained
for this app in a few minutes on one GPU. It is not DeepSeek-V4 and knows none of its weights.

It holds small talk, explains the app, defines {words:,} common words, knows capitals, currencies
and
elements, adds and subtracts to 99 and knows the tables to 12, reads from notes, tells a story of a
grammar, and says so when it does not know. It cannot reason in several steps, follow the news,
write code or translate, and its facts are those of its sources, mistakes included. Its manual is
ahead of the app: it tells of `/find`, `/dump`, `/compare`, a forced token and `--remote`, which the
app does not have. Do not rely on it for anything.

`tools/demo/README.md` has the five commands that make it again. Same packages and seed give the
same corpus, byte for byte; training repeats up to the rounding of the GPU that runs it.
"""


def datasheet(run: Path, corpus: Path, model: Path) -> str:
    """DATA.md up to what is measured."""
    made: dict[str, Any] = json.loads((corpus / "corpus.json").read_text())
    lines = [
        _HEAD.format(words=WORDS),
        "## Sources",
        "",
        "| package | licence | sha256 |",
        "|---|---|---|",
    ]
    lines += [f"| {s.name} {s.version} | {s.licence} | `{s.sha256}` |" for s in SOURCES]
    lines += [
        "",
        "Everything else is our own text (`tools/demo/corpus/text`) and what our grammars and "
        "templates make of it. Licences are in `NOTICE`.",
        "",
        "## Corpus",
        "",
        f"`train.xz` sha256 `{made['train']['sha256']}`, `held.xz` `{made['held']['sha256']}`. One "
        "word, topic, phrasing or conversation in 40 is held out.",
        "",
        "| part | share of training | documents | tokens | held-out tokens |",
        "|---|---|---|---|---|",
    ]
    for part, share in SHARES.items():
        train, held = made["train"]["parts"][part], made["held"]["parts"].get(part, {})
        row = (part, f"{100 * share:.0f} %", f"{train['documents']:,}", f"{train['tokens']:,}",
               f"{held.get('tokens', 0):,}")  # fmt: skip
        lines.append("| " + " | ".join(row) + " |")
    log = json.loads((run / "log.json").read_text())
    lines += ["", "## Training", "", f"{log[-1]['step']:,} steps of 65,536 tokens. Held-out loss "
              "of reply tokens after each phase, by training share:", ""]  # fmt: skip
    lines += ["| phase | steps | quantised | loss |", "|---|---|---|---|"]
    lines += [f"| {e['phase']} | {e['step']:,} | {e['quantised']} | {e['all']:.4f} |" for e in log]
    lines += ["", "## Files", "", "| file | bytes | sha256 |", "|---|---|---|"]
    for path in sorted(model.iterdir()):
        if path.suffix in (".json", ".safetensors"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f"| {path.name} | {path.stat().st_size:,} | `{digest}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of master/ and log.json")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("assets/demo"))
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    model = DemoModel(DEMO)
    model.load_state_dict(master.read(args.run / "master"))
    heldout.write(args.corpus, args.out / "heldout", tokenizer)
    print(json.dumps(heldout.record(args.corpus, args.out / "heldout", tokenizer, model), indent=1))
    replace_head(args.out / "DATA.md", datasheet(args.run, args.corpus, args.out))


def replace_head(path: Path, head: str) -> None:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    _, mark, measured = old.partition(MEASURED)
    path.write_text(head + "\n" + mark + measured, encoding="utf-8")


def replace_measured(path: Path, measured: str) -> None:
    """measured: text that begins with the heading MEASURED."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(old.partition(MEASURED)[0] + measured, encoding="utf-8")


if __name__ == "__main__":
    main()
