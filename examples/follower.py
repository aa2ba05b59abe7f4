"""How far does SALT's follower move, and what does the leader see of it? The published step size against steps that reach the
ball, and starts so near to the clean point that single precision has no slope but rounding.

python examples/follower.py
"""

import copy
import statistics

import torch
from sklearn.datasets import load_digits
from torch import nn

import sparring as sp

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float64) / 16, torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(10):
    for batch in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()

followers = {
    "raw, eta 1e-5, sigma 1e-5 (published)": sp.PGD(sp.L2(1.0), 1, 1e-5, start=1e-5, update="raw"),
    "raw, eta 1e-3, sigma 1e-4": sp.PGD(sp.L2(1.0), 1, 1e-3, start=1e-4, update="raw"),
    "Adam, eta 1e-5, K 2 (published, NLU)": sp.PGD(sp.L2(1.0), 2, 1e-5, start=1e-5, update="adam"),
    "normalised, K 1 (our default)": sp.PGD(sp.L2(1.0), 1),
    "normalised, K 3": sp.PGD(sp.L2(1.0), 3),
}
print(f"{'follower':<40} {'norm':>9} {'on ball':>8} {'penalty':>10} {'against noise':>14}")
for name, player in followers.items():
    objective = sp.Objective(
        model, sp.cross_entropy, sp.Term(sp.Output("0"), player, sp.kl, name="t"), measure_noise_every=1
    )
    objective(x, y)
    seen = objective.diagnostics
    ratio = seen["t/penalty"] / seen["t/noise_penalty"]
    print(f"{name:<40} {seen['t/norm']:9.2e} {seen['t/at_boundary']:8.0%} {seen['t/penalty']:10.2e} {ratio:14.2f}")

print(f"\n{'start of a normalised step':<40} {'interaction, float64':>21} {'float32':>9}")
for start in (1e-5, 1e-4, 1e-3, 1e-2, None):
    found = []
    for dtype in (torch.float64, torch.float32):
        copied = copy.deepcopy(model).to(dtype)
        objective = sp.recipes.salt(copied, sp.cross_entropy, "0", start=start, measure_interaction_every=1)
        draws = []
        for _ in range(10):
            objective(x[:500].to(dtype), y[:500])
            draws.append(objective.diagnostics["salt/interaction"])
        found.append(statistics.median(draws))
    name = "a tenth of the radius (default)" if start is None else f"sigma {start:g}"
    print(f"{name:<40} {found[0]:21.3f} {found[1]:9.3f}")
