"""Recurrent classifiers of the sequence tasks.

>>> import torch
>>> SequenceClassifier(features=8, hidden=16, classes=10)(torch.zeros(4, 5, 8)).shape
torch.Size([4, 10])
"""

from torch import Tensor, nn


class SequenceClassifier(nn.Module):
    """An LSTM whose last hidden state feeds a linear classifier: the model of sequential MNIST.

    Orthogonal weights and forget biases of one, as in the released code of "Adversarial Dropout for Recurrent Neural
    Networks" (appendix 4 gives the sizes). The modules are `lstm`, `last` (a place for a mask on the last hidden state)
    and `classifier`.

    Args:
        features: numbers per time step.
        hidden: units of the LSTM.
        classes: outputs.
        init: "gates" makes the recurrent weights of each gate orthogonal; "released" makes every weight matrix, all gates
            together, orthogonal, which is half as large for each gate.
    """

    def __init__(self, features: int, hidden: int, classes: int, init: str = "gates") -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.last = nn.Dropout(0.0)
        self.classifier = nn.Linear(hidden, classes)
        if init not in ("gates", "released"):
            raise ValueError(f'SequenceClassifier(init={init!r}): choose "gates" or "released"')
        parameters = dict(self.lstm.named_parameters())
        for part in parameters["weight_hh_l0"].data.chunk(4 if init == "gates" else 1):
            nn.init.orthogonal_(part)
        if init == "released":
            nn.init.orthogonal_(parameters["weight_ih_l0"])
            nn.init.orthogonal_(self.classifier.weight)
        for name in ("bias_ih_l0", "bias_hh_l0"):
            nn.init.zeros_(parameters[name])
        nn.init.ones_(parameters["bias_ih_l0"].data[hidden : 2 * hidden])  # gate order: input, forget, cell, output

    def forward(self, sequence: Tensor) -> Tensor:  # (B, T, features) -> (B, classes)
        states, _ = self.lstm(sequence)
        return self.classifier(self.last(states[:, -1]))
