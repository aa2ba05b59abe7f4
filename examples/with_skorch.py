"""Sparring under skorch: the training loss is the objective's; scoring, callbacks and grid search stay scikit-learn's.

python examples/with_skorch.py
"""

from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from skorch.utils import to_tensor
from torch import nn

import sparring as sp


class Sparring(NeuralNetClassifier):
    """A classifier trained on any recipe that updates once a batch: `recipe(model, loss)` gives its objective."""

    def __init__(self, *args: Any, recipe: Any, **kwargs: Any) -> None:
        self.recipe = recipe
        super().__init__(*args, **kwargs)

    def initialize_module(self) -> "Sparring":
        super().initialize_module()
        self.objective_ = self.recipe(self.module_, sp.cross_entropy)
        return self

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        self._set_training(True)
        total = torch.zeros((), device=self.device)
        for loss in self.objective_.steps(*to_tensor(batch, device=self.device)):
            loss.backward()
            total += loss.detach()
        return {"loss": total, "y_pred": None}  # only scores on the training data would ask for predictions here


torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
net = Sparring(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    recipe=partial(sp.recipes.vat, ball=sp.L2(0.5)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=1e-3,
    max_epochs=5,
    batch_size=50,
    train_split=None,
    verbose=0,
)
radii = (0.0, 0.5, 1.0)
recipes = [partial(sp.recipes.vat, ball=sp.L2(radius)) for radius in radii]
search = GridSearchCV(net, {"recipe": recipes}, cv=2, scoring="accuracy", refit=False)
search.fit((images / 16).astype("float32"), labels)
for radius, score in zip(radii, search.cv_results_["mean_test_score"], strict=True):
    print(f"radius {radius}: accuracy {score:.3f}")
