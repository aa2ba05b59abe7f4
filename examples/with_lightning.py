"""Sparring under Lightning: the mixin, an objective, and no training_step.

python examples/with_lightning.py
torchrun --nproc-per-node 2 examples/with_lightning.py
"""

import os

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparring as sp
from sparring.integrations.lightning import Sparring


class Digits(Sparring, lightning.LightningModule):
    """A perceptron trained against the worst inputs nearby."""

    def __init__(self) -> None:
        super().__init__()
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.objective = sp.recipes.adversarial_training(model, sp.cross_entropy, ball=sp.L2(0.5))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.objective.model.parameters(), lr=1e-3)


lightning.seed_everything(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
devices = int(os.environ.get("WORLD_SIZE", 1))
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, log_every_n_steps=10,
)  # fmt: skip
trainer.fit(Digits(), DataLoader(data, batch_size=50, shuffle=True))
if trainer.is_global_zero:
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})
