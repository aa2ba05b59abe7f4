"""How good translations are: sacreBLEU with its signature, and the loss per piece."""

from typing import Any

from sacrebleu.metrics import BLEU
from torch import Tensor, nn
from torch.nn import functional as F

from ...models.transformer import Translator, translate
from ...report.figures import Figure, sentences
from ...task import Data, Setting, Split
from . import pretrained
from .pairs import CORPORA, IGNORED, Pairs


def metric(setting: Setting) -> BLEU:
    """sacreBLEU as the corpus asks for: text that is tokenised already is not cut again."""
    ready = setting.task in CORPORA and CORPORA[setting.task].tokenised
    return BLEU(tokenize="none" if ready else "13a", force=True)


def translations(model: Any, split: Pairs, beam: int, penalty: float, size: int = 64) -> list[str]:
    """The text found for every source of a split; sentences of like length are searched together."""
    assert split.lengths is not None
    assert split.pieces is not None
    found = [""] * len(split)
    for index in split.lengths.argsort(stable=True).split(size):
        inputs, _ = split.batch(index)
        if isinstance(model, Translator):
            written = translate(model, inputs["source"], beam, penalty)
        else:
            written = pretrained.translate(model, inputs, beam, penalty)
        for place, numbers in zip(index.tolist(), written, strict=True):
            found[place] = split.pieces.decode(numbers)
    return found


def loss_per_piece(model: nn.Module, split: Pairs, size: int = 64) -> float:
    """Cross-entropy without label smoothing, the mean over all pieces."""
    assert split.lengths is not None
    total, count = 0.0, 0
    for index in split.lengths.argsort(stable=True).split(size):
        inputs, targets = split.batch(index)
        outputs = model(**inputs)
        logits = (outputs if isinstance(outputs, Tensor) else outputs.logits).flatten(0, 1)
        total += float(F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum"))
        count += int((targets != IGNORED).sum())
    return total / max(1, count)


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """BLEU of the split's own beam (validation: greedy), and the loss per piece."""
    assert isinstance(split, Pairs)
    said = translations(model, split, split.beam, setting["length_penalty"])
    bleu = metric(setting).corpus_score(said, [list(split.references)])
    return {"bleu": float(bleu.score), "loss": loss_per_piece(model, split)}


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Some translations beside their references, and the signature of the score."""
    test = data.test
    assert isinstance(test, Pairs)
    some = test.first(8)
    said = translations(model, some, some.beam, setting["length_penalty"])
    items = []
    for reference, text in zip(some.references, said, strict=True):
        items.append({"label": "reference", "words": reference.split(), "weights": [0.0] * len(reference.split())})
        items.append({"label": "written", "words": text.split(), "weights": [0.0] * len(text.split())})
    scorer = metric(setting)
    scorer.corpus_score(said, [list(some.references)])  # the signature knows the number of references only afterwards
    return [sentences("Translations", items, note=f"BLEU of sacreBLEU {scorer.get_signature()}")]
