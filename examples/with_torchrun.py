"""One script from one core to many hosts: DistributedDataParallel or FSDP2, full or mixed precision, uneven last batches.

python examples/with_torchrun.py
torchrun --nproc-per-node 2 examples/with_torchrun.py
torchrun --nproc-per-node 2 examples/with_torchrun.py --shard blocks --method smart
torchrun --nproc-per-node 2 examples/with_torchrun.py --precision float16
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sparring as sp

words = argparse.ArgumentParser()
words.add_argument("--method", default="salt", choices=["salt", "vat", "smart", "free_at"])
words.add_argument("--shard", default="no", choices=["no", "blocks", "objective"])
words.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])
words.add_argument("--batch", type=int, default=250, help="examples of a process")
words.add_argument("--save", help="file for the trained weights")
given = words.parse_args()

# torchrun tells each process its place; without it there is one process. A GPU each, where there are any.
several = "RANK" in os.environ
device = (
    torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
)
if several:
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)

torch.manual_seed(0)  # the same first weights everywhere
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).to(device)
recipe = getattr(sp.recipes, given.method)
options = {"start": 0.01} if given.method == "salt" else {}
if given.shard == "blocks":
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)  # before the objective is built: SMART's averages are sharded like the weights they average
    options |= {"unroll": "finite_difference"} if given.method == "salt" else {}
objective = recipe(model, sp.cross_entropy, at="0", ball=sp.L2(0.5), **options)
if given.shard == "objective":
    fully_shard(objective)  # or this, of the unsharded model's
if several and given.shard == "no":
    wrapped = DistributedDataParallel(objective)  # keep it: it synchronises

optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
low = getattr(torch, given.precision)
scaler = torch.amp.GradScaler(device.type, enabled=low is torch.float16)
torch.manual_seed(1 + rank)  # other noise for other examples
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
for epoch in range(2):
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(given.batch * world):
        if len(batch) < world:
            break  # fewer examples than processes: every process needs one
        share = batch.tensor_split(world)[rank]  # the last shares may be shorter than others
        inputs, targets = images[share].to(device), labels[share].to(device)
        losses = objective.steps(inputs, targets, items="ranks")  # the mean over the examples of all processes
        while True:
            with torch.autocast(device.type, low, enabled=low is not torch.float32):
                loss = next(losses, None)
            if loss is None:
                break
            scaler.scale(loss).backward()
            if objective.update_each_loss:
                scaler.step(optimiser)
                scaler.update()
                optimiser.zero_grad()
        if not objective.update_each_loss:
            scaler.step(optimiser)
            scaler.update()
            optimiser.zero_grad()
    if rank == 0:
        print(f"epoch {epoch + 1}: loss {objective.diagnostics['loss']:.4f}")

if given.save:
    state = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in model.state_dict().items()}
    if rank == 0:
        torch.save(state, given.save)
if several:
    dist.destroy_process_group()
