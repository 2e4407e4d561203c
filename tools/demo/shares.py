"""Parts of the corpus and their share of the training tokens."""

SHARES: dict[str, float] = {
    "stories": 0.13,
    "smalltalk": 0.09,
    "words": 0.19,
    "notes": 0.26,
    "copy": 0.05,
    "manual": 0.17,
    "facts": 0.05,
    "sums": 0.04,
    "tools": 0.02,
}
