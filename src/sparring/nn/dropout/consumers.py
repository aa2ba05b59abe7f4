"""Find the weights that consume a dropout layer's units: the W of the KL terms."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from .bernoulli import BernoulliDropout
from .concrete import ConcreteDropout
from .gaussian import GaussianDropout

Learned = BernoulliDropout | ConcreteDropout | GaussianDropout
Weighted = nn.Linear | _ConvNd | nn.RNNBase
_STEPS_OVER = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Hardtanh,
    nn.Identity,
)


def column_norms(module: nn.Module, units: int) -> Tensor:
    """Squared norm of the weights that each of the `units` inputs of a layer meets, `(units,)`, differentiable.

    >>> layer = nn.Linear(2, 1)
    >>> with torch.no_grad(): _ = layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
    >>> column_norms(layer, 2), column_norms(layer, 1)          # one unit that was flattened into two inputs
    (tensor([ 9., 16.], grad_fn=<SumBackward1>), tensor([25.], grad_fn=<SumBackward1>))
    """
    if isinstance(module, nn.RNNBase):
        weights = [w for name, w in module.named_parameters() if name.startswith("weight_ih_l0")]
        norms = torch.stack([w.square().sum(0) for w in weights]).sum(0)
    elif isinstance(module, _ConvTransposeNd):
        norms = module.weight.square().flatten(1).sum(1)
    elif isinstance(module, _ConvNd):
        squares = module.weight.square().unflatten(0, (module.groups, -1)).flatten(3)  # (groups, out, in, kernel)
        norms = squares.sum((1, 3)).flatten()
    elif isinstance(module, nn.Linear):
        norms = module.weight.square().sum(0)
    else:
        raise ValueError(f"{type(module).__name__} has no weights known to consume units; give weights= yourself")
    if norms.numel() % units:
        raise ValueError(
            f"{type(module).__name__} takes {norms.numel()} inputs, no multiple of {units} units; give weights="
        )
    return norms.reshape(units, -1).sum(1)


@dataclass(frozen=True)
class Consumers:
    """The layers whose weights meet a dropout layer's units, and how many units there are."""

    names: tuple[str, ...]
    units: int

    def norms(self, model: nn.Module) -> Tensor:
        """Squared norm of the weights each unit meets, summed over the consuming layers, `(units,)`."""
        return torch.stack([column_norms(model.get_submodule(name), self.units) for name in self.names]).sum(0)


def find_consumers(model: nn.Module, layers: Iterable[str], inputs: Any = None) -> dict[str, Consumers]:
    """The layers whose weights consume the output of each named layer.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Dropout2d(), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    >>> find_consumers(model, ["1"], inputs=torch.zeros(1, 1, 4, 4))
    {'1': Consumers(names=('4',), units=8)}

    Inside an `nn.Sequential` the next weighted layer is read off; elsewhere a copy of the model runs on `inputs` and
    the graph between the layers is looked at.

    Args:
        model: never changed, never run itself.
        layers: module names.
        inputs: a batch, or a tuple or dict of arguments; needed where the structure does not tell.
    """
    found = {name: _next_in_sequence(model, name) for name in layers}
    known = {name: consumers for name, consumers in found.items() if consumers is not None}
    unknown = [name for name in found if name not in known]
    if unknown and inputs is None:
        raise ValueError(
            f"which weights consume {', '.join(unknown)} cannot be read off; give weights= or an example batch"
        )
    return known | (_traced(model, unknown, inputs) if unknown else {})


def _next_in_sequence(model: nn.Module, name: str) -> Consumers | None:
    parent, _, key = name.rpartition(".")
    holder = model.get_submodule(parent)
    if not isinstance(holder, nn.Sequential):
        return None
    keys = list(holder._modules)
    for later in keys[keys.index(key) + 1 :]:
        layer = holder._modules[later]
        if isinstance(layer, Weighted):
            sizes = [getattr(layer, size, None) for size in ("in_features", "in_channels", "input_size")]
            return Consumers((f"{parent}.{later}" if parent else later,), next(s for s in sizes if isinstance(s, int)))
        if not isinstance(layer, _STEPS_OVER):
            return None
    return None


def _traced(model: nn.Module, layers: list[str], inputs: Any) -> dict[str, Consumers]:
    """Run a copy whose dropout outputs are graph leaves and whose weighted layers cut the graph; see who meets them."""
    try:
        twin = copy.deepcopy(model).eval()
    except RuntimeError as error:
        raise ValueError(
            f"{type(model).__name__} cannot be copied to look for consuming layers; give weights="
        ) from error
    leaves: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in layers}
    seen: dict[str, list[str]] = {name: [] for name in layers}

    def make_leaf(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            leaf = output.detach().requires_grad_()
            leaves[name].append((leaf, module.units.axis(leaf) if isinstance(module, Learned) else 1))
            return leaf

        return hook

    def look(consumer: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            axis = 1 if isinstance(module, _ConvNd) else -1
            value = args[0].data if isinstance(args[0], PackedSequence) else args[0]
            for name, found in leaves.items():
                between = f"{name} to {consumer}"
                if consumer not in seen[name] and any(_same_units(value, axis, *leaf, between) for leaf in found):
                    seen[name].append(consumer)

        return hook

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, PackedSequence):
            return output._replace(data=output.data.detach())
        if isinstance(output, tuple):  # recurrent layers: states, and the last of them
            return tuple(cut(_, __, part) for part in output)
        return output.detach()

    for name, module in twin.named_modules():
        if name in leaves:
            module.register_forward_hook(make_leaf(name))
        elif isinstance(module, Weighted):
            module.register_forward_pre_hook(look(name))
            module.register_forward_hook(cut)
    with torch.enable_grad(), torch.random.fork_rng():
        arguments = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, Mapping) else (inputs,)
        twin(*arguments, **(inputs if isinstance(inputs, Mapping) else {}))
    lost = [name for name, consumers in seen.items() if not consumers]
    if lost:
        raise ValueError(f"no linear, convolutional or recurrent layer consumes {', '.join(lost)}; give weights=")
    return {name: Consumers(tuple(names), leaves[name][0][0].shape[leaves[name][0][1]]) for name, names in seen.items()}


def _same_units(value: Any, axis: int, leaf: Tensor, unit_axis: int, between: str) -> bool:
    """Whether `value` was computed from `leaf`; raises if units were merged or mixed with others on the way."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return False
    columns = value.movedim(axis, 0)
    width, units = columns.shape[0], leaf.shape[unit_axis]
    for column in sorted({0, width // 2, width - 1}):  # a sample of the consumer's inputs
        (gradient,) = torch.autograd.grad(columns[column].sum(), leaf, retain_graph=True, allow_unused=True)
        if gradient is None:
            return False
        touched = gradient.movedim(unit_axis, 0).flatten(1).abs().sum(1).nonzero().flatten().tolist()
        if width % units or any(unit != column * units // width for unit in touched):
            raise ValueError(f"units are concatenated or mixed on the way from {between}; give weights= yourself")
    return True
