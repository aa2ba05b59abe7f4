"""Train a small attention model on made-up reviews and show what it attends to, beside what its prediction hangs on.

python examples/heatmap.py                        # prints an HTML table
python examples/heatmap.py --figure heat.png      # draws a matplotlib figure
"""

import argparse

import torch

import sparring as sp
from sparring.lab.registry import task
from sparring.lab.report.heatmap import Sentence, figure, table_html
from sparring.metrics import explain

LABELS = ("Neg.", "Pos.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", help="write a picture here instead of printing HTML")
    chosen = parser.parse_args()
    sst = task("sst")
    setting = sst.setting("attention_at", "tiny")
    data = sst.load(setting)
    torch.manual_seed(0)
    model = sst.build(setting, data)
    objective = sp.recipes.attention_at(model, sp.cross_entropy, at="attention", ball=sp.L2(1.0))
    optimiser = torch.optim.Adam(model.parameters(), lr=setting["lr"])
    for epoch in range(8):
        for index in torch.randperm(len(data.train), generator=torch.Generator().manual_seed(epoch)).split(32):
            optimiser.zero_grad()
            objective(*data.train.batch(index)).backward()
            optimiser.step()
    assert data.test is not None
    tokens, targets = data.test.batch(slice(0, 4))
    seen = explain(model.eval(), tokens)
    rows = []
    for k in range(len(tokens)):
        kept = seen.valid[k]
        words = data.extra["vocabulary"].decode(tokens[k].tolist())
        truth, predicted = LABELS[int(targets[k])], LABELS[int(seen.predicted[k])]
        rows.append(Sentence(words, seen.attention[k][kept], seen.importance[k][kept], truth, predicted))
    if chosen.figure:
        figure(rows, "Attention and gradient importance").savefig(chosen.figure, dpi=150)
    else:
        print(table_html(rows, f"mean correlation {float(seen.pearson.nanmean()):.2f}"))


if __name__ == "__main__":
    main()
