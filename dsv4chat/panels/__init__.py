"""Panels: one file each. `PANELS` is the list of them, in the order of screen and tabs."""

from dsv4chat.panels.attention import AttentionPanel
from dsv4chat.panels.base import Panel
from dsv4chat.panels.gsa import GsaPanel
from dsv4chat.panels.kernels import KernelsPanel
from dsv4chat.panels.logits import LogitsPanel
from dsv4chat.panels.router import RouterPanel

PANELS: tuple[type[Panel], ...] = (
    LogitsPanel,
    GsaPanel,
    RouterPanel,
    AttentionPanel,
    KernelsPanel,
)
