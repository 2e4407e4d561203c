"""Attention over the sliding window and the compressed rows, with a sink."""
