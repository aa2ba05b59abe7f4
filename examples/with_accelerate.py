"""Sparring under Hugging Face accelerate: prepare the objective as you would the model.

accelerate launch --num_processes 2 examples/with_accelerate.py      # on two GPUs
torchrun --nproc-per-node 2 examples/with_accelerate.py              # on processors: accelerate's own launcher would start one process
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparring as sp

accelerator = Accelerator(cpu=not torch.cuda.is_available())
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
objective = sp.recipes.salt(model, sp.cross_entropy, ball=sp.L2(0.5))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
objective, optimiser, loader = accelerator.prepare(objective, optimiser, DataLoader(data, batch_size=50, shuffle=True))

for epoch in range(3):
    for inputs, targets in loader:
        loss = objective(inputs, targets)
        accelerator.backward(loss)
        optimiser.step()
        optimiser.zero_grad()
    accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

weights = accelerator.gather(torch.cat([p.detach().flatten() for p in model.parameters()])[None])
accelerator.print(f"{len(weights)} processes, their weights differ by {float((weights - weights[0]).abs().max())}")
