"""Messages between the app and the engine process.

Commands go to the engine, events come back; each direction is one tagged union. Nothing here needs
torch or Textual.
"""

from typing import Any, Literal

import msgspec

from engine.telemetry import TapLayout

PROTOCOL_VERSION = 2

RouterPath = Literal["fused", "two-kernel", "bf16"]
GsaMode = Literal["runtime", "checkpoint"]
Precision = Literal["nvfp4", "checkpoint"]
Effort = Literal["none", "low", "high", "max"]
Channel = Literal["thinking", "answer", "tool"]
StopReason = Literal["stop", "length", "cancelled", "fault", "context"]


# ---- values --------------------------------------------------------------------------------------


class StepOptions(msgspec.Struct, frozen=True):
    """What changes the kernels of a step; the key of a captured graph."""

    router: RouterPath = "fused"
    gsa: GsaMode = "runtime"
    taps: bool = True


class Sampling(msgspec.Struct, frozen=True):
    """Sampler settings. temperature 0 is argmax; top_p 1 and min_p 0 keep everything; seed None
    draws one."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None


class ToolCall(msgspec.Struct):
    """A call the model made. `arguments` is JSON text. `error` says why a call must not be
    executed."""

    id: str
    name: str
    arguments: str
    error: str = ""


class ChatMessage(msgspec.Struct):
    """One turn of a conversation, as the encoder reads it.

    `token_ids` are the ids the model sampled for an assistant turn, kept so that the next prompt
    repeats them exactly. `unfinished` on the last assistant turn asks the model to continue it.
    """

    role: Literal["system", "user", "assistant", "tool", "latest_reminder"]
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""
    token_ids: list[int] = []
    unfinished: bool = False


class PlanRow(msgspec.Struct, frozen=True):
    """Which implementation an op got, and why."""

    op: str
    impl: str
    reason: str = ""


class ModelInfo(msgspec.Struct, frozen=True):
    """What was loaded. Sizes in bytes, `resident_bytes` on all GPUs together. `bytes_per_token`
    are the weight bytes one decoded token reads; of several GPUs, on the first."""

    name: str
    path: str
    is_demo: bool
    layers: int
    hidden_size: int
    vocab_size: int
    experts: int
    top_k: int
    hash_layers: int
    compress_ratios: tuple[int, ...]
    precision: Precision
    parameters: int
    resident_bytes: int
    bytes_per_token: int
    formats: dict[str, str]  # tensor class -> format as stored
    gsa_stored: dict[
        str, list[float]
    ]  # site -> the checkpoint's input_scale per layer, 0 where it has none
    effort_profile: str


class Machine(msgspec.Struct, frozen=True):
    """Where the engine runs. `packages`: name -> version. The last three are empty on a CPU."""

    system: str = ""
    python: str = ""
    cores: int = 0
    packages: dict[str, str] = {}
    gpu: str = ""
    cuda: str = ""
    driver: str = ""


# ---- commands (app -> engine) --------------------------------------------------------------------


class Load(msgspec.Struct, tag=True):
    """Load a model directory. Once per process; a new model is a new process."""

    model: str
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = "nvfp4"
    context: int | None = None
    gpus: int = 1  # to split the model over; on the CPU as many processes
    effort_profile: Literal["auto", "preview", "official"] = "auto"


class Generate(msgspec.Struct, tag=True):
    """Answer a conversation. Refused with a `Finished` of reason fault while another answer runs.

    `forced_ids` are taken as the first tokens of the answer instead of sampling them. The first
    `kept` of them are known to the app: they are read like a prompt and not reported again, and
    the first reported token has the index `kept`.
    """

    request: int
    messages: list[ChatMessage]
    sampling: Sampling = Sampling()
    options: StepOptions = StepOptions()
    effort: Effort = "none"
    tools: list[dict[str, Any]] = []
    forced_ids: list[int] = []
    kept: int = 0


class Encode(msgspec.Struct, tag=True):
    """Ask for the prompt of a conversation, as `Generate` would feed it. Answered at any time."""

    request: int
    messages: list[ChatMessage]
    effort: Effort = "none"
    tools: list[dict[str, Any]] = []


class Cancel(msgspec.Struct, tag=True):
    """Stop an answer, in any phase. Harmless if it has ended."""

    request: int


class SetOptions(msgspec.Struct, tag=True):
    """Switch the step's options; they hold from the next token on (`OptionsApplied` says which)."""

    options: StepOptions


