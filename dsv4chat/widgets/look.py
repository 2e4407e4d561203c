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
    found: Style
    warning: Style
    keyword: Style
    string: Style
    comment: Style
    number: Style
    name: Style


COMPONENTS = {f"transcript--{field.name}" for field in fields(Look)}


def read_look(widget: Widget) -> Look:
    """The look under the current theme."""
    return Look(**{field.name: _style(widget, field.name) for field in fields(Look)})


def _style(widget: Widget, name: str) -> Style:
    """Rich knows no transparency: blend the colour with the widget's background."""
    styles = widget.get_component_styles(f"transcript--{name}")
    text = styles.text_style
    if not styles.has_rule("color"):
        return text
    background = widget.background_colors[1]
    return text + Style(color=background.blend(styles.color, styles.color.a, 1.0).rich_color)
