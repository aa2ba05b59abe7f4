"""Each member's own input, so that every member can meet its own adversarial examples."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..nn.matching import match
from .site import Kind, Site, Undo, Visit


@dataclass(frozen=True)
class MemberInput(Site):
    """What each member of an ensemble reads: one perturbation per member instead of one for all.

    >>> import torch, sparring as sp
    >>> nets = [nn.Sequential(nn.Linear(2, 2)) for _ in range(2)]
    >>> ensemble = sp.ensembles.Ensemble(nets, head="0")
    >>> x = torch.ones(1, 2)
    >>> apart = {"members.0.body": torch.zeros(1, 2), "members.1.body": torch.ones(1, 2)}
    >>> out = sp.perturbed_call(ensemble, {MemberInput(): apart}, x)
    >>> bool(torch.allclose(out.members[:, 1], nets[1](x + 1)))
    True

    With ``Term(at=MemberInput(), by=FastGradient(...))`` each member's perturbation climbs that member's own loss
    (the members share nothing but the data), and each member is charged at its own point. ``Term(at=Input(), ...)``
    crafts one perturbation on the mean of the members' losses instead.

    Args:
        glob: which members, as modules of the model.
    """

    glob: str = "**members.*.body"

    @property
    def kind(self) -> Kind:
        return "additive"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        return match(model, self.glob, what="ensemble member")

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (visit(name, args[0]), *args[1:])

        return module.register_forward_pre_hook(before).remove
