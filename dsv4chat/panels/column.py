"""The panels beside the chat: three in a wide window, all in a very wide one."""

from textual.app import ComposeResult
from textual.containers import Container

from dsv4chat.core.session import ChatSession
from dsv4chat.panels import PANELS
from dsv4chat.panels.base import Panel
from dsv4chat.panels.view import View

AT_ONCE = 3


class PanelColumn(Container):
    """Which panels are seen is decided by the style sheet and by `step`."""

    def __init__(self, session: ChatSession, **kwargs) -> None:
        super().__init__(**kwargs)
        self.session = session
        self._first = 0

    def compose(self) -> ComposeResult:
        for panel in PANELS:
            yield panel(classes="panel")

    def on_mount(self) -> None:
        self.step(0)

    def step(self, step: int) -> None:
        """Move the window over the panels."""
        self._first = (self._first + step) % len(PANELS)
        panels = list(self.query(Panel))
        seen = {(self._first + n) % len(panels) for n in range(AT_ONCE)}
        for number, panel in enumerate(panels):
            panel.set_class(number not in seen, "-away")

    def show(self, view: View) -> None:
        """Give the view to the panels that are on screen."""
        if not self.display or not self.size.width:
            return
        for panel in self.query(Panel):
            panel.show(view)
