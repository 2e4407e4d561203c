"""Reductions over a warp: every lane ends with the result, in the same order every time."""

import cutlass.cute as cute

from kernels import cute_ptx as ptx


def warp_sum(value):
    for o in range(5):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=16 >> o)
    return value


def warp_peak(value):
    """Largest magnitude; NaN if any lane's is."""
    for o in range(5):
        value = ptx.max_magnitude(value, cute.arch.shuffle_sync_bfly(value, offset=16 >> o))
    return value
