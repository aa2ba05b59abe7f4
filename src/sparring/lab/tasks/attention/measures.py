"""How well a model predicts, and how far its attention agrees with what its prediction hangs on."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ....metrics.attention import agreement, explain
from ...report.figures import Figure, sentences
from ...task import Data, Setting, Split
from .texts import Examined

CORRELATIONS = {"": "probability", "_loss": "loss"}


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy (the micro-F1 of inference), F1 of the second of two classes, and the agreement with both gradient importances.

    On the test split also the agreement with leaving words out, over `removed` sentences. The others may have
    a limit to the sentences whose agreement is taken, `correlated`: with long stories it costs as much as an epoch.
    """
    size = setting["scored"]  # examples at once: long texts need small batches
    predicted, right, classes = [], [], 0
    for inputs, targets in split.batches(size):
        logits = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        classes = logits.shape[-1]
        predicted.append(logits.argmax(-1))
        right.append(targets)
    guess, truth = torch.cat(predicted), torch.cat(right)
    correct = (guess == truth).double()
    found = {"accuracy": 100 * float(correct.mean())}
    if classes == 2:
        hits = int(((guess == 1) & (truth == 1)).sum())
        found["f1"] = 200 * hits / max(1, int((guess == 1).sum() + (truth == 1).sum()))
    few = len(split) if isinstance(split, Examined) or "correlated" not in setting else setting["correlated"]
    for short, definition in CORRELATIONS.items():
        seen = agreement(
            model,
            of_like_length(split, size, few),
            at="embedding",
            attention="attention",
            definition=definition,
        )
        found |= {f"pearson{short}": seen.pearson, f"kendall{short}": seen.kendall}
    if isinstance(split, Examined):
        found |= {f"accuracy_{name}": 100 * float(correct[part].mean()) for name, part in split.parts}
        if few := min(setting["removed"], len(split)):
            rows = (split.batch(index)[0] for index in spread(split, few).split(50))
            seen = agreement(model, rows, at="embedding", attention="attention", definition="leave_one_out")
            found |= {"pearson_removed": seen.pearson, "kendall_removed": seen.kendall}
    return found


def spread(split: Split, count: int) -> Tensor:
    """`count` examples at equal distances: some files lie class by class, so the first ones would all be of one."""
    return torch.arange(count) * len(split) // count


def of_like_length(split: Split, size: int, first: int) -> Iterator[Any]:
    """The inputs of the first examples, short ones together where lengths are known: a mean over them needs no order.

    Kendall's tau compares all pairs of positions, so one long text would make the whole batch expensive.
    """
    order = torch.arange(min(first, len(split)))
    order = order if split.lengths is None else order[split.lengths[order].argsort(stable=True)]
    for index in order.split(size):
        yield split.batch(index)[0]


def draw(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Attention and gradient over some sentences of the test split (Figs. 1 and 3)."""
    test = data.test or data.validation
    inputs, targets = test.batch(spread(test, min(8, len(test))))
    seen = explain(model, inputs, at="embedding", attention="attention")
    tokens = inputs[0] if isinstance(inputs, tuple) else inputs
    labels, vocabulary = data.extra["labels"], data.extra["vocabulary"]
    items: dict[str, list[dict[str, Any]]] = {"Attention": [], "Gradient": []}
    for row in range(len(tokens)):
        kept = seen.valid[row]
        words = [vocabulary.words[k] for k in tokens[row][kept].tolist()]
        truth = labels[int(targets[row])] if targets[row] >= 0 else "not among the answers"
        label = f"{truth}, predicted {labels[int(seen.predicted[row])]}"
        if isinstance(inputs, tuple):
            label += f"; {' '.join(vocabulary.decode(inputs[1][row].tolist()))}"
        for name, weights in (("Attention", seen.attention), ("Gradient", seen.importance)):
            items[name].append({"words": words, "weights": weights[row][kept], "label": label})
    return [sentences(name, rows) for name, rows in items.items()]
