"""SVG for the pictures in the docs: a palette for light and dark pages, and shapes.

The SVG text depends only on the calls, so a picture is byte-identical on every machine.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape

__all__ = ["Picture", "label"]

KINDS = {
    "x": (("#dceafa", "#2f6fb0", "#174a80"), ("#16324f", "#5a9bd8", "#bcdcfa")),
    "w": (("#f9ebd0", "#b07d1e", "#6b4807"), ("#3f300f", "#c9983c", "#f3dca4")),
    "sum": (("#d8f0e8", "#2c8a72", "#0f564a"), ("#12382f", "#4db596", "#b2e8d7")),
    "swap": (("#f8dde4", "#b8405e", "#86213d"), ("#45182a", "#e0708e", "#f9c6d2")),
    "sim": (("#e9e3f5", "#7a5ab5", "#4b2f85"), ("#2d2346", "#a68ae0", "#d9cbf7")),
}
"""(fill, stroke, text) colours of each kind of shape, on a light and on a dark page."""

PLAIN = {
    "ink": ("#24292f", "#e6edf3"),
    "muted": ("#656d76", "#9198a1"),
    "line": ("#aab1b9", "#59626d"),
    "edge": ("#d5d8d3", "#30363d"),
    "card": ("#fcfcfa", "#12161c"),
    "box": ("#ffffff", "#1a2028"),
    "panel": ("#f3f4f0", "#171c23"),
}

BASE = """\
text{font:13px "Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif;
text-anchor:middle}
.left{text-anchor:start}.right{text-anchor:end}
.title{font-size:21px;font-weight:600}.head{font-size:14px;font-weight:600}
.small{font-size:12px}.tiny{font-size:11px}.s{font-size:.72em}.v{font-weight:700}
.wire{fill:none;stroke-width:1.5}.dashed{stroke-dasharray:4 3}"""


def _theme(shade: int) -> str:
    """CSS rules for a light (``shade`` 0) or a dark (``shade`` 1) page."""
    color = {name: shades[shade] for name, shades in PLAIN.items()}
    rules = [
        f'text{{fill:{color["ink"]}}}',
        f'.muted{{fill:{color["muted"]}}}',
        f'.wire{{stroke:{color["line"]}}}',
        f'.arrow{{fill:{color["line"]}}}',
        f'.frame{{fill:none;stroke:{color["ink"]}}}',
        f'.card{{fill:{color["card"]};stroke:{color["edge"]}}}',
        f'.box{{fill:{color["box"]};stroke:{color["line"]}}}',
        f'.panel{{fill:{color["panel"]};stroke:{color["edge"]}}}',
    ]
    for kind, shades in KINDS.items():
        fill, stroke, text = shades[shade]
        rules.append(f".{kind} rect,.{kind} circle{{fill:{fill};stroke:{stroke}}}"
                     f".{kind} text,text.{kind}{{fill:{text}}}"
                     f".{kind} .wire,.wire.{kind}{{stroke:{stroke}}}.arrow.{kind}{{fill:{stroke}}}"
                     f".{kind} rect.dashed,rect.{kind}.dashed{{fill:none;stroke:{stroke}}}"
                     f".{kind} rect.plain{{fill:{color['box']}}}")
    return "\n".join(rules)


def _number(value: float) -> str:
    return f"{value:g}"


def label(name: str, value: float | None = None) -> str:
    """Markup of an operand: its letter with the indices as a subscript, and its value in bold.

    Parameters
    ----------
    name : str
        A letter and its indices, like ``"x12"``; empty for a value without a name.
    value : float, optional
        The value; without it, only the name is written.
    """
    text = escape(name[:1])
    drop = 0
    if name[1:]:
        text += f'<tspan class="s" dy="3">{escape(name[1:])}</tspan>'
        drop = 3
    if value is not None:
        place = ' dx="4"' if name else ""
        if drop:
            place += f' dy="-{drop}"'
        text += f'<tspan class="v"{place}>{_number(value)}</tspan>'
    return text


class Picture:
    """An SVG picture: a card, and shapes on it. Later shapes cover earlier ones.

    The argument ``classes`` of the methods has a shape's CSS classes.

    Parameters
    ----------
    width, height : int
        Size in user units.
    title, description : str
        Title and description for readers who cannot see the picture.
    style : str
        Additional CSS rules, written after those of the palette.
    """

    def __init__(self, width: int, height: int, title: str, description: str,
                 style: str = "") -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>\n{BASE}\n{_theme(0)}\n@media (prefers-color-scheme:dark){{\n{_theme(1)}\n}}\n"
            f"{style}</style>",
        ]
        self.rect(0.5, 0.5, width - 1, height - 1, "card", radius=10)

    def _add(self, line: str) -> None:
        self._lines.append(line)

    @contextmanager
    def group(self, classes: str = "", at: tuple[float, float] | None = None,
              **attributes: str) -> Iterator[None]:
        """Context manager that groups the shapes drawn inside it, with ``at`` as their origin.

        ``classes`` are CSS classes of the group, ``attributes`` its other SVG attributes.
        """
        if classes:
            attributes = {"class": classes, **attributes}
        if at is not None:
            attributes["transform"] = f"translate({_number(at[0])} {_number(at[1])})"
        marks = "".join(f' {name.replace("_", "-")}="{escape(value)}"'
                        for name, value in attributes.items())
        self._add(f"<g{marks}>")
        yield
        self._add("</g>")

    def rect(self, x: float, y: float, width: float, height: float, classes: str = "", *,
             radius: float = 4) -> None:
        """Draw a rectangle with rounded corners; ``x``, ``y`` is its top left corner."""
        marks = f' class="{classes}"' if classes else ""
        self._add(f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
                  f'height="{_number(height)}" rx="{_number(radius)}"{marks}/>')

    def squares(self, places: Sequence[tuple[float, float]], side: float, classes: str) -> None:
        """Draw equal squares as one shape; ``places`` are their corners at the top left."""
        path = "".join(f"M{_number(x)} {_number(y)}h{_number(side)}v{_number(side)}"
                       f"h{_number(-side)}z" for x, y in places)
        self._add(f'<path d="{path}" class="{classes}"/>')

    def circle(self, x: float, y: float, radius: float, classes: str = "") -> None:
        """Draw a circle with its centre at ``x``, ``y``."""
        marks = f' class="{classes}"' if classes else ""
        self._add(f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"{marks}/>')

    def text(self, x: float, y: float, markup: str, classes: str = "") -> None:
        """Draw the line of text ``markup``, which is not escaped, with its base line at ``y``.

        The middle of the line is at ``x``. With the class ``left`` or ``right``, its left or right
        end is at ``x`` instead.
        """
        marks = f' class="{classes}"' if classes else ""
        self._add(f'<text x="{_number(x)}" y="{_number(y)}"{marks}>{markup}</text>')

    def wire(self, points: Sequence[tuple[float, float]], classes: str = "", *,
             arrow: bool = False) -> None:
        """Draw a line through ``points``, with an arrow at its end if ``arrow`` is true.

        With an arrow, the last segment must be horizontal or vertical.
        """
        marks = f"wire {classes}".strip()
        path = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self._add(f'<path d="{path}" class="{marks}"/>')
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            dx, dy = ((x > x0) - (x < x0)) * 8, ((y > y0) - (y < y0)) * 8
            tip = (f"M{_number(x)} {_number(y)}L{_number(x - dx - dy / 2)} "
                   f"{_number(y - dy - dx / 2)}L{_number(x - dx + dy / 2)} "
                   f"{_number(y - dy + dx / 2)}Z")
            self._add(f'<path d="{tip}" class="{f"arrow {classes}".strip()}"/>')

    def pill(self, x: float, y: float, kind: str, markup: str, *, width: float = 54,
             glide: str = "") -> None:
        """Draw a value in transit: ``markup`` in a box with round ends, centred at ``x``, ``y``.

        ``kind`` is one of `KINDS`. ``glide`` has further CSS classes, which animate the box.
        """
        with self.group(at=(x, y)), self.group(f"{kind} {glide}".strip()):
            self.rect(-width / 2, -11, width, 22, radius=11)
            self.text(0, 4.5, markup)

    def svg(self) -> str:
        """The whole picture as SVG text."""
        return "\n".join([*self._lines, "</svg>", ""])
