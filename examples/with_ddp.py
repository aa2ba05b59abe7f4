"""Sparring in a plain loop on several processes: wrap the objective in DistributedDataParallel, as you would the model.

torchrun --nproc-per-node 2 examples/with_ddp.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sparring as sp

dist.init_process_group("gloo")
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
sampler: DistributedSampler = DistributedSampler(data, seed=0)
loader = DataLoader(data, batch_size=50, sampler=sampler)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
objective = sp.recipes.free_lb(model, sp.cross_entropy, ball=sp.L2(0.5), steps=2)
wrapped = DistributedDataParallel(objective)  # averages the gradients; keep it alive as long as you train
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())  # every process draws noise and dropout of its own

for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        for loss in objective.steps(inputs, targets):  # one loss for most recipes, two for this one
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}: loss {objective.diagnostics['mean_loss']:.4f}")

mine = torch.cat([p.detach().flatten() for p in model.parameters()])
others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
dist.all_gather(others, mine)
if dist.get_rank() == 0:
    apart = max(float((other - mine).abs().max()) for other in others)
    print(f"{len(others)} processes, their weights differ by {apart}")
dist.destroy_process_group()
