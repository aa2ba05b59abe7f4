"""Maps of an image pixel by pixel: the photograph, classes in colours that have no order, and shades of one colour.

>>> drawing = draw({"names": ["sky", "road"], "darkest": 1.0, "panels": [{"name": "truth", "kind": "classes", "rows": [[0, 1, -1]]}]})
>>> drawing.count("<img"), "sky" in drawing, "data:image/png;base64," in drawing
(1, True, True)
"""

import base64
import html
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Colour = tuple[int, int, int]
# The colours in which CamVid's eleven classes are usually shown; more classes begin again, darker.
PALETTE: tuple[Colour, ...] = (
    (128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0),
    (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192),
)  # fmt: skip
UNKNOWN: Colour = (0, 0, 0)
DARKEST: Colour = (122, 30, 5)


def colour_of(place: int) -> Colour:
    """The colour of a class; black for what has none."""
    if place < 0:
        return UNKNOWN
    rounds, place = divmod(place, len(PALETTE))
    red, green, blue = (part >> rounds for part in PALETTE[place])
    return red, green, blue


def shade(share: float) -> Colour:
    """White at 0, the darkest shade at 1."""
    share = min(1.0, max(0.0, share))
    red, green, blue = (round(255 + share * (part - 255)) for part in DARKEST)
    return red, green, blue


def png(rows: Sequence[Iterable[Colour]]) -> bytes:
    """Rows of colours as a picture in the PNG format.

    >>> png([[(255, 0, 0)]])[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    lines = [bytes(part for colour in row for part in colour) for row in rows]

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", len(lines[0]) // 3, len(lines), 8, 2, 0, 0, 0)  # eight bits, red green blue
    body = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def colours(panel: Mapping[str, Any], darkest: float) -> list[list[Colour]]:
    """The pixels of one panel of a figure."""
    rows = panel["rows"]
    match panel["kind"]:
        case "photograph":
            return [[(int(v) >> 16 & 255, int(v) >> 8 & 255, int(v) & 255) for v in row] for row in rows]
        case "classes":
            return [[colour_of(int(v)) for v in row] for row in rows]
        case "shades":
            return [[shade(v / darkest) for v in row] for row in rows]
    raise ValueError(f"a panel of unknown kind {panel['kind']!r}")


def draw(figure: Mapping[str, Any]) -> str:
    """The panels side by side, and the key of the classes."""
    parts = []
    for panel in figure["panels"]:
        source = base64.b64encode(png(colours(panel, figure["darkest"]))).decode()
        name = html.escape(panel["name"])
        parts.append(f'<div><img alt="{name}" src="data:image/png;base64,{source}"><small>{name}</small></div>')
    key = (
        f'<li><span class="dot" style="background:rgb{colour_of(place)}"></span>{html.escape(name)}</li>'
        for place, name in enumerate(figure["names"])
    )
    return f'<div class="pictures">{"".join(parts)}</div><ul class="legend">{"".join(key)}</ul>'