class Shutdown(msgspec.Struct, tag=True):
    """End the process."""


# ---- events (engine -> app) ----------------------------------------------------------------------


class Hello(msgspec.Struct, tag=True):
    """First frame of the engine."""

    version: int
    pid: int


class LoadProgress(msgspec.Struct, tag=True):
    """A stage of loading. `total_bytes` 0 where the stage has no size."""

    stage: str
    done_bytes: int = 0
    total_bytes: int = 0
    gb_s: float = 0.0
    eta_s: float | None = None


class Ready(msgspec.Struct, tag=True):
    """The model is loaded and warm."""

    model: ModelInfo
    device: str
    context: int
    plan: list[PlanRow]
    layout: TapLayout
    eos_ids: list[int]
    refused: dict[str, str] = {}  # router path -> why it cannot run here
    machine: Machine = Machine()


class Encoded(msgspec.Struct, tag=True):
    """The answer to `Encode`. `message` says why there are no ids."""

    request: int
    ids: list[int] = []
    message: str = ""


class PrefillProgress(msgspec.Struct, tag=True):
    request: int
    done: int
    total: int
    reused: int


class Token(msgspec.Struct, frozen=True):
    """One sampled token. `piece` is its text for display, control characters shown as symbols.

    `logprob` is of the raw distribution, before temperature. `router` and `gsa` name the path that
    made it. `forced`: taken from the request instead of sampled.
    """

    index: int
    id: int
    piece: str
    logprob: float
    router: RouterPath
    gsa: GsaMode
    gsa_max: float = 0.0
    saturated: int = 0
    top: list[tuple[int, float]] = []  # raw (id, logprob), best first; empty with taps off
    pieces: list[str] = []  # text of each id in `top`
    forced: bool = False


class Delta(msgspec.Struct, frozen=True):
    """Text that became certain with token `index`. Never half a character, never a structural
    token."""

    index: int
    channel: Channel
    text: str


class Tokens(msgspec.Struct, tag=True):
    """A batch of tokens and the text they released. Never dropped."""

    request: int
    tokens: list[Token]
    deltas: list[Delta]


class Telemetry(msgspec.Struct, tag=True):
    """The tap record of one token (`TapRecord`). May be dropped; `Finished.telemetry_dropped`
    counts."""

    request: int
    index: int
    payload: bytes


class OptionsApplied(msgspec.Struct, tag=True):
    """`options` hold from token `index` of `request` on (-1, 0: from the next answer on)."""

    options: StepOptions
    request: int = -1
    index: int = 0


class Finished(msgspec.Struct, tag=True):
    """An answer ended. Sent exactly once per accepted request. `message` explains fault and
    context; `at` is the index of the message for which a conversation was refused. With
    `unclosed_thinking` the model stopped without closing its reasoning: the thinking text is the
    answer. `step_ms`: p50, p90, p99 of the time between tokens, where they are made; empty below
    two tokens. `graph_tokens`: how many of them replayed a captured graph."""

    request: int
    reason: StopReason
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    thinking_tokens: int = 0
    ttft_ms: float = 0.0
    tok_s: float = 0.0
    seed: int = 0
    message: str = ""
    tool_calls: list[ToolCall] = []
    warnings: list[str] = []
    unclosed_thinking: bool = False
    telemetry_dropped: int = 0
    at: int | None = None
    step_ms: tuple[float, ...] = ()
    graph_tokens: int = 0


class Fault(msgspec.Struct, tag=True):
    """Something failed outside an answer. After a fatal one the process ends."""

    message: str
    fatal: bool = False


class Heartbeat(msgspec.Struct, tag=True):
    """Sent every second. `progress` rises with every step, chunk or loaded tensor; `busy` names the
    work."""

    progress: int
    busy: str = ""


Command = Load | Generate | Encode | Cancel | SetOptions | Shutdown
Event = (
    Hello
    | LoadProgress
    | Ready
    | Encoded
    | PrefillProgress
    | Tokens
    | Telemetry
    | OptionsApplied
    | Finished
    | Fault
    | Heartbeat
)
