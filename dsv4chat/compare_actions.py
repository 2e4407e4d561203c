"""Actions that run an answer again: same-seed comparison, and the other router paths."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from dsv4chat.core.comparing import last_comparison, other_settings, start_comparison
from dsv4chat.core.conversation import Turn
from dsv4chat.core.probing import ProbeError, check_known, paths_wanted, start_paths
from dsv4chat.core.settings import Settings

if TYPE_CHECKING:
    from dsv4chat.app import ChatApp

POLL_S = 0.05


class CompareActions:
    """Mixed into the app."""

    def action_compare(self: "ChatApp", change: str = "") -> None:
        """Run the last answer again; alone, show the comparison that is on screen first."""
        comparison = last_comparison(self.session)
        if comparison is not None and not change:
            self._show_comparison()
            return
        if self.refuse_while_busy() or self.refuse_without_engine():
            return
        source = comparison.source if comparison else self.session.conversation.last("assistant")
        try:
            if source is None:
                raise ProbeError("there is no answer to run again")
            check_known(self.session, source)
            theirs = other_settings(change, self.session, source)
        except ValueError as error:
            self.tell(str(error), "warning")
            return
        if theirs.precision != self.session.settings.precision:
            self.tell(f"The model is loaded again, as {theirs.precision}.")
        self.run_worker(self._compare(source, theirs), group="compare", exclusive=True)

    async def _compare(self: "ChatApp", source: Turn, theirs: Settings) -> None:
        session = self.session
        if theirs.precision != session.settings.precision:
            session.settings = replace(session.settings, precision=theirs.precision)
            await session.start()
            while session.phase in ("starting", "loading"):
                await asyncio.sleep(POLL_S)
            if session.phase != "ready":
                return  # the card of the lost engine says why
        start_comparison(session, source, theirs)
        self.set_cursor(None)
        self._show_comparison()

    def _show_comparison(self: "ChatApp") -> None:
        from dsv4chat.screens.compare import CompareScreen

        comparison = last_comparison(self.session)
        if comparison is not None:
            self.push_screen(CompareScreen(comparison))

    def action_paths(self: "ChatApp") -> None:
        if self.refuse_while_busy() or self.refuse_without_engine():
            return
        turn = self.session.conversation.last("assistant")
        try:
            if turn is None:
                raise ProbeError("there is no answer to run again")
            refused = self.session.ready.refused if self.session.ready else {}
            for router, reason in refused.items():
                self.tell(f"left out {router}: {reason}", "warning")
            if not paths_wanted(self.session, turn):
                self.tell("Every path has made these tokens: the router panel compares them.")
            else:
                start_paths(self.session, turn)
        except ValueError as error:
            self.tell(str(error), "warning")
