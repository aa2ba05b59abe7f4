"""Every block of Python in the documentation runs, page by page, in the order in which it is read."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparring as sp

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?P<skipped><!-- not run: .+ -->\n)?```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


class Small(nn.Module):
    """The model of a reader who has one: an embedding, and a classifier with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(12, 16)
        self.classifier = nn.Sequential()
        self.classifier.add_module("dropout", nn.Dropout(0.1))
        self.classifier.add_module("linear", nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.embedding(x).relu())


class Reader(nn.Module):
    """Words, two recurrent layers, attention, dropout: all that the papers on sequences perturb."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 32, padding_idx=0)
        self.lstm = sp.nn.LSTM(32, 40, batch_first=True)
        self.last = sp.nn.LSTM(40, 32, batch_first=True)
        self.attention = sp.nn.AdditiveAttention(32)
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(32, 2)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.last(self.lstm(self.embedding(words))[0])
        return self.linear(self.dropout(self.attention(states, valid=words != 0)[0]))


def _own_model() -> dict[str, Any]:
    model = Small()
    batch = torch.rand(8, 12), torch.randint(3, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "inputs": batch[0],
        "targets": batch[1],
        "loader": [batch, batch],
        "optimizer": optimizer,
        "F": F,
    }


def _pixels() -> dict[str, Any]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    images, labels = torch.rand(6, 3, 2, 2), torch.randint(3, (6,))
    return {"model": model, "images": images, "labels": labels, "inputs": images, "targets": labels}


def _words() -> dict[str, Any]:
    tokens = torch.randint(1, 30, (4, 6))
    return {"model": Reader(), "tokens": tokens, "batches": [tokens]}


def _logits() -> dict[str, Any]:
    names = ("validation", "test")
    return {f"{n}_logits": torch.randn(50, 3) for n in names} | {f"{n}_targets": torch.randint(3, (50,)) for n in names}


READERS_OWN: dict[str, Callable[[], dict[str, Any]]] = {  # what the reader of a page has at hand
    "README.md": lambda: {"classifier": Small(), "images": torch.rand(8, 12), "labels": torch.randint(3, (8,))},
    "index.md": _own_model,
    "idea.md": _own_model,
    "your-model.md": _own_model,
    "salt.md": _own_model,
    "balls.md": _pixels,
    "gradient-masking.md": _pixels,
    "certificates.md": _pixels,
    "calibration.md": _logits,
    "adversarial-dropout.md": _words,
    "attention.md": _words,
    "priority-dropout.md": lambda: {"images": torch.rand(2, 3, 32, 32)},
}


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_code_on_a_page_runs(page: Path) -> None:
    text = page.read_text()
    own = READERS_OWN.get(page.name, dict)()
    space: dict[str, Any] = {"__name__": "page", "torch": torch, "nn": nn, "sp": sp, **own}
    for block in BLOCK.finditer(text):
        if block["skipped"] is None:
            above = "\n" * text[: block.start("code")].count("\n")  # so that an error names the line of the page
            exec(compile(above + block["code"], str(page), "exec", dont_inherit=True), space)
