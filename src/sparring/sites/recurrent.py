"""The recurrent connection of an RNN, and the mask of its weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..nn.dropout.weight_drop import WeightDrop
from ..nn.matching import match
from ..nn.recurrent import fused as recurrent_native
from ..nn.recurrent.forward import connections, masked_forward, refuse_projections
from ..nn.recurrent.projection import shared_projections
from .site import EVERYWHERE, Kind, Site, Undo, Visit, patch_forward


def _check_keep(site: str, keep: float | None) -> None:
    if keep is not None and not 0 < keep <= 1:
        raise ValueError(f"{site}(keep={keep}): a keep rate lies in (0, 1]")


def _drawn(ones: Tensor, keep: float | None) -> Tensor:
    return ones if keep in (None, 1) else torch.bernoulli(ones * keep) / keep


@dataclass(frozen=True)
class Recurrent(Site):
    """The multiplier of `h_{t-1}` where it enters the recurrent product, the same at every time step: (B, H).

    Works on `sparring.nn.LSTM/GRU/RNN`, on untouched `nn.LSTM/GRU/RNN` (our kernel runs with the module's own parameters)
    and on a `WeightDrop` around them. One slot per layer and direction: `lstm`, or `lstm.l0`, `lstm.l0_reverse`, ... where
    there are several.

    >>> import sparring as sp
    >>> lstm, x = nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    >>> (output, _), seen = sp.perturbed_call(lstm, {sp.Recurrent(): torch.zeros(2, 4)}, x, record=True)
    >>> seen[sp.Recurrent()]["recurrent"].shape
    torch.Size([2, 4])

    Args:
        glob: which modules; every RNN by default.
        keep: keep rate of the mask that stands in the clean pass: None and 1.0 keep everything (or the mask that the model
            itself passes in), less draws a random mask, divided by the rate.
        layers: which layers; None for all. -1 is the last.

    Paper: Gal and Ghahramani (2016); Park et al. (2019), eq. 1.
    """

    glob: str = "**"
    keep: float | None = None
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_keep("Recurrent", self.keep)

    @property
    def kind(self) -> Kind:
        return "mask"

    def sharing(self, store: dict[Any, Any]) -> AbstractContextManager[None]:
        return shared_projections(store)

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        found = match(model, self.glob, lambda m: isinstance(m, nn.RNNBase | WeightDrop), "recurrent layer")
        inner = {id(module.module) for module in found.values() if isinstance(module, WeightDrop)}
        found = {name: module for name, module in found.items() if id(module) not in inner}
        for module in found.values():
            refuse_projections(_network(module))
            _chosen(_network(module), self.layers)
        return found

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        network, inner = _network(module), module.forward
        names, chosen = connections(network), _chosen(network, self.layers)

        def forward(input: Any, hx: Any = None, mask: Any = None, weights: Any = None) -> Any:
            data, batch = _batch(network, input)
            ones = torch.ones(batch, network.hidden_size, dtype=data.dtype, device=data.device)
            given: list[Tensor | None] = [None] * len(names) if mask is None else list(mask)
            masks: list[Tensor | None] = []
            for at, label in enumerate(names):
                own = given[at]
                if label not in chosen:
                    masks.append(own)
                    continue
                clean = _drawn(ones if own is None else own.expand(batch, -1), self.keep)
                slot = name or "recurrent"
                placed = visit(slot if len(names) == 1 else f"{slot}.{label}", clean, EVERYWHERE)
                # Where nothing was placed and there is no native loop, torch's fused kernel is the faster one.
                untouched = placed is ones and not recurrent_native.usable(data)
                masks.append(None if untouched else placed)
            return _onwards(module, inner, input, hx, masks, weights)

        return patch_forward(module, _passing_on(forward))


@dataclass(frozen=True)
class RecurrentWeights(Site):
    """The multiplier of `weight_hh` (DropConnect): one mask (G*H, H) for the whole batch.

    The value that stands here is expanded along the batch, (B, G*H, H) without memory; players that know of it
    (`GreedyFlip`, `Bernoulli(shared=True)`) answer with (1, G*H, H). Use `Flips(fraction, rows=True)` with it.

    >>> import sparring as sp
    >>> lstm = sp.nn.WeightDrop(nn.LSTM(3, 4, batch_first=True), drop=0.5)
    >>> site = sp.RecurrentWeights()
    >>> _, seen = sp.perturbed_call(lstm, {site: torch.ones(1, 16, 4)}, torch.randn(2, 5, 3), record=True)
    >>> seen[site]["weights"].shape
    torch.Size([2, 16, 4])

    Args:
        glob: which modules; a `WeightDrop` and the RNN in it count once.
        keep: keep rate of the mask in the clean pass: None draws as the `WeightDrop` does (ones on a plain RNN), 1.0 keeps all.
        layers: which layers; the last one by default, as in the paper's language model; None for all.

    Paper: Park et al. (2019), appendix 6; Merity et al. (2018).
    """

    glob: str = "**"
    keep: float | None = None
    layers: tuple[int, ...] | None = (-1,)

    def __post_init__(self) -> None:
        _check_keep("RecurrentWeights", self.keep)

    @property
    def kind(self) -> Kind:
        return "mask"

    def sharing(self, store: dict[Any, Any]) -> AbstractContextManager[None]:
        return shared_projections(store)

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        return Recurrent(self.glob, layers=self.layers).modules(model)

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        network, inner = _network(module), module.forward
        names, chosen = connections(network), _chosen(network, self.layers)

        def forward(input: Any, hx: Any = None, mask: Any = None, weights: Any = None) -> Any:
            _, batch = _batch(network, input)
            drawn: list[Tensor | None] = (
                list(module.draw_weights()) if isinstance(module, WeightDrop) else [None] * len(names)
            )
            multipliers: list[Tensor | None] = []
            for label, own in zip(names, drawn):
                if label not in chosen:
                    multipliers.append(own)
                    continue
                ones = torch.ones_like(getattr(network, f"weight_hh_{label}"), requires_grad=False)
                clean = _drawn(ones, self.keep) if self.keep is not None or own is None else own
                slot = name or "weights"
                clean = clean.expand(batch, *clean.shape)
                placed = visit(slot if len(chosen) == 1 else f"{slot}.{label}", clean, EVERYWHERE)
                if placed.shape[0] > 1 and placed.stride(0) != 0:
                    raise ValueError(
                        f"{self} is shared by the batch: place a mask of shape (1, {', '.join(map(str, ones.shape))})"
                    )
                multipliers.append(placed[0])
            return _onwards(module, inner, input, hx, mask, multipliers)

        return patch_forward(module, _passing_on(forward))


def _passing_on(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a patch that takes `mask` and `weights`, so that the next site on the same module hands its own down to it."""
    forward.passes_on = True  # type: ignore[attr-defined]
    return forward


def _onwards(module: nn.Module, inner: Callable[..., Any], input: Any, hx: Any, mask: Any, weights: Any) -> Any:
    if isinstance(module, WeightDrop) or hasattr(inner, "passes_on"):
        return inner(input, hx, mask=mask, weights=weights)
    return masked_forward(_network(module), input, hx, mask, weights)


def _network(module: nn.Module) -> nn.RNNBase:
    network = module.module if isinstance(module, WeightDrop) else module
    assert isinstance(network, nn.RNNBase)
    return network


def _chosen(network: nn.RNNBase, layers: tuple[int, ...] | None) -> list[str]:
    """Names of the connections of the chosen layers."""
    names = connections(network)
    if layers is None:
        return names
    count = network.num_layers
    if any(not -count <= layer < count for layer in layers):
        raise ValueError(f"layers={layers}: {type(network).__name__} has {count} layers, counted from 0")
    wanted = {f"l{layer % count}" for layer in layers}
    return [name for name in names if name.removesuffix("_reverse") in wanted]


def _batch(network: nn.RNNBase, input: Any) -> tuple[Tensor, int]:
    """The data of an input and how many examples it holds."""
    if isinstance(input, PackedSequence):
        return input.data, int(input.batch_sizes[0])
    if input.dim() == 2:
        return input, 1
    return input, input.shape[0 if network.batch_first else 1]
