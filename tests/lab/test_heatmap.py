from html.parser import HTMLParser

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.lab.report.heatmap import Sentence, figure, shades, table_html, words_html


class Reader(HTMLParser):
    """Collects tags and the text of each span."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.words = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "span":
            self.words.append("")

    def handle_data(self, data):
        if self.words and self.tags[-1] == "span" and data.strip(" "):
            self.words[-1] += data


@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1), min_size=1, max_size=6))
def test_whatever_stands_in_a_word_comes_back_as_text(words):
    reader = Reader()
    reader.feed(words_html(words, [1.0] * len(words)))
    reader.close()
    assert set(reader.tags) == {"span"}
    assert reader.words == words


def test_markup_in_words_labels_and_caption_stays_inert():
    evil = '<script>alert("x")</script>'
    text = table_html(
        [Sentence([evil, "'\" onload=x"], [1.0, 2.0], [0.0, 1.0], truth=evil, predicted=evil)], caption=evil
    )
    reader = Reader()
    reader.feed(text)
    assert "script" not in reader.tags
    assert text.count("&lt;script&gt;") == 5


def test_the_largest_weight_has_the_full_shade_and_a_zero_none():
    assert shades(["a", "b", "c"], torch.tensor([0.0, 0.1, 0.2])) == pytest.approx([0.0, 0.5, 1.0])
    assert shades(["a"], [0.0]) == [0.0]
    assert shades([], []) == []
    assert "style" not in words_html(["a"], [0.0])


def test_the_table_has_the_columns_of_the_papers_figure():
    rows = [
        Sentence(["great", "film"], [0.9, 0.1], [0.8, 0.2], "Pos.", "Pos."),
        Sentence(["dull"], [1.0], [1.0], "Neg.", "Pos."),
    ]
    text = table_html(rows)
    assert [head in text for head in ("Truth", "Predicted", "Right?", "Attention", "Gradient")] == [True] * 5
    assert text.count("<td>yes</td>") == 1
    assert text.count("<td>no</td>") == 1
    assert "Gradient" not in table_html([Sentence(["a"], [1.0])])


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "one weight per word, got 1 for 2"), ([1.0, -0.1], "got -0.1"), ([1.0, float("nan")], "got nan")],
)
def test_errors_say_what_is_wrong(weights, message):
    with pytest.raises(ValueError, match=message):
        words_html(["a", "b"], weights)


def test_the_figure_shows_every_word_shaded_and_takes_formulas_for_text(tmp_path):
    pytest.importorskip("matplotlib", reason="the lab extra is not installed")
    words = ["$x_{1$", "costs", "\\frac{", "a" * 120, "<b>"]
    drawn = figure([Sentence(words, [0.0, 1.0, 0.5, 0.2, 0.1], [1.0, 0.0, 0.0, 0.0, 0.0], "Pos.", "Neg.")], title="$ 5")
    shown = {text.get_text(): text for ax in drawn.axes for text in ax.texts}
    assert set(words) <= set(shown)
    first = {
        text.get_text(): text.get_bbox_patch().get_facecolor()
        for text in drawn.axes[0].texts
        if text.get_text() in words
    }
    assert first["costs"][3] == 1.0
    assert first["$x_{1$"][3] == 0.0
    drawn.savefig(tmp_path / "heat.png")
    assert (tmp_path / "heat.png").stat().st_size > 1000
