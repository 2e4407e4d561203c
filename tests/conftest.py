"""Shared by all tests: one torch thread, since small ops gain nothing from two and lose much to a
busy neighbour."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
