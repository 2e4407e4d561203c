"""One conversation's answers: encode, find the cached prefix, prefill the rest, decode, parse,
report.

The state holds the ids of the last answer's sequence. A new prompt keeps the longest prefix it
shares with them; snapshots taken where an answer began make going back there cheap.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engine.errors import ContextError, EngineError, NumericsError
from engine.protocol import (
    Delta,
    Encode,
    Encoded,
    Event,
    Fault,
    Finished,
    Generate,
    OptionsApplied,
    PrefillProgress,
    StepOptions,
    StopReason,
    Telemetry,
    Token,
    Tokens,
)
from engine.runner import Runner, StepResult
from engine.state import RingSnapshot
from engine.telemetry import TapRecord
from engine.text.encoding import ChatEncoder, Prompt
from engine.text.errors import TextError
from engine.text.parser import StreamParser
from engine.text.tokenizer import Tokenizer

_FLUSH_SECONDS = 0.033  # a batch of tokens goes out about 30 times a second
_MAX_SNAPSHOTS = 8
_DEFAULT_MAX_TOKENS = 65536


@dataclass(slots=True)
class _Answer:
    """What is known of the answer under way. `count` includes the tokens that were kept."""

    command: Generate
    prompt: Prompt
    given: list[int]  # the prompt and the kept tokens
    parser: StreamParser
    seed: int
    budget: int
    reused: int = 0
    count: int = 0
    started: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    tokens: list[Token] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    flushed: float = 0.0
    step_ms: list[float] = field(default_factory=list)
    last_token: float = 0.0
    graph_tokens: int = 0


class Session:
    """Answers one `Generate` at a time.

    Args:
        emit: sends an event. interrupted: looks at waiting commands and says whether to stop; it
        may
            change `options` meanwhile. take_dropped: telemetry records lost so far.

    Attributes:
        options: the step's options, read before every step.
        progress: rises with every chunk and token.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        encoder: ChatEncoder,
        emit: Callable[[Event], None],
        interrupted: Callable[[], bool],
        take_dropped: Callable[[], int],
    ) -> None:
        self.runner = runner
        self.tokenizer = tokenizer
        self.encoder = encoder
        self.options = StepOptions()
        self.progress = 0
        self._emit = emit
        self._interrupted = interrupted
        self._take_dropped = take_dropped
        self._snapshots: list[RingSnapshot] = []

    def generate(self, command: Generate) -> None:
        """Answer, and report everything as events; ends with exactly one `Finished`."""
        self.options = command.options
        self._take_dropped()
        try:
            answer = self._prepare(command)
        except (EngineError, TextError) as error:
            reason: StopReason = "context" if isinstance(error, ContextError) else "fault"
            at = getattr(error, "index", None)
            self._emit(Finished(command.request, reason, message=str(error), at=at))
            return
        reason, message = "fault", ""
        try:
            reason, message = self._run(answer)
        except EngineError as error:
            message = str(error)
            if isinstance(error, NumericsError) and error.record is not None:
                self._emit(Telemetry(command.request, answer.count, error.record))
        self._finish(answer, reason, message)

    def encode(self, command: Encode) -> None:
        """Say what the prompt of a conversation is."""
        try:
            self.encoder.validate(command.messages, command.tools, effort=command.effort)
            prompt = self.encoder.encode(
                command.messages, effort=command.effort, tools=command.tools
            )
        except TextError as error:
            self._emit(Encoded(command.request, message=str(error)))
        else:
            self._emit(Encoded(command.request, prompt.ids))

    # ---- before the first token ------------------------------------------------------------------

    def _prepare(self, command: Generate) -> _Answer:
        self.encoder.validate(command.messages, command.tools, effort=command.effort)
        prompt = self.encoder.encode(command.messages, effort=command.effort, tools=command.tools)
        self._check_ids([*prompt.ids, *command.forced_ids])
        kept = command.forced_ids[: command.kept]
        if command.kept < 0 or len(kept) < command.kept:
            raise EngineError(f"kept {command.kept} of {len(command.forced_ids)} forced tokens")
        given = [*prompt.ids, *kept]
        room = self.runner.context - len(prompt.ids)
        if room <= len(kept):
            raise ContextError(
                f"the conversation is {len(given)} tokens and the context holds "
                f"{self.runner.context}; start a new conversation or open a larger context"
            )
        wanted = command.sampling.max_tokens or _DEFAULT_MAX_TOKENS
        seed = command.sampling.seed
        parser = StreamParser(self.tokenizer, prompt, command.tools)
        parser.feed(kept)  # the app has their text
        return _Answer(
            command=command,
            prompt=prompt,
            given=given,
            parser=parser,
            seed=secrets.randbits(48) if seed is None else seed,
            budget=min(wanted, room),
            count=len(kept),
        )

    def _check_ids(self, ids: list[int]) -> None:
        """Token ids index the embedding and the hash tables: check them before they get there."""
        vocab = self.runner.model.config.vocab_size
        for token_id in ids:
            if not 0 <= token_id < vocab:
                raise EngineError(f"token id {token_id} is outside the vocabulary of {vocab}")

    def _take_prompt(self, answer: _Answer) -> bool:
        """Bring the state to the last given token but one; False if interrupted."""
        ids = answer.given[:-1]
        shared = _common_length(self.runner.ids, ids)
        answer.reused = self.runner.rewind(shared, self._snapshots)
        self._snapshots = [s for s in self._snapshots if s.position <= answer.reused]
        rest, total = ids[answer.reused :], len(ids)

        def go_on(done: int) -> bool:
            self.progress += 1
            self._emit(
                PrefillProgress(answer.command.request, answer.reused + done, total, answer.reused)
            )
            return not self._interrupted()

        if rest and not self.runner.prefill(rest, self.options, go_on):
            return False
        self._snapshots.append(self.runner.snapshot())
        del self._snapshots[:-_MAX_SNAPSHOTS]
        return True

    # ---- token by token --------------------------------------------------------------------------

    def _run(self, answer: _Answer) -> tuple[StopReason, str]:
        if self._interrupted() or not self._take_prompt(answer):
            return "cancelled", ""
        command = answer.command
        self.runner.begin(answer.given[-1], command.sampling, answer.seed)
        options, started = self.options, answer.count
        while answer.count < answer.budget:
            while self.runner.unread <= self.runner.lookahead and started < answer.budget:
                if self.options != options:
                    options = self.options
                    self._emit(OptionsApplied(options, command.request, started))
                forced = command.forced_ids[started : started + 1]
                self.runner.start(options, forced[0] if forced else -1)
                started += 1
            result = self.runner.collect()
            if result.token_id in self.tokenizer.stop_ids:
                answer.parser.feed([result.token_id])
                return "stop", ""
            self._take_token(answer, result)
            if self._interrupted():
                return "cancelled", ""
        if answer.budget == command.sampling.max_tokens:
            return "length", ""
        return "context", f"the context of {self.runner.context} tokens is full"

    def _take_token(self, answer: _Answer, result: StepResult) -> None:
        index = answer.count
        answer.count += 1
        self.progress += 1
        now = time.monotonic()
        if not answer.first_token:
            answer.first_token = now
        else:
            answer.step_ms.append(1e3 * (now - answer.last_token))
        answer.last_token = now
        graphs = self.runner.graphs
        answer.graph_tokens += graphs is not None and graphs.holds(result.options)
        forced = index < len(answer.command.forced_ids)
        answer.tokens.append(self._token(index, result, forced))
        answer.deltas += answer.parser.feed([result.token_id])
        if result.record is not None:
            self._emit(Telemetry(answer.command.request, index, result.record))
        if time.monotonic() - answer.flushed > _FLUSH_SECONDS:
            self._flush(answer)

    def _token(self, index: int, result: StepResult, forced: bool) -> Token:
        token = Token(
            index=index,
            id=result.token_id,
            piece=self.tokenizer.piece(result.token_id),
            logprob=result.logprob,
            router=result.options.router,
            gsa=result.options.gsa,
            forced=forced,
        )
        if result.record is None:
            return token
        record = TapRecord(self.runner.layout, result.record)
        log_z = record.scalar("logsumexp")
        ids = [int(i) for i in record["top_ids"]]
        logits = record["top_logits"]
        return msgspec.structs.replace(
            token,
            gsa_max=max(record["gsa_live"]),
            saturated=int(sum(record["saturated"])),
            top=[(i, logit - log_z) for i, logit in zip(ids, logits, strict=True)],
            pieces=[self.tokenizer.piece(i) for i in ids],
        )

    def _flush(self, answer: _Answer) -> None:
        if answer.tokens or answer.deltas:
            self._emit(Tokens(answer.command.request, answer.tokens, answer.deltas))
            answer.tokens, answer.deltas = [], []
        answer.flushed = time.monotonic()

    # ---- the end ---------------------------------------------------------------------------------

    def _finish(self, answer: _Answer, reason: StopReason, message: str) -> None:
        final = answer.parser.finish(reason)
        answer.deltas += final.deltas
        self._flush(answer)
        self.runner.discard()
        self._report_graphs()
        now = time.monotonic()
        decoding, made = now - answer.first_token, answer.count - answer.command.kept
        self._emit(
            Finished(
                request=answer.command.request,
                reason=reason,
                prompt_tokens=len(answer.prompt.ids),
                reused_tokens=answer.reused,
                tokens=answer.count,
                thinking_tokens=final.thinking_tokens,
                ttft_ms=1000 * (answer.first_token - answer.started) if made else 0.0,
                tok_s=(made - 1) / decoding if made > 1 and decoding > 0 else 0.0,
                seed=answer.seed,
                message=message,
                tool_calls=final.tool_calls,
                warnings=final.warnings,
                unclosed_thinking=final.unclosed_thinking,
                telemetry_dropped=self._take_dropped(),
                step_ms=_percentiles(answer.step_ms),
                graph_tokens=answer.graph_tokens,
            )
        )

    def _report_graphs(self) -> None:
        """Pass on what the graphs have to say: a step that runs without one is never silent."""
        graphs = self.runner.graphs
        while graphs is not None and graphs.notes:
            self._emit(Fault(graphs.notes.pop(0)))


def _percentiles(values: list[float]) -> tuple[float, ...]:
    """p50, p90, p99 by nearest rank; none of nothing."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return tuple(ordered[round(share * last)] for share in (0.5, 0.9, 0.99)) if ordered else ()


def _common_length(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])
