"""Find the weights that consume a dropout layer's units: the W of the KL terms."""

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
class NextLayers:
    """The layers whose weights meet a dropout layer's units, and how many units there are.

    Attributes:
        names: the consuming layers.
        units: how many units the dropout layer has.
        columns: for each consuming layer the unit that each of its inputs carries, -1 where it is another's (behind a
            concatenation); None where its inputs are the units in order.
    """

    names: tuple[str, ...]
    units: int
    columns: tuple[tuple[int, ...] | None, ...] = field(default=(), repr=False)

    def norms(self, model: nn.Module) -> Tensor:
        """Squared norm of the weights each unit meets, summed over the consuming layers, `(units,)`."""
        found = []
        for name, columns in zip(self.names, self.columns or (None,) * len(self.names), strict=True):
            layer = model.get_submodule(name)
            if columns is None:
                found.append(column_norms(layer, self.units))
                continue
            every = column_norms(layer, len(columns))
            unit = torch.tensor(columns, device=every.device)
            mine = unit >= 0
            found.append(every.new_zeros(self.units).index_add(0, unit[mine], every[mine]))
        return torch.stack(found).sum(0)


def find_next_layers(model: nn.Module, layers: Iterable[str], inputs: Any = None) -> dict[str, NextLayers]:
    """The layers whose weights consume the output of each named layer.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Dropout2d(), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    >>> find_next_layers(model, ["1"], inputs=torch.zeros(1, 1, 4, 4))
    {'1': NextLayers(names=('4',), units=8)}

    Inside an `nn.Sequential` the next weighted layer is read off; elsewhere a copy of the model runs on `inputs`, a few
    passes whatever the number of units, and units are followed on their way, through concatenations too.

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


def _next_in_sequence(model: nn.Module, name: str) -> NextLayers | None:
    parent, _, key = name.rpartition(".")
    holder = model.get_submodule(parent)
    if not isinstance(holder, nn.Sequential):
        return None
    keys = list(holder._modules)
    for later in keys[keys.index(key) + 1 :]:
        layer = holder._modules[later]
        if isinstance(layer, Weighted):
            sizes = [getattr(layer, size, None) for size in ("in_features", "in_channels", "input_size")]
            return NextLayers((f"{parent}.{later}" if parent else later,), next(s for s in sizes if isinstance(s, int)))
        if not isinstance(layer, _STEPS_OVER):
            return None
    return None


def _traced(model: nn.Module, layers: list[str], inputs: Any) -> dict[str, NextLayers]:
    """Run a copy with some units turned into NaN and see at which inputs of weighted layers they arrive.

    NaN goes through whatever depends on it and stops at the weighted layers, whose outputs are mended. Which units are
    marked follows the bits of their numbers, each bit and its opposite in a pass of its own: an input that carries one unit
    spells its number, an input that mixes several shows a bit together with its opposite.
    """
    try:
        twin = copy.deepcopy(model).eval()
    except RuntimeError as error:
        raise ValueError(
            f"{type(model).__name__} cannot be copied to look for consuming layers; give weights="
        ) from error
    sizes = _sizes(twin, layers, inputs)
    first = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0)))
    total = sum(sizes.values())
    seen: dict[str, list[Tensor]] = {}  # for each weighted layer, one row of marks a pass
    marks = [
        torch.arange(total) >> bit & 1 == value for bit in range(max(1, (total - 1).bit_length())) for value in (0, 1)
    ]

    def poison(name: str, marked: Tensor) -> Callable[..., Tensor]:
        def hook(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            axis = _unit_axis(module, output)
            chosen = marked[first[name] : first[name] + sizes[name]].to(output.device)
            shape = [1] * output.dim()
            shape[axis] = -1
            return output.masked_fill(chosen.reshape(shape), torch.nan)

        return hook

    def look(name: str, number: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            value = args[0].data if isinstance(args[0], PackedSequence) else args[0]
            if isinstance(value, Tensor) and value.is_floating_point():
                axis = 1 if isinstance(module, _ConvNd) else -1
                arrived = value.isnan().movedim(axis, 0).flatten(1).any(1).cpu()
                rows = seen.setdefault(name, [torch.zeros(len(arrived), dtype=torch.bool) for _ in marks])
                rows[number] |= arrived

        return hook

    for number, marked in enumerate(marks):
        hooks = []
        for name, module in twin.named_modules():
            if name in sizes:
                hooks.append(module.register_forward_hook(poison(name, marked)))
            elif isinstance(module, Weighted):
                hooks.append(module.register_forward_pre_hook(look(name, number)))
                hooks.append(module.register_forward_hook(_mend))
        _run(twin, inputs)
        for hook in hooks:
            hook.remove()
    return _read(seen, sizes, first)


def _read(seen: dict[str, list[Tensor]], sizes: dict[str, int], first: dict[str, int]) -> dict[str, NextLayers]:
    """From marks to units, layer by layer."""
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {name: [] for name in sizes}
    for consumer, rows in seen.items():
        clear, marked = torch.stack(rows[0::2]), torch.stack(rows[1::2])  # (bits, columns)
        mixed, carried = (clear & marked).any(0), (clear | marked).any(0)
        number = (marked.long() << torch.arange(len(marked))[:, None]).sum(0)
        for name, start in first.items():
            mine = carried & ~mixed & (number >= start) & (number < start + sizes[name])
            if bool(mine.any()):
                columns = torch.where(mine, number - start, -1)
                found[name].append((consumer, tuple(columns.tolist())))
        if bool(mixed.any()):
            raise ValueError(
                f"units are mixed with each other on the way from {', '.join(sizes)} to {consumer}; give weights= yourself"
            )
    lost = [name for name, consumers in found.items() if not consumers]
    if lost:
        raise ValueError(f"no linear, convolutional or recurrent layer consumes {', '.join(lost)}; give weights=")
    return {
        name: NextLayers(
            tuple(c for c, _ in met), sizes[name], tuple(_in_order(columns, sizes[name]) for _, columns in met)
        )
        for name, met in found.items()
    }


def _in_order(columns: tuple[int, ...], units: int) -> tuple[int, ...] | None:
    """None where the columns are the units in order, each as often as the others."""
    often, rest = divmod(len(columns), units)
    return None if not rest and columns == tuple(i // often for i in range(len(columns))) else columns


def _sizes(twin: nn.Module, layers: list[str], inputs: Any) -> dict[str, int]:
    """How many units each dropout layer has, seen in one pass."""
    sizes: dict[str, int] = {}

    def measure(name: str) -> Callable[..., None]:
        return lambda module, _, output: sizes.update({name: output.shape[_unit_axis(module, output)]})

    hooks = [twin.get_submodule(name).register_forward_hook(measure(name)) for name in layers]
    _run(twin, inputs)
    for hook in hooks:
        hook.remove()
    idle = [name for name in layers if name not in sizes]
    if idle:
        raise ValueError(f"{', '.join(idle)} never ran on the example; give weights= or leave the layer out")
    return sizes


def _unit_axis(module: nn.Module, output: Tensor) -> int:
    return module.units.axis(output) if isinstance(module, Learned) else 1


def _mend(_: nn.Module, __: Any, output: Any) -> Any:
    """An output without NaN: marks end at the layers that consume them."""
    if isinstance(output, PackedSequence):
        return output._replace(data=output.data.nan_to_num())
    if isinstance(output, tuple):  # recurrent layers: states, and the last of them
        return tuple(_mend(_, __, part) for part in output)
    return output.nan_to_num()


def _run(model: nn.Module, inputs: Any) -> None:
    with torch.no_grad(), torch.random.fork_rng():
        arguments = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, Mapping) else (inputs,)
        model(*arguments, **(inputs if isinstance(inputs, Mapping) else {}))
