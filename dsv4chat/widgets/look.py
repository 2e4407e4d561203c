"""The colours of the transcript as Rich styles, read from the style sheet once per theme."""

from dataclasses import dataclass, fields

from rich.style import Style
from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Look:
    """One style per kind of text. Names match the component classes `transcript--NAME`."""

    text: Style
    dim: Style
    user: Style
    model: Style
    heading: Style
    code: Style
    frame: Style
    quote: Style
    bullet: Style
    link: Style
    thinking: Style
    mark: Style
    cursor: Style
    warning: Style
    keyword: Style
    string: Style
    comment: Style
    number: Style
    name: Style


COMPONENTS = {f"transcript--{field.name}" for field in fields(Look)}


def read_look(widget: Widget) -> Look:
    """The look under the current theme."""
    return Look(
        **{
            field.name: widget.get_component_rich_style(f"transcript--{field.name}", partial=True)
            for field in fields(Look)
        }
    )
