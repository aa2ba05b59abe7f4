"""What a study is: a claim, the experiment that tests it and the figure that decides, as plain data.

A study of your own is a file with `STUDY = Study(...)` (or `STUDIES`, several): `sparring study run ./mine.py`.

>>> study = Study(
...     name="mine", claim="noise helps", source="a hunch", task="few-labels-digits", scale="tiny", metric="error",
...     better="lower", arms=(Arm("plain"), Arm("noise", trials=over("radius", 0.5, 1.0))),
...     expects=(Expect("noise", "plain", 5.0),))
>>> study.arm("noise").trials
({'radius': 0.5}, {'radius': 1.0})
>>> study.gain(before=14.0, after=8.0)
6.0
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

from ..errors import LabError, unknown
from ..task import Value

SEEDS = (0, 1, 2, 3, 4)
TUNING = (100,)


def over(knob: str, *values: Value) -> tuple[dict[str, Value], ...]:
    """One trial for each value of a knob."""
    return tuple({knob: value} for value in values)


@dataclass(frozen=True)
class Arm:
    """One competitor.

    Args:
        name: how tables call it.
        trials: what tuning chooses from on validation; every arm that is tuned has equally many. None: nothing to tune.
        method: of the task; the arm's name by default.
        settings: what is fixed for this arm.
        control: the arm that does the same at random.
    """

    name: str
    trials: tuple[Mapping[str, Value], ...] = ()
    method: str = ""
    settings: Mapping[str, Value] = field(default_factory=dict)
    control: str = ""


@dataclass(frozen=True)
class Expect:
    """A part of the claim: `arm` is better than `than` by `effect` in the metric (None: the source names no number)."""

    arm: str
    than: str
    effect: float | None = None


@dataclass(frozen=True)
class Study:
    """A claim with its experiment.

    Args:
        name: what the user types.
        claim: one sentence.
        source: paper and table.
        task: of the lab; `scale` and `settings` shape it for every arm alike.
        metric: the figure on the test split that decides, and which way is `better`.
        arms: the competitors, the first one is what the others are compared with.
        expects: the claim, part by part.
        tuned_on: the figure on the validation split that tuning goes by, and its direction; the metric by default.
        tuning: settings of tuning runs only, such as leaving out a costly attack.
        tuning_seeds: never among `seeds`.
        seeds: of the evaluation, the same for every arm.
        shrunk: what is smaller here than in the source.
        hours: about how many CPU hours all runs take; an estimate, shown until a run is recorded.
        records: name of the file of records, where studies share runs; the study's own name by default.
        needs: packages, as they are imported, without which the task would train something else; the study is not run then.
        version: raise it when code changes what a setting means; older records then count for nothing.
    """

    name: str
    claim: str
    source: str
    task: str
    scale: str
    metric: str
    better: Literal["higher", "lower"]
    arms: tuple[Arm, ...]
    expects: tuple[Expect, ...]
    settings: Mapping[str, Value] = field(default_factory=dict)
    tuned_on: str = ""
    tuned_better: Literal["higher", "lower", ""] = ""
    tuning: Mapping[str, Value] = field(default_factory=dict)
    tuning_seeds: tuple[int, ...] = TUNING
    seeds: tuple[int, ...] = SEEDS
    shrunk: str = ""
    hours: float | None = None
    records: str = ""
    needs: tuple[str, ...] = ()
    version: int = 1

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        said = {expect.arm for expect in self.expects} | {expect.than for expect in self.expects}
        wrong = {
            "arms must differ in name": len(set(names)) < len(names),
            "every tuned arm must have equally many trials": len({len(arm.trials) for arm in self.arms if arm.trials})
            > 1,
            "a seed is for tuning or for evaluation, never both": bool(set(self.seeds) & set(self.tuning_seeds)),
            "expects and controls must name arms": not said | {a.control for a in self.arms if a.control} <= set(names),
            "expects, seeds and tuning_seeds must not be empty": not (
                self.expects and self.seeds and self.tuning_seeds and self.arms
            ),
        }
        for sentence, broken in wrong.items():
            if broken:
                raise LabError(f"study {self.name}: {sentence}")

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not here."""
        return [package for package in self.needs if find_spec(package) is None]

    @property
    def file(self) -> str:
        """Name of the file of records."""
        return f"{self.records or self.name}.jsonl"

    @property
    def baseline(self) -> str:
        """What the other arms are compared with."""
        return self.arms[0].name

    def arm(self, name: str) -> Arm:
        """The arm called `name`."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise unknown(f"arm of study {self.name}", name, [arm.name for arm in self.arms])

    def gain(self, before: float, after: float) -> float:
        """How much better `after` is than `before`, in the metric."""
        return after - before if self.better == "higher" else before - after
