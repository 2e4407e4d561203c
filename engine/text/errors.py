"""Errors of the text layer. Every message says what is wrong and what to do, and is fit to show."""


class TextError(Exception):
    """Base of all errors of `engine.text`."""


class TokenizerError(TextError):
    """The checkpoint's tokenizer cannot be used, or lacks what a request needs."""


class ConversationError(TextError):
    """A conversation that must not be encoded as it stands."""
