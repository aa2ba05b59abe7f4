"""Sparring in a loop of your own: the objective is one line, everything else stays as it was.

python examples/plain.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import sparring as sp

images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train, test = slice(0, 1400), slice(1400, None)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
objective = sp.recipes.vat(model, sp.cross_entropy, ball=sp.L2(0.5))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(5):
    for index in torch.randperm(1400).split(50):
        loss = objective(inputs[train][index], targets[train][index])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        right = (model(inputs[test]).argmax(-1) == targets[test]).float().mean()
    penalty = objective.diagnostics["vat/penalty"]
    print(f"epoch {epoch + 1}: accuracy {right:.3f}, penalty {penalty:.4f}")
