"""Parts of the corpus and their share of the training tokens."""

SHARES: dict[str, float] = {
    "stories": 0.17,
    "teacher": 0.12,
    "smalltalk": 0.10,
    "chitchat": 0.05,
    "words": 0.20,
    "notes": 0.12,
    "manual": 0.15,
    "facts": 0.04,
    "sums": 0.03,
    "tools": 0.02,
}
