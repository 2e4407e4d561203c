"""The app on a dump bundle: the same screens, at the token that was in view."""

from pathlib import Path

from dsv4chat.app import ChatApp
from dsv4chat.core.bundle import Bundle
from dsv4chat.core.config import Config
from dsv4chat.core.replay import replay_session


def replay_app(bundle: Bundle, name: str, config: Config, folder: str) -> ChatApp:
    """An app that shows the bundle. `folder` takes its store: the user's own chats stay apart."""
    session = replay_session(bundle, name)
    app = ChatApp(session, config, store=Path(folder) / "replay.sqlite")
    app.cursor, app.layer = bundle.manifest.token, bundle.manifest.layer
    return app
