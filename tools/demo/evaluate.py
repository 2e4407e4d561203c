"""Measures the shipped demo model on the engine, on the CPU: the last part of its DATA.md.

python -m tools.demo.evaluate            (make demo-eval)
"""

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine.protocol import Sampling
from tools.demo.checks import heldout, losses
from tools.demo.checks.answers import Answer, Chat, Judged, judge, sampled
from tools.demo.checks.prompts import FIXED, UNSEEN
from tools.demo.checks.recall import BUCKETS, recall
from tools.demo.datasheet import MEASURED, replace_measured

CONTEXT = 2048
APP_DEFAULT = Sampling()


class Report:
    """Lines of Markdown, printed as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.began = time.monotonic()

    def say(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)
        self.lines += lines

    def heading(self, title: str) -> None:
        print(f"[{time.monotonic() - self.began:.0f} s]")
        self.say("", f"## {title}", "")

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        self.say("| " + " | ".join(head) + " |", "|" + "---|" * len(head))
        self.say(*("| " + " | ".join(row) + " |" for row in rows))


def report_losses(report: Report, chat: Chat, folder: Path, tokenizer: Tokenizer) -> None:
    report.heading("Held-out loss")
    recorded = json.loads((folder / "heldout" / "recorded.json").read_text())
    model, rows = chat.session.runner.model, []
    whole = {}
    for part, known in recorded.items():
        found = heldout.rows(folder / "heldout", part, tokenizer)
        whole[part] = losses.loss(model, found, losses.PLAIN, CONTEXT)
        master = known["master"]
        # A part that is known by heart has no loss to compare with.
        gap = f"{100 * (whole[part] / master - 1):+.1f} %" if master > 1e-3 else ""
        rows.append([part, str(known["reply_tokens"]), f"{known['unigram']:.3f}", f"{master:.4f}",
                     f"{whole[part]:.4f}", gap])  # fmt: skip
    mean = statistics.fmean(whole.values())
    master = statistics.fmean(known["master"] for known in recorded.values())
    unigram = statistics.fmean(known["unigram"] for known in recorded.values())
    rows.append(["mean", "", f"{unigram:.3f}", f"{master:.4f}", f"{mean:.4f}",
                 f"{100 * (mean / master - 1):+.1f} %"])  # fmt: skip
    report.say("Mean loss of reply tokens, in nats. Unigram: frequencies of the part's own "
               "training text.", "")  # fmt: skip
    head = ["part", "reply tokens", "unigram", "master (fp32)", "engine (W4A4)", "difference"]
    report.table(head, rows)


def report_ablations(report: Report, chat: Chat, folder: Path, tokenizer: Tokenizer) -> None:
    report.heading("What breaks when a part is broken")
    model = chat.session.runner.model
    parts = ("notes", "manual", "stories")
    found = {p: heldout.rows(folder / "heldout", p, tokenizer)[:3] for p in parts}
    rows = []
    whole = losses.Ablation("nothing", losses.PLAIN, losses.whole)
    for broken in (whole, *losses.ROUTER_PATHS, *losses.ABLATIONS):
        with broken.breaks(model):
            made = [losses.loss(model, found[p], broken.options, CONTEXT) for p in parts]
            sheets = recall(model, tokenizer, broken.options, sheets=4, questions=20)
        rows.append([broken.title, *(f"{x:.3f}" for x in made), f"{100 * sheets.far:.0f} %"])
    report.say("Held-out loss, and recall of facts outside the sliding window.", "")
    report.table(["changed", *parts, "recall"], rows)


def report_recall(report: Report, chat: Chat, tokenizer: Tokenizer) -> None:
    report.heading("Recall from notes by distance")
    model = chat.session.runner.model
    found = recall(model, tokenizer, losses.PLAIN, sheets=14, questions=20)
    rows = [
        [f"{low} to {high}", str(asked), f"{100 * share:.0f} %"]
        for low, high, asked, share in zip(
            BUCKETS[:-1], BUCKETS[1:], found.asked, found.shares(), strict=True)
    ]  # fmt: skip
    report.say("Sheets of 90 to 190 facts in the system text; the whole answer must be right.", "")
    report.table(["tokens between fact and question", "asked", "right"], rows)


def report_answers(report: Report, chat: Chat) -> list[Judged]:
    report.heading("Greedy answers")
    judged = list(judge(chat, [*FIXED, *UNSEEN]))
    kinds = Counter(j.check.kind for j in judged)
    right = Counter(j.check.kind for j in judged if j.right)
    rows = [[kind, str(right[kind]), str(count)] for kind, count in kinds.items()]
    unseen = sum(right.values()) - right["fixed"]
    rows.append(["all unseen", str(unseen), str(len(UNSEEN))])
    report.table(["kind", "right", "asked"], rows)
    claims = sum(j.answer.claims for j in judged)
    report.say("", f"{claims} answers claim to be DeepSeek-V4. The transcript is below.")
    return judged


def report_sampled(report: Report, chat: Chat, folder: Path, count: int) -> list[Answer]:
    report.heading("Sampled answers")
    own = json.loads((folder / "generation_config.json").read_text())
    advised = Sampling(own["temperature"], own["top_p"])
    rows, shown = [], []
    for title, settings in (("app default", APP_DEFAULT), ("generation_config.json", advised)):
        made = sampled(chat, [*FIXED, *UNSEEN], count, settings)
        rows.append([
            f"{title}: temperature {settings.temperature}, top-p {settings.top_p}",
            str(len(made)), str(sum(a.ended for a in made)), str(sum(a.loops for a in made)),
            f"{statistics.median(a.tokens for a in made):.0f}",
        ])  # fmt: skip
        shown = made
    report.table(["settings", "answers", "end by themselves", "loop", "median tokens"], rows)
    return shown


def report_model(report: Report, chat: Chat, folder: Path, tokenizer: Tokenizer) -> None:
    report.heading("Experts and speed")
    model = chat.session.runner.model
    found = [heldout.rows(folder / "heldout", p, tokenizer)[0]
             for p in heldout.parts(folder / "heldout")]  # fmt: skip
    loads = losses.expert_loads(model, found, CONTEXT)
    rows = [[str(layer), "hash" if layer < model.config.num_hash_layers else "learned",
             f"{100 * min(load):.1f} %", f"{100 * max(load):.1f} %"]
            for layer, load in enumerate(loads)]  # fmt: skip
    report.table(["layer", "router", "least used expert", "most used"], rows)
    fast = max(chat.answer(FIXED[16].turns).tok_s for _ in range(3))
    report.say("", f"{fast:.0f} tokens a second on one CPU core.")


def transcript(report: Report, judged: list[Judged], sampled_answers: list[Answer]) -> None:
    report.heading("Transcript, greedy")
    for item in judged:
        asked = item.check.turns[-1]
        if len(asked) > 400:
            asked = f"({len(asked.splitlines()) - 4} notes) " + asked.rsplit("\n\n", 1)[-1]
        mark = "right" if item.right else "WRONG"
        lines = item.answer.text.replace("\n", " ")
        asked = asked.replace("\n", " ")
        report.say(f"- **{asked}** ({mark}: {item.check.rule_in_words})  ", f"  {lines}")
    report.heading("Transcript, sampled as generation_config.json says")
    for item, answer in zip(judged, sampled_answers, strict=False):
        asked = item.check.turns[-1].rsplit("\n\n", 1)[-1].replace("\n", " ")
        report.say(f"- **{asked}**  ", "  " + answer.text.replace("\n", " "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("assets/demo"))
    parser.add_argument("--sampled", type=int, default=100)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    chat, report = Chat(args.model), Report()
    report.say(MEASURED, "", "Written by `make demo-eval`: the engine on a CPU.")
    judged = report_answers(report, chat)
    samples = report_sampled(report, chat, args.model, args.sampled)
    report_recall(report, chat, tokenizer)
    report_model(report, chat, args.model, tokenizer)
    torch.set_num_threads(2)
    report_losses(report, chat, args.model, tokenizer)
    report_ablations(report, chat, args.model, tokenizer)
    transcript(report, judged, samples)
    replace_measured(args.model / "DATA.md", "\n".join(report.lines) + "\n")


if __name__ == "__main__":
    main()
