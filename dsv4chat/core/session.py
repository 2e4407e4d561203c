"""The chat without its screen.

Engine events change the conversation, and a listener hears what changed.

Phases: starting -> loading -> ready -> prefill -> answering -> ready; `dead` after the engine is
lost, from any phase. Text already received always stays in the conversation.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Literal

from dsv4chat.core.backend import Backend, BackendEvent, EngineBack, EngineLost, EngineStuck
from dsv4chat.core.conversation import Conversation, OptionMark, Turn
from dsv4chat.core.mending import Refusal, take_refusal
from dsv4chat.core.prompts import Prompts
from dsv4chat.core.records import RecordStore
from dsv4chat.core.settings import Settings
from dsv4chat.core.timing import Timing
from engine.framing import ProtocolError
from engine.protocol import (
    Cancel,
    ChatMessage,
    Encoded,
    Fault,
    Finished,
    Generate,
    Hello,
    Load,
    LoadProgress,
    OptionsApplied,
    PrefillProgress,
    Ready,
    SetOptions,
    StepOptions,
    StopReason,
    Telemetry,
    Tokens,
)

Phase = Literal["starting", "loading", "ready", "prefill", "answering", "dead"]
Change = Literal[
    "phase", "progress", "tokens", "telemetry", "path", "options", "finished", "notice", "stuck"
]
Listener = Callable[[Change], None]
FROZEN = "panels stay there: F2 looks inside, ctrl+g dumps, esc stops, F11 follows again"


class ChatSession:
    """One conversation with one engine. The engine's answers follow as events."""

    def __init__(
        self, backend: Backend, settings: Settings, model: str, *, system: str = ""
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.model = model
        self.conversation = Conversation(system)
        self.records = RecordStore()
        self.listener: Listener = lambda change: None
        self.phase: Phase = "starting"
        self.load_progress: LoadProgress | None = None
        self.load_log: list[str] = []
        self.ready: Ready | None = None
        self.applied: StepOptions | None = None
        self.answering: Turn | None = None
        self.queued: Turn | None = None  # user turn waiting for the engine to become ready
        self.prefill: PrefillProgress | None = None
        self.stopping = False
        self.refusal: Refusal | None = None  # the engine cannot take this conversation
        self.lost: EngineLost | None = None
        self.stuck: EngineStuck | None = None
        self.timing = Timing()
        self.notices: list[str] = []
        self.prompts = Prompts()
        self.then: Callable[[], None] | None = None  # follows the answer unless it is stopped
        self.remote = ""  # the URL of a server that answers instead of our engine
        self.replay = ""  # the name of a dump that stands in for an engine
        self.context_used = 0
        self._request = 0

    # ---- engine ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start (or restart) the engine and load the model."""
        self.phase, self.lost, self.stuck, self.ready = "starting", None, None, None
        self.load_progress, self.load_log, self.stopping = None, [], False
        self._end_answer("fault", "the engine was restarted")
        self.listener("phase")
        load = Load(
            model=self.model,
            device=self.settings.device,
            precision=self.settings.precision,
            context=self.settings.context,
            gpus=self.settings.gpus,
        )
        try:
            await self.backend.start(load)
        except OSError as error:
            self._lose(EngineLost(f"the engine could not be started: {error}"))

    async def pump(self) -> None:
        """Handle events for ever. One that cannot be handled does not end the conversation."""
        async for event in self.backend.events():
            try:
                self.handle(event)
            except Exception as error:  # noqa: BLE001
                self.notify(f"{type(event).__name__} from the engine was not understood: {error!r}")

    def handle(self, event: BackendEvent) -> None:
        """Take one event. Events of an older request are ignored."""
        match event:
            case LoadProgress():
                self._load_progress(event)
            case Ready():
                self._ready(event)
            case PrefillProgress() | Tokens() | Telemetry() | Finished():
                if self.answering is not None and event.request == self._request:
                    self._answer_event(self.answering, event)
            case OptionsApplied():
                self._options_applied(event)
            case Fault():
                if not event.fatal:
                    self.notify(event.message)
            case EngineLost():
                self._lose(event)
            case EngineStuck():
                self.stuck = event
                self.listener("stuck")
            case EngineBack():
                self.stuck = None
                self.listener("stuck")
            case Encoded():
                self.prompts.take(event)
            case Hello():
                self.phase = "loading"
                self.listener("phase")

    def _load_progress(self, event: LoadProgress) -> None:
        self.phase = "loading"
        if self.load_progress is None or event.stage != self.load_progress.stage:
            self.load_log.append(event.stage)
        self.load_progress = event
        self.listener("progress")

    def _ready(self, event: Ready) -> None:
        self.ready, self.phase = event, "ready"
        self.applied = None
        self.listener("phase")
        if self.queued is not None:
            turn, self.queued = self.queued, None
            self._generate(turn)

    def _answer_event(
        self, turn: Turn, event: PrefillProgress | Tokens | Telemetry | Finished
    ) -> None:
        match event:
            case PrefillProgress():
                self.prefill = event
                self.context_used = event.total
                self.listener("progress")
            case Tokens():
                self._tokens(turn, event)
            case Telemetry():
                bad = self.records.add_payload(turn.id, event.index, event.payload)
                if bad >= 0 and turn.bad_token is None:
                    turn.bad_token = event.index, bad
                    self.notify(f"token {event.index} is not finite from layer {bad} on; {FROZEN}")
                self.listener("telemetry")
            case Finished():
                self._finished(turn, event)

    def _tokens(self, turn: Turn, event: Tokens) -> None:
        if self.phase != "answering":
            self.phase = "answering"
            self.listener("phase")
        turn.add(event)
        self.records.add_tokens(turn.id, event.tokens)
        self.timing.add(len(event.tokens))
        read = self.prefill.total if self.prefill else 0
        self.context_used = read + len(turn.token_ids) - turn.kept
        if event.tokens:
            token = event.tokens[-1]
            taps = self.applied.taps if self.applied else self.settings.taps
            self.applied = StepOptions(token.router, token.gsa, taps)
        if turn.text and self.timing.answer_at is None:
            self.timing.answer_at = self.timing.last_token_at
            if turn.reasoning:
                turn.thinking_s = (self.timing.answer_at or 0) - self.timing.sent_at
        self.listener("tokens")

    def _finished(self, turn: Turn, event: Finished) -> None:
        turn.finished, turn.tool_calls = event, list(event.tool_calls)
        if event.prompt_tokens:
            self.context_used = event.prompt_tokens + event.tokens
        for warning in event.warnings:
            self.notify(warning)
        then = self.then
        self._end_answer(event.reason, event.message)
        self.refusal = take_refusal(self.conversation, turn, event)
        self.listener("path" if self.refusal else "finished")
        if then is not None and event.reason not in ("cancelled", "fault"):
            then()

    def _end_answer(self, reason: StopReason, note: str) -> None:
        """Close the running answer, if there is one. What it has said stays."""
        turn, self.answering, self.then = self.answering, None, None
        self.stopping, self.prefill = False, None
        self.timing.ended_at = self.timing.ended_at or self.timing.last_token_at
        if self.phase in ("prefill", "answering"):
            self.phase = "ready"
        if turn is not None:
            turn.finish, turn.note = reason, note
            if turn.reasoning and not turn.thinking_s:
                turn.thinking_s = self.timing.elapsed_s

    def _options_applied(self, event: OptionsApplied) -> None:
        self.applied = event.options
        turn = self.answering
        if turn is not None and event.request == self._request:
            if event.options != turn.options:
                turn.marks.append(OptionMark(event.index, event.options))
        self.listener("options")

    def _lose(self, event: EngineLost) -> None:
        self.lost, self.stuck = event, None
        self._end_answer("fault", event.reason)
        self.phase = "dead"
        self.listener("phase")
        self.listener("finished")

    # ---- what the user does ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.answering is not None or self.queued is not None

    def send(self, text: str, *, replacing: Turn | None = None) -> Turn:
        """Add a user turn, as a sibling of `replacing` where given, and have it answered."""
        text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate cannot be sent
        parent = replacing.parent if replacing else self.conversation.leaf
        turn = self.conversation.add_user(text, parent=parent)
        self._answer(turn)
        return turn

    def regenerate(self) -> bool:
        """Answer the last message once more, as a sibling of the last answer."""
        turn = self.conversation.last_asked()
        if turn is None or self.busy:
            return False
        self.conversation.leaf = turn.id
        self._answer(turn)
        return True

    def _answer(self, user: Turn) -> None:
        if self.phase == "ready":
            self._generate(user)
        else:
            self.queued = user
            self.listener("path")

    def _generate(self, user: Turn) -> None:
        """Send the path up to `user`; the answer becomes its newest child."""
        messages = self.conversation.messages(user)
        turn = self.conversation.add_assistant(self.settings, parent=user.id)
        turn.model = self.ready.model.name if self.ready else ""
        self.records.open(turn.id, self.ready.layout if self.ready else None)
        self.request(turn, messages)

    def request(
        self, turn: Turn, messages: list[ChatMessage], forced_ids: Sequence[int] = (), kept: int = 0
    ) -> None:
        """Have `turn` answered with its own settings. It need not be in the conversation."""
        settings = turn.settings or self.settings
        self._request += 1
        self.answering, self.phase, self.stopping = turn, "prefill", False
        self.timing, self.prefill, self.refusal = Timing(), None, None
        command = Generate(
            request=self._request,
            messages=messages,
            sampling=settings.sampling,
            options=turn.options or settings.options,
            effort=settings.effort,
            forced_ids=list(forced_ids),
            kept=kept,
        )
        try:
            sent = self.backend.send(command)
        except (ProtocolError, UnicodeEncodeError) as error:
            self._end_answer("fault", str(error))
        else:
            if not sent:
                self._end_answer("fault", "the engine is not there")
        self.listener("path")
        self.listener("phase")

    def stop(self) -> bool:
        """Stop whatever runs, in any phase. False if nothing does."""
        if self.queued is not None:
            turn, self.queued = self.queued, None
            if turn.role == "user" and not self.conversation.children(turn.id):
                self.conversation.take_back(turn)
            self.listener("path")
            return True
        if self.answering is None:
            return False
        if not self.stopping:
            self.stopping = True
            with contextlib.suppress(ProtocolError):
                self.backend.send(Cancel(self._request))
            self.listener("phase")
        return True

    def set_value(self, name: str, value: object) -> None:
        """Change a setting; step options reach the engine at once.

        Raises:
            ValueError: not a value for it, or the engine has said that it cannot run it.
        """
        settings = self.settings.with_value(name, value)
        refused = self.ready.refused if self.ready else {}
        if settings.router != self.settings.router and settings.router in refused:
            raise ValueError(f"{settings.router} cannot run here: {refused[settings.router]}")
        changed = settings.options != self.settings.options
        self.settings = settings
        if changed and self.ready is not None and self.phase != "dead":
            self.backend.send(SetOptions(settings.options))
        self.listener("options")

    def new_conversation(self) -> bool:
        """Begin again; False while an answer runs."""
        return self.open_conversation(Conversation(self.conversation.system))

    def open_conversation(self, conversation: Conversation) -> bool:
        """Put another conversation on screen; False while an answer runs."""
        if self.busy:
            return False
        self.conversation, self.refusal = conversation, None
        last = conversation.last("assistant")
        done = last.finished if last else None
        self.context_used = done.prompt_tokens + done.tokens if done else 0
        self.listener("path")
        return True

    def notify(self, message: str) -> None:
        """Keep a message for the user and tell the listener."""
        self.notices.append(message)
        self.listener("notice")
