"""One member of an ensemble: a network seen as a body that yields features and a head that reads them."""

import copy
import difflib

import torch
from torch import Tensor, nn


class Tap(nn.Module):
    """Stands where a head was: hands the features through and remembers them until the first check."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None
        self.watching = True

    def forward(self, features: Tensor) -> Tensor:
        if self.watching:
            self.last = features
        return features


class Member(nn.Module):
    """Splits a network at its last linear layer, so that features can be masked before the head reads them.

    The network given is left as it was: body and head share its parameters, buffers and sub-modules, and training the
    member trains the network.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> member = Member(net, head="2")
    >>> x = torch.ones(5, 4)
    >>> bool(torch.equal(member(x), net(x))), tuple(member.features(x).shape)
    (True, (5, 8))

    Args:
        network: any module whose output is its head's output.
        head: dotted name of the last linear layer inside the network.
        label: how errors call this member.
    """

    def __init__(self, network: nn.Module, head: str, label: str = "the network") -> None:
        super().__init__()
        self.label = label
        self.head_name = head
        self.body, self.head = _split(network, head, label)

    def features(self, inputs: Tensor) -> Tensor:
        """What enters the head: (B, units)."""
        tap = self.body.get_submodule(self.head_name)
        if not (isinstance(tap, Tap) and tap.watching):
            return self.body(inputs)
        try:
            features = self.body(inputs)
        except (AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{self.label} does not run with head={self.head_name!r} taken out ({str(error).splitlines()[0]}): name "
                "its last layer, read nothing from the head but its output, and check the input's shape"
            ) from error
        _check_last(features, tap, self.label, self.head_name)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features(inputs))


def _split(network: nn.Module, head: str, label: str) -> tuple[nn.Module, nn.Module]:
    names = [name for name, _ in network.named_modules() if name]
    if head not in names:
        near = difflib.get_close_matches(head, names, n=3, cutoff=0.3)
        linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-3:]
        hint = ", ".join(repr(name) for name in dict.fromkeys([*near, *linear])) or "none: it has no sub-module"
        raise ValueError(f"head={head!r} names no module of {label} ({type(network).__name__}); near names: {hint}")
    found = network.get_submodule(head)
    body = copy.copy(network)  # parameters, buffers and children are shared, only the way to the head is ours
    body._modules = dict(body._modules)
    at = body
    *parents, last = head.split(".")
    for name in parents:
        child = at._modules[name]
        assert child is not None
        child = copy.copy(child)
        child._modules = dict(child._modules)
        at._modules[name] = child
        at = child
    at._modules[last] = Tap()
    return body, found


def _check_last(features: Tensor, tap: Tap, label: str, head: str) -> None:
    seen, tap.last = tap.last, None
    if seen is not features and not isinstance(features, Tensor):
        raise ValueError(
            f"{label} returns a {type(features).__name__}; an ensemble expects bare logits (B, classes): wrap the network "
            "in a module that returns them"
        )
    if seen is not features and (seen is None or not torch.equal(seen, features)):
        raise ValueError(
            f"{label} goes on computing after head={head!r}: name its last layer, or move what follows it "
            "(a softmax, say) out of the network; an ensemble expects logits"
        )
    tap.watching = False
