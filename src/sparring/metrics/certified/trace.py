"""Turn a module into the short list of operations that `crown` can bound, or say exactly what it cannot handle."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from .layers import SUPPORTED, UnsupportedOperation, function_op, module_op
from .ops import ChannelAffine, Op, Reshape, Source, Sum, merge


@dataclass(frozen=True)
class Node:
    """One operation, the positions of the nodes it reads, and the shape of what it gives (without the batch)."""

    op: Op
    parents: tuple[int, ...]
    shape: tuple[int, ...]
    name: str


Graph = list[Node]


def trace(model: nn.Module | Sequence[nn.Module], example: Tensor) -> Graph:
    """The graph of one module, or of the mean of several modules' outputs.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> [type(node.op).__name__ for node in trace(net.eval(), torch.zeros(1, 3))]
        ['Source', 'Linear', 'Relu', 'Linear']

    Args:
        model: a module, an ensemble (anything with a `members` list of modules), or a sequence of modules; the last
            two stand for the mean of the members' logits.
        example: any batch of inputs; fixes shapes, data type and device.

    Raises:
        UnsupportedOperation: names the operation and where it is.
        TypeError: for inputs of sixteen bits.
    """
    if example.dtype.itemsize < 4:
        raise TypeError(
            f"inputs of {str(example.dtype).removeprefix('torch.')}: a bound that is rounded to sixteen bits is none; certify "
            "model.float() with inputs.float(), which holds for that copy of the model"
        )
    members = member_modules(model)
    graph: Graph = [Node(Source(), (), tuple(example.shape[1:]), "input")]
    heads = [_append(graph, member, example[:1].repeat(2, *[1] * (example.dim() - 1))) for member in members]
    if len(heads) == 1:
        del graph[heads[0] + 1 :]  # what the module computes beside its answer: the last node is the answer
    if len(heads) > 1:
        shapes = {graph[head].shape for head in heads}
        if len(shapes) > 1:
            raise UnsupportedOperation(f"members give outputs of different shapes {sorted(shapes)}")
        graph.append(Node(Sum((1 / len(heads),) * len(heads)), tuple(heads), graph[heads[0]].shape, "mean of members"))
    return fold(graph)


def fold(graph: Graph) -> Graph:
    """Merge every batch norm into the convolution or linear layer that it alone reads: fewer passes over the rows."""
    readers = Counter(parent for node in graph for parent in node.parents)
    place: dict[int, int] = {}
    folded: Graph = []
    for position, node in enumerate(graph):
        if isinstance(node.op, ChannelAffine) and readers[node.parents[0]] == 1:
            before = folded[place[node.parents[0]]]
            last = place[node.parents[0]] == len(folded) - 1
            merged = merge(before.op, node.op, before.shape) if last else None
            if merged is not None:
                folded[-1] = Node(merged, before.parents, node.shape, node.name)
                place[position] = len(folded) - 1
                continue
        folded.append(Node(node.op, tuple(place[parent] for parent in node.parents), node.shape, node.name))
        place[position] = len(folded) - 1
    return folded


def member_modules(model: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    """The networks whose mean logit is certified: an ensemble's members, or the one module."""
    if isinstance(model, nn.Module):
        inside = getattr(model, "members", None)
        if not isinstance(inside, nn.ModuleList):
            return [model]
        if getattr(getattr(model, "dropout", None), "training", False):
            raise UnsupportedOperation("the ensemble's dropout drops units; call model.eval() before certifying")
        return list(inside)
    if not model:
        raise ValueError("model is an empty sequence; give at least one module")
    return list(model)


class _Leaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).__module__.startswith("torch.nn") and not isinstance(m, nn.Sequential)


def _trace(module: nn.Module) -> fx.GraphModule:
    return fx.GraphModule(module, _Leaves().trace(module))


def _append(graph: Graph, member: nn.Module, example: Tensor) -> int:
    """Add one member's operations after what is there; return the position of its output."""
    if any(m.training and isinstance(m, nn.modules.batchnorm._BatchNorm) for m in member.modules()):
        raise UnsupportedOperation("batch norm in training mode mixes examples; call model.eval() before certifying")
    try:
        traced = _trace(nn.Sequential(member))
    except (fx.proxy.TraceError, TypeError) as error:
        raise UnsupportedOperation(
            f"{type(member).__name__} cannot be traced because its forward depends on values ({error}); certify the "
            f"plain feed-forward part"
        ) from error
    recorder = _Recorder(traced, graph)
    with torch.no_grad():
        result = recorder.run(example)
    if not isinstance(result, _Value):
        raise UnsupportedOperation(f"{type(member).__name__} returns {type(result).__name__}; certificates need logits")
    return result.position


@dataclass(frozen=True)
class _Value:
    position: int
    tensor: Tensor  # what stands there for the example


class _Recorder(fx.Interpreter):
    """Runs the traced module on one example, writing down a `Node` for everything that touches the input."""

    def __init__(self, module: fx.GraphModule, graph: Graph) -> None:
        super().__init__(module)
        self.extra_traceback = False  # our own errors already say where
        self.nodes = graph

    def record(self, op: Op, parents: tuple[_Value, ...], tensor: Tensor, name: str) -> _Value:
        self.nodes.append(Node(op, tuple(p.position for p in parents), tuple(tensor.shape[1:]), name))
        value = _Value(len(self.nodes) - 1, tensor)
        if not isinstance(op, Reshape) and _same_memory(tensor, parents[0].tensor):
            self._overwrite(parents[0], value, name)
        return value

    def _overwrite(self, old: _Value, new: _Value, name: str) -> None:
        """An in-place operation changes its argument for every later reader, so they must read the new node."""
        for key, held in list(self.env.items()):
            if isinstance(held, _Value) and held.position == old.position:
                self.env[key] = new
            elif isinstance(held, _Value) and _same_memory(held.tensor, new.tensor):
                raise UnsupportedOperation(f"{name} writes in place into a tensor that is read under another shape")

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().placeholder(target, args, kwargs)
        return _Value(0, value) if isinstance(value, Tensor) else value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        if kwargs or len(args) != 1 or not isinstance(args[0], _Value):
            raise UnsupportedOperation(f"{target} is called with more than one tensor; certificates know {SUPPORTED}")
        value = args[0]
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if any(not isinstance(hook, WeightNorm | SpectralNorm) for hook in hooks):
            raise UnsupportedOperation(f"{target} has a forward hook, which no bound can look into; remove it first")
        for hook in hooks:
            hook(module, None)  # sets the weight from its parts, which may have been trained since it last ran
        op = module_op(module, value.tensor, str(target))
        if op is None:
            return value
        return self.record(op, (value,), module(value.tensor), str(target))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._call(getattr(target, "__name__", str(target)), target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._call(str(target), getattr(torch.Tensor, str(target)), args, kwargs)

    def _call(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        values = tuple(a for a in args if isinstance(a, _Value))
        if len(values) != sum(isinstance(leaf, _Value) for leaf in tree_leaves((args, kwargs))):
            raise UnsupportedOperation(f"{name}() is not supported; certificates know {SUPPORTED}")
        if not values:
            return function(*args, **kwargs)
        tensors = tuple(a.tensor if isinstance(a, _Value) else a for a in args)
        result = function(*tensors, **kwargs)
        if not isinstance(result, Tensor):
            return result  # a shape or a size
        op = function_op(name, function, tensors, kwargs, tuple(v.tensor for v in values), result)
        return values[0] if op is None else self.record(op, values, result, name)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
