"""A small real engine for tests of the app: a process that speaks the protocol and has no model.

The last user message chooses what happens: `!kill`, `!exit 3`, `!hang`, `!slow`, `!prefill`,
`!saturate`, `!nan`, `!hold`, `!file NAME`; anything else is answered with a fixed text. Words can be
combined. Run it by hand: DSV4CHAT_ENGINE="python tests/ui/fake_engine.py" python -m dsv4chat
--model FOLDER
"""

import argparse
import array
import math
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine import framing as f  # noqa: E402
from engine import protocol as p  # noqa: E402
from engine.telemetry import SITES, TapLayout  # noqa: E402

THOUGHT = "The user wants to know about scales. I will keep it short, and show the formula once."
ANSWER = """A row of activations has its own **global scale**, `gsa = amax/2688`.

1. The largest magnitude of the row is found.
2. Every block of 16 values gets an E4M3 scale below 448.
3. Codes are E2M1: ±0, 0.5, 1, 1.5, 2, 3, 4, 6.

```python
def gsa(row):
    return max(abs(x) for x in row) / 2688  # 6 * 448
```

| site | feeds |
|---|---|
| `attn_in` | wq_a, wkv |
| `ffn_in` | gate, w1, w3 |

> A scale that is too small saturates; one that is too large flushes small blocks to zero.
"""
NASTY = (
    "[/a/x] [bold]not bold[/bold] [@click=app.quit]x[/] \x1b[31mred\x1b[0m \x1b]0;title\x07 "
    "\x9b2J \u202eabc\u202c \u2028second line\x0c third\r\nfourth 漢字 👩‍👩‍👧 e\u0301 "
    "<script> &amp; ```[/]``` \x00\x7f"
)


