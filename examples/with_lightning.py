"""Sparring under Lightning: `training_step` returns the objective's loss; nothing else changes.

python examples/with_lightning.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparring as sp


class Digits(lightning.LightningModule):
    """A perceptron trained against the worst inputs nearby."""

    def __init__(self) -> None:
        super().__init__()
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.objective = sp.recipes.adversarial_training(model, sp.cross_entropy, ball=sp.L2(0.5))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        loss = self.objective(*batch)
        self.log_dict(self.objective.diagnostics)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.objective.model.parameters(), lr=1e-3)


lightning.seed_everything(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Digits(), DataLoader(data, batch_size=50, shuffle=True))
print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})
