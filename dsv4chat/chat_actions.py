"""Actions on whole conversations: list, open, rename, delete, drafts."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4chat.core.conversation import Turn
from dsv4chat.core.database import StoreError
from dsv4chat.core.mending import mends, show_path
from dsv4chat.core.text import one_line

if TYPE_CHECKING:
    from dsv4chat.app import ChatApp


class ConversationActions:
    """Mixed into the app. What is on screen is never replaced while an answer runs."""

    def action_history(self: "ChatApp", words: str = "") -> None:
        from dsv4chat.screens.history import HistoryScreen

        if isinstance(self.screen, HistoryScreen):
            return
        self.history.keep({"path"})
        screen = HistoryScreen(self.history.store, self.session.conversation.id, words)
        self.push_screen(screen, self._chosen)

    def _chosen(self: "ChatApp", conversation_id: str | None) -> None:
        if conversation_id is None or conversation_id == self.session.conversation.id:
            return
        if not self.refuse_while_busy():
            self.run_worker(self.open_chat(conversation_id), group="open", exclusive=True)

    async def open_chat(self: "ChatApp", conversation_id: str | None) -> None:
        """Load a conversation and its draft. None: the one that changed last."""
        store = self.history.store
        try:
            conversation_id = conversation_id or await asyncio.wrap_future(store.newest())
            if conversation_id is None:
                self.tell("There is no earlier chat; this is a new one.")
                return
            conversation = await asyncio.wrap_future(store.load(conversation_id))
            draft = await asyncio.wrap_future(store.draft(conversation_id))
        except StoreError as error:
            self.tell(f"The chat could not be opened: {error}", "error")
            return
        if conversation is None:
            self.tell("That chat is not there any more.", "warning")
        elif self.history.show(conversation, draft):
            self.chat.begin(draft)
            self.set_cursor(None)

    async def begin_chat(self: "ChatApp", *, resume: bool) -> None:
        """At the start: earlier messages for the up key, then the last chat or a lost draft."""
        store = self.history.store
        try:
            sent = await asyncio.wrap_future(store.recent_messages())
            self.chat.composer.sent_texts[:0] = sent
            draft = "" if resume else await asyncio.wrap_future(store.take_lost_draft())
        except StoreError as error:
            self.tell(f"Earlier chats cannot be read: {error}", "warning")
            return
        if resume:
            await self.open_chat(None)
        elif draft and not self.chat.composer.text:
            self.chat.begin(draft)
            self.tell("Your unsent message is back.")

    def rename_chat(self: "ChatApp", conversation_id: str, name: str) -> None:
        if conversation_id == self.session.conversation.id:
            self.session.conversation.name = name
            self.history.keep({"path"})
        else:
            self.history.store.rename(conversation_id, name)

    def delete_chat(self: "ChatApp", conversation_id: str) -> bool:
        """Out of the list. The one on screen gives way to a new one."""
        if conversation_id == self.session.conversation.id:
            if self.refuse_while_busy():
                return False
            self.session.new_conversation()
            self.history.keep({"path"})
        self.history.store.delete(conversation_id)
        return True

    def action_rename(self: "ChatApp", name: str = "") -> None:
        if not name:
            self.chat.prefill("/rename ")
            return
        self.rename_chat(self.session.conversation.id, name)
        self.session.listener("path")
        self.tell(f"this chat is now called {name}")

    def action_new_chat(self: "ChatApp") -> None:
        if not self.refuse_while_busy():
            self.session.new_conversation()
            self.chat.begin("")
            self.set_cursor(None)

    # ---- finding --------------------------------------------------------------------------------

    def action_find(self: "ChatApp", text: str = "") -> None:
        """Look for a text in the chat; without one: the next match, or ask for it."""
        if text:
            self.chat.find(text)
        elif self.chat.transcript.needle:
            self.action_find_next(1)
        else:
            self.chat.prefill("/find ")

    def action_find_next(self: "ChatApp", step: int) -> None:
        self.chat.step_match(step)

    # ---- a conversation that the engine refuses -------------------------------------------------

    def action_mend(self: "ChatApp") -> None:
        from dsv4chat.screens.mend import EDIT, MendScreen

        refusal, path = self.session.refusal, self.session.conversation.path
        turn = next((turn for turn in path if refusal and turn.id == refusal.turn_id), None)
        if turn is None or refusal is None:
            self.tell("There is nothing to mend: the model has refused no message here.")
            return
        choices = mends(path, turn)

        def chosen(number: int | None) -> None:
            if number == EDIT:
                self.chat.edit_refused(turn)
            elif number is not None:
                self.apply_mend(choices[number].path)

        self.push_screen(MendScreen(refusal.reason, choices), chosen)

    def apply_mend(self: "ChatApp", path: list[Turn]) -> None:
        """Show the mended branch and have it answered, where an answer is due."""
        if self.refuse_while_busy():
            return
        conversation = self.session.conversation
        show_path(conversation, path)
        self.session.refusal = None
        self.set_cursor(None)
        self.session.listener("path")
        asked = conversation.last_asked()
        if asked is not None and asked.id == conversation.leaf and self.session.phase != "dead":
            self.session.regenerate()
            self.chat.transcript.follow()

    # ---- files ----------------------------------------------------------------------------------

    def action_export(self: "ChatApp", target: str = "") -> None:
        if not self.session.conversation.turns:
            self.tell("There is nothing to export yet.")
            return
        self.run_worker(self._export(target), group="file")

    async def _export(self: "ChatApp", target: str) -> None:
        from dsv4chat.core.export import export_file

        chat = self.session.conversation
        try:
            path = await asyncio.to_thread(export_file, chat, target, Path.cwd())
        except FileExistsError as error:
            self.tell(f"{error.filename} is there already: name another file", "warning")
        except (OSError, ValueError) as error:
            self.tell(f"Not exported: {error}", "warning")
        else:
            branches = len(chat.leaves())
            self.tell(f"written: {path}, {branches} branch{'es' * (branches > 1)}")

    def action_import(self: "ChatApp", name: str = "") -> None:
        if not name:
            self.chat.prefill("/import ")
        elif not self.refuse_while_busy():
            self.run_worker(self._import(Path(name).expanduser()), group="open", exclusive=True)

    async def _import(self: "ChatApp", path: Path) -> None:
        from dsv4chat.core.export import import_file

        try:
            conversation = await asyncio.to_thread(import_file, path)
        except (OSError, ValueError) as error:
            self.tell(f"{path.name} not imported: {one_line(str(error), 200)}", "warning")
            return
        if self.history.show(conversation):
            self.chat.begin("")
            self.set_cursor(None)
            self.tell(f"imported: {len(conversation.turns)} messages from {path.name}")
