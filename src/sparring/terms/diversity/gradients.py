"""Input gradients of every member, with their graph."""

import torch
from torch import Tensor

from ...balls import L2
from ...losses import member_losses


def input_gradients(members: Tensor, targets: Tensor, inputs: Tensor, create_graph: bool = True) -> Tensor:
    """Gradient of each member's cross-entropy with respect to the input, flattened: (B, K, D).

    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> members = torch.stack([x, 2 * x], 1)
    >>> tuple(input_gradients(members, torch.tensor([0, 1]), x).shape)
    (2, 2, 3)

    Args:
        members: member logits (B, K, C), computed from ``inputs``.
        targets: class indices (B,).
        inputs: a tensor that requires gradients, one row per example.
        create_graph: keep the graph, so that the gradients can be penalised.
    """
    with torch.enable_grad():
        true = members.gather(-1, targets[:, None, None].expand(-1, members.shape[1], 1))
        # The same loss of shifted logits: softmax minus one-hot would cancel to a wrong direction once it saturates.
        losses = member_losses(members - true, targets).sum(0).unbind()  # summed: each row's gradient is its own
    rows = []
    for loss in losses:
        (gradient,) = torch.autograd.grad(loss, inputs, create_graph=create_graph, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(inputs) if gradient is None else gradient)
    return torch.stack([row.flatten(1) for row in rows], 1)


def pair_cosines(gradients: Tensor) -> Tensor:
    """Cosine of every pair of members' gradients, (B, K(K-1)/2); a vanished gradient has cosine 0 with any other.

    >>> pair_cosines(torch.tensor([[[1.0, 0.0], [1e-25, 0.0], [0.0, 2.0]]]))
    tensor([[1., 0., 0.]])
    """
    members = gradients.shape[1]
    directions = L2(1.0).normalise(gradients.flatten(0, 1)).view_as(gradients)
    products = directions @ directions.transpose(1, 2)  # (B, K, K)
    first, second = torch.triu_indices(members, members, 1, device=gradients.device).unbind()
    return products[:, first, second]
