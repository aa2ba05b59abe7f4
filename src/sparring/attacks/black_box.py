"""An attack that sees only the model's outputs."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn

from ..balls import Ball, Linf, check_ball
from ..passes import still_statistics
from .objectives import margin
from .outputs import scores
from .precision import placed, single


@dataclass(frozen=True)
class RandomSearch:
    """Random search over square patches, keeping every change that lowers the margin.

    It needs no gradient, so a model that only hides its gradients does not resist it: when it beats a gradient
    attack, the gradient attack failed. Images change in squares that shrink as the search goes on, flat inputs in
    random groups of features (after the square attack of Andriushchenko et al. 2020).

    Example:
        >>> import sparring as sp, torch
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.full((2, 4), 0.5), torch.tensor([0, 1])
        >>> found = RandomSearch(sp.Linf(0.1, box=(0, 1)), queries=20)(net, x, y)
        >>> bool(((found - x).abs() <= 0.1 + 1e-6).all())
        True

    Args:
        ball: how far, and within which range of valid data: `sp.Linf(8 / 255, box=(0, 1))`.
        queries: model calls per example.
        patch: share of the input changed by the first proposals; it shrinks to a tenth of that.
        samples: passes averaged per query, for models that draw noise.
    """

    ball: Ball
    _: KW_ONLY
    queries: int = 300
    patch: float = 0.3
    samples: int = 1

    def __post_init__(self) -> None:
        check_ball(self.ball, "RandomSearch")

    @torch.no_grad()
    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs for `model` in the mode it is in."""
        with still_statistics(model):
            delta = torch.zeros_like(single(inputs))
            value = margin(single(scores(model, inputs, self.samples)), targets)
            open_ones = (value <= 0).nonzero().squeeze(1)  # examples still to be broken
            for query in range(self.queries):
                if len(open_ones) == 0:
                    break
                proposal = self._propose(delta[open_ones], query)
                near, right = inputs[open_ones], targets[open_ones]
                proposal = self.ball.project(proposal, around=single(near))
                found = margin(single(scores(model, placed(near, proposal), self.samples)), right)
                better = ~(found <= value[open_ones])  # nan is no answer, so it is no right one
                delta[open_ones[better]], value[open_ones[better]] = proposal[better], found[better]
                open_ones = open_ones[value[open_ones] <= 0]
        return placed(inputs, delta)

    def _propose(self, delta: Tensor, query: int) -> Tensor:
        where = self._patch(delta, self.patch * 0.1 ** (query / max(1, self.queries - 1)))
        signs = _per_channel_signs(delta)
        if query == 0:
            return self.ball.radius * torch.sign(torch.randn_like(delta))
        if isinstance(self.ball, Linf):
            return torch.where(where, self.ball.radius * signs, delta)
        size = delta[0].numel() ** 0.5 * self.patch
        return delta + where * signs * self.ball.radius / size

    def _patch(self, delta: Tensor, share: float) -> Tensor:
        """(B, 1 or C, ...) true where the proposal changes the input; never empty."""
        batch = len(delta)
        if delta.dim() < 4:
            flat = torch.rand(batch, delta[0].numel(), device=delta.device)
            count = max(1, round(share * flat.shape[1]))
            chosen = torch.zeros_like(flat).scatter_(1, flat.topk(count, dim=1).indices, 1.0)
            return chosen.bool().reshape(delta.shape)
        height, width = delta.shape[-2:]
        side = max(1, min(round((share * height * width) ** 0.5), height, width))
        top = torch.randint(0, height - side + 1, (batch, 1, 1, 1), device=delta.device)
        left = torch.randint(0, width - side + 1, (batch, 1, 1, 1), device=delta.device)
        row = torch.arange(height, device=delta.device).reshape(1, 1, -1, 1)
        column = torch.arange(width, device=delta.device).reshape(1, 1, 1, -1)
        return (row >= top) & (row < top + side) & (column >= left) & (column < left + side)


def _per_channel_signs(delta: Tensor) -> Tensor:
    """Random signs: one per channel of an image, one per feature of a flat input."""
    shape = (*delta.shape[:2], 1, 1) if delta.dim() == 4 else delta.shape
    return torch.randn(shape, dtype=delta.dtype, device=delta.device).sign()
