"""Parts of the corpus and their share of the training tokens."""

SHARES: dict[str, float] = {
    "stories": 0.17,
    "teacher": 0.15,
    "smalltalk": 0.14,
    "words": 0.20,
    "notes": 0.12,
    "manual": 0.13,
    "facts": 0.05,
    "sums": 0.03,
    "tools": 0.02,
}
