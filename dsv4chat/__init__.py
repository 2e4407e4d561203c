"""The terminal app: command line, engine client, chat screen and panels. Never imports torch."""

__version__ = "0.1.0"