class FakeEngine:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.sock = socket.socket(fileno=args.fd)
        self.lock = threading.Lock()
        self.options = p.StepOptions()
        self.request = -1
        self.cancelled = threading.Event()
        self.hung = threading.Event()
        self.progress = 0
        self.busy = ""
        self.switched = False
        blocks = (16, 8, 16, 8, 16, 8, 8, 16)
        self.layout = TapLayout(layers=args.layers, top_k=args.top_k, streams=4, blocks=blocks)

    def send(self, event: p.Event) -> None:
        if self.hung.is_set():
            threading.Event().wait()
        with self.lock:
            self.sock.sendall(f.encode_frame(event))

    def run(self) -> None:
        print("fake engine: started", flush=True)
        self.send(p.Hello(version=self.args.version, pid=os.getpid()))
        threading.Thread(target=self.beat, daemon=True).start()
        while (body := f.read_frame(self.sock)) is not None:
            self.take(f.decode_command(body))
        os._exit(0)

    def beat(self) -> None:
        while True:
            time.sleep(self.args.beat_s)
            self.send(p.Heartbeat(progress=self.progress, busy=self.busy))

    def take(self, command: p.Command) -> None:
        match command:
            case p.Load():
                self.load(command)
            case p.Generate():
                self.cancelled.clear()
                self.request = command.request
                threading.Thread(target=self.generate, args=(command,), daemon=True).start()
            case p.Encode():
                ids = [0, *(len(message.content) for message in command.messages)]
                self.send(p.Encoded(command.request, ids))
            case p.Cancel():
                if command.request == self.request:
                    self.cancelled.set()
            case p.SetOptions():
                self.options, self.switched = command.options, True
                if not self.busy:
                    self.switched = False
                    self.send(p.OptionsApplied(command.options))
            case p.Shutdown():
                os._exit(0)

    def load(self, command: p.Load) -> None:
        if self.args.load_fault:
            print("fake engine: about to fail", flush=True)
            self.send(p.Fault(self.args.load_fault, fatal=True))
            os._exit(1)
        total = 168 * 10**9
        steps = max(1, int(self.args.load_s * 20))
        for stage in ("reading weights", "preparing kernels", "warming up"):
            for step in range(steps + 1):
                done = total * step // steps if stage == "reading weights" else 0
                size = total if stage == "reading weights" else 0
                eta = (steps - step) / 20 if size else None
                self.send(p.LoadProgress(stage, done, size, 6.2 if size else 0.0, eta))
                time.sleep(self.args.load_s / steps / 3)
        self.send(self.ready(command))

    def ready(self, command: p.Load) -> p.Ready:
        layers = self.args.layers
        info = p.ModelInfo(
            name=self.args.name, path=command.model, is_demo=self.args.demo, layers=layers,
            hidden_size=256, vocab_size=4096, experts=self.args.experts, top_k=self.args.top_k,
            hash_layers=3, compress_ratios=tuple([0, 0] + [4, 128] * layers)[:layers],
            precision=command.precision, parameters=22_400_000, resident_bytes=25_000_000,
            bytes_per_token=5_200_000, formats={"routed experts": "NVFP4", "attention": "FP8"},
            gsa_stored={site: [0.002] * layers for site in ("ffn_in", "w2_in")},
            effort_profile="official",
        )  # fmt: skip
        plan = [
            p.PlanRow("router", "reference", "no CUDA device"),
            p.PlanRow("nvfp4_linear", "torch_cpu", "first that supports cpu"),
            p.PlanRow("sparse_attention", "reference", "no CUDA device"),
        ]
        refused = dict(item.split("=", 1) for item in self.args.refuse)
        return p.Ready(
            info, command.device, command.context or 4096, plan, self.layout, [1], refused,
            p.Machine("fake system", "3.11", 2, {"torch": "none"}),
        )  # fmt: skip

    def generate(self, command: p.Generate) -> None:
        self.busy, self.options, self.switched = "prefill", command.options, False
        ask = command.messages[-1].content
        started = time.monotonic()
        prompt = 10 + sum(len(message.content) // 4 for message in command.messages)
        pause = 0.25 if "!prefill" in ask else 0.0
        for done in range(0, prompt, max(1, prompt // 8)):
            self.send(p.PrefillProgress(command.request, done, prompt, 0))
            if self.cancelled.wait(pause):
                return self.finish(command, "cancelled", prompt, 0, 0, started, None)
        calls = {call.id for message in command.messages for call in message.tool_calls}
        for at, message in enumerate(command.messages):
            if message.role == "tool" and message.tool_call_id not in calls:
                words = f"message {at + 1} (tool): no call has the id {message.tool_call_id!r}"
                return self.send(p.Finished(command.request, "fault", message=words, at=at))
        self.busy = "decode"
        self.decode(command, ask, prompt, started)

    def script(self, command: p.Generate, ask: str) -> list[tuple[p.Channel, str]]:
        text = ANSWER
        if match := re.search(r"!file (\S+)", ask):
            text = Path(match[1]).read_text(encoding="utf-8")
        elif "!nasty" in ask:
            text = NASTY
        elif "!say " in ask:
            text = ask.split("!say ", 1)[1]
        script: list[tuple[p.Channel, str]] = []
        if command.effort != "none":
            script += [("thinking", piece) for piece in re.findall(r"\s*\S+", THOUGHT)]
        return script + [("answer", piece) for piece in re.findall(r"\s*\S{1,8}|\s+$", text)]

    def decode(self, command: p.Generate, ask: str, prompt: int, started: float) -> None:
        script = self.script(command, ask)
        limit = command.sampling.max_tokens or len(script)
        pause = 0.05 if "!slow" in ask else 1 / self.args.rate
        if match := re.search(r"!pace (\S+)", ask):
            pause = float(match[1])
        first_at = None
        forced = dict(enumerate(command.forced_ids))
        if (match := re.search(r"!split (\d+)", ask)) and command.options.gsa == "checkpoint":
            forced.setdefault(int(match[1]), 501)
        script = [
            (channel, f" word{forced[n] - 500}" if forced.get(n, 500) != 500 else text)
            for n, (channel, text) in enumerate(script)
        ]
        for index, (channel, text) in enumerate(script[:limit]):
            if index < command.kept:
                continue
            if "!hold" in ask and index == 2 and command.options.router != "fused":
                self.cancelled.wait()
            if self.cancelled.is_set():
                return self.finish(command, "cancelled", prompt, index, 0, started, first_at)
            self.misbehave(ask, index)
            if self.switched:
                self.switched = False
                self.send(p.OptionsApplied(self.options, command.request, index))
            self.one_token(command, ask, index, channel, text, forced.get(index, 500))
            first_at = first_at or time.monotonic()
            self.progress += 1
            time.sleep(pause)
        reason: p.StopReason = "length" if limit < len(script) else "stop"
        thinking = sum(channel == "thinking" for channel, _ in script[:limit])
        self.finish(command, reason, prompt, min(limit, len(script)), thinking, started, first_at)

    def misbehave(self, ask: str, index: int) -> None:
        if index != 5:
            return
        if "!kill" in ask:
            os.kill(os.getpid(), signal.SIGKILL)
        if "!hang" in ask:
            self.hung.set()
        if match := re.search(r"!exit (\d+)", ask):
            print("fake engine: RuntimeError: out of [/memory]", file=sys.stderr, flush=True)
            os._exit(int(match[1]))

    def one_token(
        self,
        command: p.Generate,
        ask: str,
        index: int,
        channel: p.Channel,
        text: str,
        token_id: int,
    ) -> None:
        saturated = 14 if "!saturate" in ask and index >= 3 else 0
        share = 0.5 + 0.4 * math.sin(index) ** 2
        if self.options.gsa == "checkpoint":
            share -= 0.01 * (index % 8)
        others = (1 - share) / 19
        top = [
            (500 + n, math.log(share if n == 0 else max(others / n**0.5, 1e-9))) for n in range(20)
        ]
        pieces = [text, *(f" word{n}" for n in range(1, 20))]
        token = p.Token(
            index, token_id, text.replace("\n", "↵"), math.log(share),
            self.options.router, self.options.gsa, gsa_max=0.0016, saturated=saturated,
            top=top if self.options.taps else [], pieces=pieces if self.options.taps else [],
            forced=index < len(command.forced_ids),
        )  # fmt: skip
        self.send(p.Tokens(command.request, [token], [p.Delta(index, channel, text)]))
        if self.options.taps:
            payload = self.record(index, top, saturated, "!nan" in ask)
            self.send(p.Telemetry(command.request, index, payload))

    def record(self, index: int, top: list[tuple[int, float]], saturated: int, bad: bool) -> bytes:
        rng, layers = random.Random(index), self.args.layers
        chosen = [rng.sample(range(self.args.experts), self.args.top_k) for _ in range(layers)]
        if self.options.router == "bf16":  # another set in layer 5, another order in layer 6
            chosen[5][-1] = next(n for n in range(self.args.experts) if n not in chosen[5])
            chosen[6][-2:] = chosen[6][:-3:-1]
        experts = [expert for layer in chosen for expert in layer]
        share = [1.5 * 0.5**n for n in range(1, self.args.top_k + 1)]
        weights = [share[n % self.args.top_k] for n in range(layers * self.args.top_k)]
        live = [0.0008 * (1 + 0.8 * math.sin(n + index / 9)) for n in range(layers * len(SITES))]
        clipped = [0] * (layers * len(SITES))
        if saturated:
            clipped[(layers // 2) * len(SITES) + 4] = saturated
            live[(layers // 2) * len(SITES) + 4] = 0.0031
        values = {
            "position": [index], "chosen_id": [500], "sampler_kept": [5],
            "first_bad_layer": [2 if bad else -1], "logits_max": [24.3], "logsumexp": [24.6],
            "entropy": [0.64 + 0.5 * math.cos(index)], "chosen_logit": [24.3],
            "top_ids": [i for i, _ in top],
            "top_logits": [24.6 + lp for _, lp in top], "gsa_live": live, "saturated": clipped,
            "gsa_used": [0.002 if self.options.gsa == "checkpoint" else value for value in live],
            "flushed": [3 if n == 11 else 0 for n in range(layers * len(SITES))],
            "expert_ids": experts, "expert_weights": weights,
            "router_margin": [math.inf] * 3 + [0.0007 * (n + 1) for n in range(layers - 3)],
            "sink_mass": [0.05 + 0.01 * (n % 7) for n in range(layers)],
            "window_mass": [0.5 + 0.03 * (n % 11) for n in range(layers)],
            "compressed_mass": [0.1 * (n % 3) if n > 1 else 0.0 for n in range(layers)],
            "visible_blocks": [index // 4 if n > 1 else 0 for n in range(layers)],
            "block_ids": [
                block if block < index // 4 else -1 for n in range(layers) for block in range(16)
            ],
            "stream_norms": [1.0 + 0.1 * n for n in range(layers * 4)],
        }  # fmt: skip
        if bad:  # as an engine's: everything after the layer is NaN
            for field in self.layout.fields():
                if field.kind == "f":
                    kept = 2 * (len(values[field.name]) // layers)
                    values[field.name] = [
                        value if n < kept else math.nan
                        for n, value in enumerate(values[field.name])
                    ]
        return b"".join(
            array.array(field.kind, values[field.name]).tobytes() for field in self.layout.fields()
        )

    def finish(
        self, command: p.Generate, reason: p.StopReason, prompt: int, tokens: int, thinking: int,
        started: float, first_at: float | None,
    ) -> None:  # fmt: skip
        now = time.monotonic()
        ttft = 1000 * ((first_at or now) - started)
        rate = tokens / (now - first_at) if first_at and now > first_at else 0.0
        self.busy = ""
        seed = 7 if command.sampling.seed is None else command.sampling.seed
        self.send(
            p.Finished(
                command.request,
                reason,
                prompt,
                0,
                tokens,
                thinking,
                ttft,
                rate,
                seed,
                step_ms=(2.2 if self.options.taps else 2.0, 3.0, 4.0),
                graph_tokens=max(0, tokens - 1),
            )  # fmt: skip
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--version", type=int, default=p.PROTOCOL_VERSION)
    parser.add_argument("--load-s", type=float, default=0.02)
    parser.add_argument("--load-fault", default="")
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--beat-s", type=float, default=0.2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--name", default="Demo V4")
    parser.add_argument("--demo", type=int, default=1)
    parser.add_argument("--refuse", nargs="*", default=[])
    args = parser.parse_args()
    args.demo = bool(args.demo)
    try:
        FakeEngine(args).run()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


if __name__ == "__main__":
    main()
