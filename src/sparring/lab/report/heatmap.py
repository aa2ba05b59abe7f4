"""Sentences shaded by attention and by gradient importance, as HTML fragments and as matplotlib figures.

Words are data: whatever stands in them is escaped, never interpreted, by the browser and by matplotlib alike.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ATTENTION, GRADIENT = (214, 39, 40), (31, 119, 180)  # red and blue, told apart by colour-blind readers too
Colour = tuple[int, int, int]
Weights = Sequence[float] | Tensor


@dataclass(frozen=True)
class Sentence:
    """One row of a heat map.

    Args:
        words: the sentence.
        attention: one weight per word, not negative.
        gradient: one importance per word, not negative; None leaves the column out.
        truth: the right label; shown as it is.
        predicted: the model's label.
    """

    words: Sequence[str]
    attention: Weights
    gradient: Weights | None = None
    truth: str = ""
    predicted: str = ""


def shades(words: Sequence[str], weights: Weights) -> list[float]:
    """Weights scaled so that the largest is 1; an error that says what is wrong where they do not fit the words.

    >>> shades(["a", "b"], [0.1, 0.4])
    [0.25, 1.0]
    """
    values = [float(w) for w in weights]
    if len(values) != len(words):
        raise ValueError(f"a heat map needs one weight per word, got {len(values)} for {len(words)} words")
    if bad := [v for v in values if not math.isfinite(v) or v < 0]:
        raise ValueError(f"a heat map shades by finite weights >= 0, got {bad[0]}")
    largest = max(values, default=0.0)
    return [v / largest if largest > 0 else 0.0 for v in values]


def words_html(words: Sequence[str], weights: Weights, colour: Colour = ATTENTION) -> str:
    """A sentence as a fragment of HTML, each word on a background as strong as its weight.

    >>> words_html(["<b>", "fine"], [0.0, 2.0])
    '<span title="0">&lt;b&gt;</span> <span title="2" style="background:rgba(214,39,40,1.00)">fine</span>'

    Args:
        words: the sentence, any text.
        weights: one per word, not negative.
        colour: red, green, blue, 0 to 255.
    """
    pieces = []
    for word, weight, shade in zip(words, weights, shades(words, weights), strict=True):
        style = f' style="background:rgba({colour[0]},{colour[1]},{colour[2]},{shade:.2f})"' if shade >= 0.005 else ""
        pieces.append(f'<span title="{float(weight):.3g}"{style}>{html.escape(word)}</span>')
    return " ".join(pieces)


def table_html(sentences: Sequence[Sentence], caption: str = "") -> str:
    """The table of the paper's Figure 3: truth, prediction, attention and gradient, one row per sentence.

    >>> print(table_html([Sentence(["good"], [1.0], truth="Pos.", predicted="Pos.")]).count("<tr>"))
    2

    Args:
        sentences: the rows.
        caption: a line above the table.
    """
    gradients = any(s.gradient is not None for s in sentences)
    heads = ["Truth", "Predicted", "Right?", "Attention", *(["Gradient"] if gradients else [])]
    lines = ['<table class="attention">', f"<caption>{html.escape(caption)}</caption>"]
    lines.append("<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>")
    for s in sentences:
        right = "" if not s.truth or not s.predicted else "yes" if s.truth == s.predicted else "no"
        cells = [html.escape(s.truth), html.escape(s.predicted), right, words_html(s.words, s.attention)]
        if gradients:
            cells.append("" if s.gradient is None else words_html(s.words, s.gradient, GRADIENT))
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])


def figure(sentences: Sequence[Sentence], title: str = "", width: float = 8.0) -> "Figure":
    """The same as a matplotlib figure (the paper's Figure 1): a line of shaded words for attention, one for the gradient.

    Save it with `figure(...).savefig("heat.png")`; no window is opened and no global state of matplotlib changes.

    Args:
        sentences: the rows.
        title: a line above them.
        width: in inches; long sentences wrap.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [(s, part) for s in sentences for part in ("attention", "gradient") if getattr(s, part) is not None]
    letters = max(20, int(width * 11))
    heights = [len(_wrapped(s.words, letters)) + 0.6 for s, _ in lines] or [1.0]
    drawn = Figure(figsize=(width, 0.28 * sum(heights) + 0.4), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (sentence, part), height in zip(axes, lines, heights):
        weights = getattr(sentence, part)
        label = f"{part}  {sentence.truth}" if part == "attention" else part
        _draw(
            ax,
            sentence.words,
            shades(sentence.words, weights),
            ATTENTION if part == "attention" else GRADIENT,
            letters,
            height,
            label,
        )
    for ax in axes:
        ax.set_axis_off()
    if title:
        drawn.suptitle(title, parse_math=False)
    return drawn


def _wrapped(words: Sequence[str], letters: int) -> list[list[int]]:
    """Indices of the words on each line of at most `letters` letters."""
    lines: list[list[int]] = [[]]
    used = 0
    for index, word in enumerate(words):
        if lines[-1] and used + len(word) + 1 > letters:
            lines.append([])
            used = 0
        lines[-1].append(index)
        used += len(word) + 1
    return lines


def _draw(
    ax: "Axes",
    words: Sequence[str],
    strengths: Sequence[float],
    colour: Colour,
    letters: int,
    height: float,
    label: str,
) -> None:
    ax.set_xlim(0, letters)
    ax.set_ylim(height, 0)
    ax.text(0, 0.3, label, fontsize=6, color="0.4", va="center", parse_math=False)
    red, green, blue = (c / 255 for c in colour)
    for row, indices in enumerate(_wrapped(words, letters)):
        column = 0
        for index in indices:
            word, shade = words[index], strengths[index]
            ax.text(
                column + 0.5,
                row + 1.1,
                word.replace("\n", " "),
                fontsize=9,
                family="monospace",
                va="center",
                parse_math=False,  # a pair of dollar signs in the text is not a formula
                bbox={"facecolor": (red, green, blue, shade), "edgecolor": "none", "pad": 1.5},
            )
            column += len(word) + 1
