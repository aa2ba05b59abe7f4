"""What an attack reads from a model: logits, whatever object they come in."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..passes import still_statistics


def logits_of(outputs: Any) -> Tensor:
    """Logits (B, C): the tensor itself, its `.logits` (an ensemble, a Hugging Face model) or its "logits" entry.

    Example:
        >>> import torch
        >>> tuple(logits_of(torch.zeros(2, 3)).shape)
        (2, 3)
    """
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    logits = outputs if isinstance(outputs, Tensor) else found
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returns {type(outputs).__name__}; attacks need logits, an object with .logits, or a "
            'mapping with "logits"'
        )
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"the model's logits have shape {tuple(logits.shape)}; attacks need (B, classes), two at least (one logit z of "
            "yes or no stands for the two logits 0 and z)"
        )
    return logits


class Logits(nn.Module):
    """A model that returns bare logits divided by a temperature, for tools that expect a tensor.

    An ensemble's members are divided one by one, before their softmax outputs are averaged. Where torch cannot
    differentiate the model (it cuts its input into steps, say), the gradient in the input is zero instead of an error.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 3)
        >>> x = torch.ones(1, 2)
        >>> bool(torch.equal(Logits(net, temperature=2.0)(x), net(x) / 2))
        True

    Args:
        model: returns logits or an object with `.logits`.
        temperature: divides the logits; a single model's predictions stay the same.
    """

    def __init__(self, model: nn.Module, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.model(inputs)
        members = getattr(outputs, "members", None)
        if self.temperature != 1 and isinstance(members, Tensor) and members.dim() == 3:
            logits = (members / self.temperature).log_softmax(2).logsumexp(1) - math.log(members.shape[1])
        else:
            logits = logits_of(outputs) / self.temperature
        nothing = 0 * inputs.flatten(1)[:, :1]  # not of a sum, which half precision cannot hold
        return logits + nothing.to(logits.dtype)


@torch.no_grad()
def predictions(model: nn.Module, inputs: Tensor, samples: int = 1, batch_size: int = 256) -> Tensor:
    """Predicted classes (B,); a stochastic model is asked `samples` times and the mean probability decides.

    A model that answers with nan has predicted nothing: -1, which is right for no example.

    Example:
        >>> import torch
        >>> predictions(torch.nn.Identity(), torch.eye(3))
        tensor([0, 1, 2])
    """
    found = scores(model, inputs, samples, batch_size)
    return found.argmax(1).masked_fill(found.isnan().any(1), -1)


@torch.no_grad()
def scores(model: nn.Module, inputs: Tensor, samples: int = 1, batch_size: int = 256) -> Tensor:
    """Logits (B, C) in batches; for several samples the log of the mean probability. Running averages do not move.

    Example:
        >>> import torch
        >>> scores(torch.nn.Identity(), torch.eye(2))
        tensor([[1., 0.],
                [0., 1.]])
    """
    if samples < 1:
        raise ValueError(f"samples={samples}: a model is asked at least once")
    parts = []
    for part in inputs.split(batch_size):
        with still_statistics(model):
            draws = [logits_of(model(part)) for _ in range(samples)]
        if samples == 1:
            parts.append(draws[0])
        else:
            parts.append(torch.stack([d.log_softmax(1) for d in draws]).logsumexp(0))
    return torch.cat(parts)
