"""How different the members of an ensemble are: their mistakes, the directions and the sizes of their gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attacks.gradient import differentiating
from ..terms.diversity import input_gradients, pair_cosines

QUARTILES = (0.25, 0.5, 0.75)


def ambiguity(members: Tensor, targets: Tensor) -> float:
    """How evenly members are split between right and wrong: the entropy measure E of Kuncheva and Whitaker, 0 to 1.

    >>> logits = torch.tensor([[[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]], [[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]])
    >>> ambiguity(logits, torch.tensor([0, 0]))  # one example splits two against one, one is unanimous
    0.5

    Args:
        members: member logits (B, K, C), or their predicted classes (B, K) as integers.
        targets: class indices (B,).

    Paper: Wu et al., eq. 7.
    """
    predicted = _classes(members)
    count = predicted.shape[1]
    if count < 2:
        raise ValueError(f"members holds {count} member(s); ambiguity compares at least 2")
    if targets.shape != predicted.shape[:1]:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)}; expected one class for each of {len(predicted)} examples"
        )
    right = (predicted == targets[:, None]).sum(1)
    split = torch.minimum(right, count - right) / (count - (count + 1) // 2)
    return float(split.double().mean())


def pairwise_disagreement(members: Tensor) -> Tensor:
    """Share of examples on which two members predict different classes, (K, K).

    >>> pairwise_disagreement(torch.tensor([[0, 1], [2, 2]]))
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]])

    Args:
        members: member logits (B, K, C), or their predicted classes (B, K) as integers.
    """
    predicted = _classes(members)
    return (predicted.unsqueeze(1) != predicted.unsqueeze(2)).float().mean(0)


def _classes(members: Tensor) -> Tensor:
    """What every member predicts (B, K), from its logits (B, K, C) or the classes themselves."""
    if members.dim() not in (2, 3) or (members.dim() == 2 and members.is_floating_point()):
        raise ValueError(f"members has shape {tuple(members.shape)}; expected logits (B, K, C) or classes (B, K)")
    return members.argmax(-1) if members.dim() == 3 else members


@dataclass(frozen=True)
class GradientDiversity:
    """What the members' input gradients look like, example by example.

    Attributes:
        cosines: of every pair of members, (N, K(K-1)/2), pairs in the order (0,1), (0,2), ..., (1,2), ...
        norms: L2 norm of every member's gradient, (N, K).
    """

    cosines: Tensor
    norms: Tensor

    @property
    def similarity(self) -> Tensor:
        """L_d of section 4.2: the sum over pairs of the cosine, (N,); 0 means orthogonal gradients."""
        return self.cosines.sum(1)

    @property
    def smoothness(self) -> Tensor:
        """L_s of section 4.3: the sum over members of the gradient norm, (N,); smaller is smoother."""
        return self.norms.sum(1)

    @property
    def vanished(self) -> float:
        """Share of gradients that are exactly zero: where it is not 0, L_d and L_s say little about robustness."""
        return float((self.norms == 0).double().mean())

    def quantiles(self, at: tuple[float, ...] = QUARTILES) -> dict[str, list[float]]:
        """Quantiles of L_d and L_s over the examples (Tables 2 and 3: 25, 50 and 75 %)."""
        levels = torch.tensor(at, dtype=torch.float64, device=self.similarity.device)
        return {
            "similarity": torch.quantile(self.similarity.double(), levels).tolist(),
            "smoothness": torch.quantile(self.smoothness.double(), levels).tolist(),
        }

    def pairs(self) -> Tensor:
        """Mean cosine of every pair as a symmetric matrix with ones on the diagonal, (K, K)."""
        members = self.norms.shape[1]
        matrix = torch.eye(members, dtype=self.cosines.dtype)
        first, second = torch.triu_indices(members, members, 1).unbind()
        matrix[first, second] = matrix[second, first] = self.cosines.mean(0)
        return matrix


def gradient_diversity(ensemble: nn.Module, inputs: Tensor, targets: Tensor, chunk: int = 256) -> GradientDiversity:
    """Measure every member's loss gradient with respect to the input: directions (L_d) and sizes (L_s).

    >>> from sparring.ensembles import Ensemble
    >>> nets = [nn.Sequential(nn.Linear(4, 3)) for _ in range(3)]
    >>> found = gradient_diversity(Ensemble(nets, head="0").eval(), torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
    >>> tuple(found.similarity.shape), sorted(found.quantiles())
    ((8,), ['similarity', 'smoothness'])

    Cosines are scale-free: a gradient of norm 1e-20 still has a direction. (A small constant in the denominator turns
    the cosines of nearly vanished gradients into numbers near 0 that look like orthogonality.)

    Args:
        ensemble: an ``Ensemble``, in the mode it should be measured in (call ``.eval()`` first).
        inputs: (N, ...).
        targets: class indices (N,).
        chunk: examples per pass.

    Paper: Wu et al., sections 4.2 and 4.3.
    """
    if targets.shape != inputs.shape[:1]:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)}; expected one class for each of {len(inputs)} examples"
        )
    cosines, norms = [], []
    for part, labels in zip(inputs.split(chunk), targets.split(chunk)):
        with differentiating(ensemble):
            x = part.detach().clone().requires_grad_()
            gradients = input_gradients(ensemble(x).members, labels.clone(), x, create_graph=False)
        cosines.append(pair_cosines(gradients).cpu())
        norms.append(gradients.norm(dim=-1).cpu())
    return GradientDiversity(torch.cat(cosines), torch.cat(norms))
