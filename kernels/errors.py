"""Errors of the kernels that are fit to show."""


class KernelError(Exception):
    """A kernel that cannot be compiled, loaded or launched. Names the kernel."""
