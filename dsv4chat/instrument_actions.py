"""Actions of the instrument: dump bundles."""

import asyncio
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4chat.core.bundle import Bundle, Manifest, bundle_path, copy_records, write_bundle
from dsv4chat.core.conversation import Turn
from dsv4chat.core.database import StoreError
from dsv4chat.core.prompts import PromptUnknownError
from dsv4chat.core.records import TurnRecords

if TYPE_CHECKING:
    from dsv4chat.app import ChatApp

LOG_LINES = 200


class InstrumentActions:
    """Mixed into the app."""

    def freeze_panels(self: "ChatApp") -> None:
        """Hold the panels, once, at the first token that is not finite."""
        turn = self.session.conversation.last("assistant")
        if turn is not None and turn.bad_token is not None and turn.id != self.frozen:
            self.frozen = turn.id
            self.set_cursor(turn.bad_token[0])

    def action_dump(self: "ChatApp", target: str = "") -> None:
        if self.session.conversation.last("assistant") is None:
            self.tell("There is no answer to dump yet.")
            return
        self.run_worker(self._dump(target), group="file")

    async def _dump(self: "ChatApp", target: str) -> None:
        path = bundle_path(target, Path.cwd())
        try:
            bundle = await self._bundle()
            await asyncio.to_thread(write_bundle, bundle, path)
        except FileExistsError:
            self.tell(f"{path} is there already: name another file", "warning")
        except OSError as error:
            self.tell(f"Not dumped: {error}", "warning")
        else:
            kept = sum(len(records.payloads) for records in bundle.records.values())
            note = bundle.manifest.prompt_note
            self.tell(
                f"written: {path}, {kept} records{f'; no prompt ids: {note}' if note else ''}. "
                f"dsv4chat replay {path.name} opens it."
            )

    async def _bundle(self: "ChatApp") -> Bundle:
        """All that is known now, with the records on disk that memory has let go."""
        session = self.session
        conversation, turn = session.conversation, session.conversation.last("assistant")
        assert turn is not None
        manifest = Manifest(
            created=time.time(),
            settings=session.settings,
            ready=session.ready,
            system=platform.platform(),
            python=platform.python_version(),
            turn=turn.id,
            token=self.cursor,
            layer=self.layer,
            notices=list(session.notices),
            log=list(session.backend.log_tail(LOG_LINES)),
        )
        try:
            manifest.prompt_ids = await self._prompt_ids(turn)
        except PromptUnknownError as error:
            manifest.prompt_note = str(error)
        records: dict[str, TurnRecords] = {}
        for answer in conversation.turns.values():
            if answer.token_ids and (found := await self._records_of(answer)).tokens:
                records[answer.id] = found
        for turn_id in list(session.records.probes()):
            if turn_id.partition("@")[0] in conversation.turns:
                records[turn_id] = copy_records(session.records.get(turn_id))
        return Bundle(manifest, conversation, records)

    async def _prompt_ids(self: "ChatApp", turn: Turn) -> list[int]:
        session = self.session
        user = session.conversation.turns.get(turn.parent or "")
        if user is None:
            raise PromptUnknownError("the answer has no question")
        effort = (turn.settings or session.settings).effort
        messages = session.conversation.messages(user)
        return await session.prompts.ids(session.backend, messages, effort)

    async def _records_of(self: "ChatApp", turn: Turn) -> TurnRecords:
        held = self.session.records.get(turn.id)
        if held is not None:
            return copy_records(held)
        try:
            return await asyncio.wrap_future(self.history.store.load_records(turn.id))
        except StoreError:
            return TurnRecords(None)
