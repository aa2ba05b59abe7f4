"""Recurrent classifiers of the sequence tasks.

>>> import torch
>>> SequenceClassifier(features=8, hidden=16, classes=10)(torch.zeros(4, 5, 8)).shape
torch.Size([4, 10])
"""

from torch import Tensor, nn


class SequenceClassifier(nn.Module):
    """An LSTM whose last hidden state feeds a linear classifier: the model of sequential MNIST.

    Orthogonal recurrent weights and forget biases of one, as in the released code of "Adversarial Dropout for
    Recurrent Neural Networks" (appendix 4 gives the sizes). The modules are `lstm` and `classifier`.

    Args:
        features: numbers per time step.
        hidden: units of the LSTM.
        classes: outputs.
    """

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)
        parameters = dict(self.lstm.named_parameters())
        for gate in parameters["weight_hh_l0"].data.chunk(4):
            nn.init.orthogonal_(gate)
        for name in ("bias_ih_l0", "bias_hh_l0"):
            nn.init.zeros_(parameters[name])
        nn.init.ones_(parameters["bias_ih_l0"].data[hidden : 2 * hidden])  # gate order: input, forget, cell, output

    def forward(self, sequence: Tensor) -> Tensor:  # (B, T, features) -> (B, classes)
        states, _ = self.lstm(sequence)
        return self.classifier(states[:, -1])
