"""What a task is: data, a model, a metric, and the methods that compete on it with their papers' settings.

To add a task of your own, write a file that ends in `TASK = Task(...)` and name it: `sparring run ./mine.py`; a package can
offer tasks through the entry-point group `sparring.tasks`. The four functions of a task see only a `Setting`, a read-only mapping
of every number that shapes the run (the scale's, then the method's, then the user's `--set name=value`).

>>> import torch
>>> from torch import nn
>>> def load(setting):
...     x = torch.linspace(-1, 1, setting["examples"])[:, None]
...     half = len(x) // 2
...     return Data(train=Split(x[:half], x[:half] * 2), validation=Split(x[half:], x[half:] * 2))
>>> def evaluate(model, split, setting):
...     return {"mse": float((model(split.inputs) - split.targets).square().mean())}
>>> class Plain:          # methods return a `sparring.Objective`; anything with `steps` will do
...     update_each_loss, diagnostics = False, {}
...     def __init__(self, model):
...         self.model = model
...     def steps(self, inputs, targets):
...         yield (self.model(inputs) - targets).square().mean()
>>> line = Task(
...     name="line", summary="fit a line", score="mse", better="lower",
...     scales={"tiny": {"examples": 64, "epochs": 2, "batch": 8, "optimiser": "sgd", "lr": 0.1}},
...     methods=(Method("plain", "least squares", lambda model, setting, data: Plain(model)),),
...     load=load, build=lambda setting, data: nn.Linear(1, 1), evaluate=evaluate)
>>> setting = line.setting("plain", "tiny", seed=0, overrides={"lr": 0.2})
>>> setting["lr"], setting["epochs"], setting.seed
(0.2, 2, 0)
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from .errors import LabError, unknown
from .text import Text
from .training.settings import DEFAULTS as DEFAULTS
from .training.settings import Value as Value
from .training.settings import check

SCALES = ("tiny", "small", "paper")


def take(tree: Any, index: Tensor | slice) -> Any:
    """Rows `index` of a tensor, or of every tensor in a tuple, list or dict.

    >>> import torch
    >>> take({"ids": torch.arange(6).reshape(3, 2)}, torch.tensor([2]))
    {'ids': tensor([[4, 5]])}
    """
    if isinstance(tree, Tensor):
        if isinstance(index, Tensor):
            index = index.to(tree.device, non_blocking=True)
        return tree[index]
    if isinstance(tree, Mapping):
        return {name: take(value, index) for name, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(take(value, index) for value in tree)
    return tree


def rows(tree: Any) -> int:
    """How many examples a tree of batch-first tensors holds."""
    while not isinstance(tree, Tensor):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return len(tree)


@dataclass(frozen=True)
class Split:
    """Examples: `inputs` is a tensor or a tuple / dict of tensors (dim 0 = example), as the model takes them.

    `collate(inputs, targets)` may reshape a batch after it is cut out, for example to trim padding. With `lengths`, one
    whole number an example, the training loop makes its batches of examples of like length.
    """

    inputs: Any
    targets: Any = None
    collate: Callable[[Any, Any], tuple[Any, Any]] | None = None
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return rows(self.inputs)

    def batch(self, index: Tensor | slice) -> tuple[Any, Any]:
        """The examples `index` as `(inputs, targets)`."""
        inputs, targets = take(self.inputs, index), take(self.targets, index)
        return self.collate(inputs, targets) if self.collate else (inputs, targets)

    def batches(self, size: int) -> Iterator[tuple[Any, Any]]:
        """Every example once, in order: for evaluation."""
        for start in range(0, len(self), size):
            yield self.batch(slice(start, min(start + size, len(self))))


@dataclass(frozen=True)
class Data:
    """The splits of a task; without `test` the validation split is scored. `extra` is the task's own (a vocabulary).

    `record` is plain data about where the examples come from; it is written into the run folder as `data.json`.
    Of `unlabelled` the loop draws `unlabelled_batch` inputs for every step, the same for every method. Where there is a
    `text`, training reads on in it, and `train` is only there to be scored. `helpers` are the trained models of the runs
    that the task's `helpers` names, put there before the run is scored.
    """

    train: Split
    validation: Split
    test: Split | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    unlabelled: Split | None = None
    text: Text | None = None
    helpers: dict[str, nn.Module] = field(default_factory=dict)


class Trainable(Protocol):
    """What the loop needs of an objective; `sparring.Objective` and every recipe have it."""

    @property
    def update_each_loss(self) -> bool:
        """free_at: an optimiser update follows each loss; else one update after the last."""

    @property
    def diagnostics(self) -> Mapping[str, float]:
        """Plain floats about the last step."""

    def steps(self, inputs: Any, targets: Any) -> Iterator[Tensor]:
        """The losses of one training step, each to be back-propagated before the next is asked for.

        Where the task has unlabelled data, the loop adds `unlabelled=` with the inputs drawn for this step. Each loss is a mean
        over the batch's examples; one over something else has an attribute `counted`, the number of what the last loss is over,
        by which batches that make one update together are weighed.
        """


@dataclass(frozen=True)
class Method:
    """A way to train: `objective(model, setting, data)` returns a `sparring.Objective` (None: nothing to train).

    `settings` are the paper's numbers, `scales` what is different at a scale: `{"tiny": {"delta": 0.1}}`. A method that
    needs another layer sets a value (`settings={"dropout": "concrete"}`) which the task's `build` reads.
    """

    name: str
    summary: str
    objective: Callable[[nn.Module, "Setting", Data], Trainable] | None
    settings: Mapping[str, Value] = field(default_factory=dict)
    scales: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """Everything that decides a run. `setting["lr"]` is a number; `setting.data` the folder of real data (or None)."""

    task: str
    method: str
    scale: str
    seed: int
    data: Path | None
    values: Mapping[str, Value]
    overrides: Mapping[str, Value] = field(default_factory=dict)  # what the user changed, already in `values`
    source: str = ""  # the Python file of a user's own task

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            raise unknown("setting", name, self.values)
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values


@dataclass(frozen=True)
class Stage:
    """A run that comes first: its own folder, made once, shared by every run that names it.

    Args:
        run: `(setting) -> setting` of the run to start from, a run of a registered task; None where a run with this
            setting starts from scratch. Methods and seeds for which it answers alike share the stage.
        adopt: `(model, weights, setting) -> bool`: put what that run learnt, by parameter name, into a new model; raises
            `LabError` where it does not fit. The answer is whether all of the model is that run's, its head too: such a model
            is scored before the first epoch and kept where no epoch is better.
    """

    run: Callable[[Setting], Setting | None]
    adopt: Callable[[nn.Module, Mapping[str, Tensor], Setting], bool]


def nothing(model: nn.Module, data: Data, setting: Setting) -> list[dict[str, Any]]:
    """No figures."""
    return []


def nobody(setting: Setting) -> dict[str, Setting]:
    """No helpers."""
    return {}


def nothing_more(values: Mapping[str, Value], data: Path | None) -> Mapping[str, Value]:
    """No derived settings."""
    return {}


@dataclass(frozen=True)
class Task:
    """Data + model + metric + methods, at the scales `tiny`, `small` and `paper`.

    Args:
        name: what the user types.
        summary: one line for `sparring tasks`.
        score: the name of the figure of `evaluate` that decides; `better` says which way.
        scales: for each scale the values that differ from `DEFAULTS`, and the task's own.
        methods: the competitors, `baseline` among them.
        load: `(setting) -> Data`; embedded or generated at `tiny`, from `setting.data` else. Must depend on nothing but
            the setting, so that every method and every resumed run sees the same examples.
        build: `(setting, data) -> model`, called under the run's seed. Parameters that share name and shape with the
            baseline's model are set to the same initial values, whatever else the method adds.
        evaluate: `(model, split, setting) -> {"error": 0.1, ...}`; called in eval mode without gradients.
        figures: `(model, data, setting) -> [figure, ...]` after training, see `sparring.lab.figures` for the kinds.
        stage: the run from whose weights this task's runs start (pre-training, then fine-tuning), if there is one.
        helpers: `(setting) -> {name: setting}` of other runs whose models are needed to score this one.
        probe: the same after every epoch (a row of a heat map over epochs, say); keep it cheap.
        paper: where the settings come from.
        derive: `(values, data) -> {"contents": "1a2b", ...}`: settings that follow from others and from files, such as a
            fingerprint of the data. They name the run folder like the user's own changes, so other contents are other runs.
        source: the Python file that a user's own task comes from; set by the registry.
    """

    name: str
    summary: str
    score: str
    better: Literal["higher", "lower"]
    scales: Mapping[str, Mapping[str, Value]]
    methods: tuple[Method, ...]
    load: Callable[[Setting], Data]
    build: Callable[[Setting, Data], nn.Module]
    evaluate: Callable[[nn.Module, Split, Setting], dict[str, float]]
    figures: Callable[[nn.Module, Data, Setting], list[dict[str, Any]]] = nothing
    probe: Callable[[nn.Module, Data, Setting], list[dict[str, Any]]] = nothing
    stage: Stage | None = None
    helpers: Callable[[Setting], Mapping[str, Setting]] = nobody
    baseline: str = "plain"
    paper: str = ""
    derive: Callable[[Mapping[str, Value], Path | None], Mapping[str, Value]] = nothing_more
    source: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]+", self.name) or not self.name.strip("."):
            raise ValueError(
                f"a task is called {self.name!r}; letters, digits, - and _ make a name that can be a folder"
            )
        names = [method.name for method in self.methods]
        if self.baseline not in names:
            raise ValueError(f"task {self.name}: baseline {self.baseline!r} is not among its methods {names}")
        if len(set(names)) < len(names) or not set(self.scales) <= set(SCALES):
            raise ValueError(f"task {self.name}: method names must differ and scales be among {SCALES}")

    def method(self, name: str) -> Method:
        """The method called `name`; an error that suggests near names otherwise."""
        for method in self.methods:
            if method.name == name:
                return method
        raise unknown(f"method of task {self.name}", name, [method.name for method in self.methods])

    def setting(
        self,
        method: str,
        scale: str = "tiny",
        seed: int = 0,
        data: Path | None = None,
        overrides: Mapping[str, Value] | None = None,
    ) -> Setting:
        """The resolved settings of one run: defaults, scale, method, method at that scale, then `overrides`."""
        if scale not in self.scales:
            raise unknown(f"scale of task {self.name}", scale, self.scales)
        chosen = self.method(method)
        values: dict[str, Value] = {**DEFAULTS, **self.scales[scale], **chosen.settings, **chosen.scales.get(scale, {})}
        changes: dict[str, Value] = {}
        for name, value in (overrides or {}).items():
            if name not in values:
                raise unknown(f"setting of task {self.name}, method {method}", name, values)
            changes[name] = like(name, values[name], value)
        values.update(changes)
        check(values)
        for name, value in self.derive(values, data).items():
            if name not in changes:  # a setting that was made before keeps what it was made with
                values[name] = changes[name] = value
        return Setting(self.name, method, scale, seed, data, values, changes, self.source)


def like(name: str, default: Value, value: Value) -> Value:
    """`value` in the type of the default it replaces, or a clear error.

    >>> like("epochs", 10, 3.0), like("lr", 1e-3, 1)
    (3, 1.0)
    >>> like("epochs", 10, "many")
    Traceback (most recent call last):
    ...
    sparring.lab.errors.LabError: epochs='many' does not fit; a whole number like 10 would
    """
    if default is None:
        return value
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[type(default)]
    if isinstance(default, str):
        return str(value)
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < 0 <= default:
            raise LabError(f"{name}={value} does not fit; it must be at least 0")
        if isinstance(default, float):
            return float(value)
        if float(value).is_integer():
            return int(value)
    raise LabError(f"{name}={value!r} does not fit; {wanted} like {default} would")
