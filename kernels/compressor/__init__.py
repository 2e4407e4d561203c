"""The KV compressor: one pooled row per block of tokens."""
