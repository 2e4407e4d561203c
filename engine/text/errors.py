"""Errors of the text layer. Every message says what is wrong and what to do, and is fit to show."""


class TextError(Exception):
    """Base of all errors of `engine.text`."""


class TokenizerError(TextError):
    """The checkpoint's tokenizer cannot be used, or lacks what a request needs."""


class ConversationError(TextError):
    """A conversation that must not be encoded as it stands. `index`: the message at fault."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index
