"""What a sweep searches: parameters, their ranges, and where the trials are kept."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ..cli.parse import parse_value
from ..compare import jobs
from ..errors import LabError
from ..pool import Job
from ..task import Setting, Task, Value

Range = FloatDistribution | IntDistribution | CategoricalDistribution


def parse_param(text: str) -> tuple[str, Range]:
    """A parameter and its range as typed.

    >>> parse_param("radius=0.1:10:log")
    ('radius', FloatDistribution(high=10.0, log=True, low=0.1, step=None))
    >>> parse_param("rounds=1:4")
    ('rounds', IntDistribution(high=4, log=False, low=1, step=1))
    >>> parse_param("radius=0.1,1")
    ('radius', CategoricalDistribution(choices=(0.1, 1)))
    """
    name, equals, values = text.partition("=")
    parts = values.split(":")
    try:
        if not equals or not name or not values:
            raise ValueError
        if len(parts) == 1:
            listed = [part.strip() for part in values.split(",")]
            if not all(listed):
                raise ValueError
            return name, CategoricalDistribution(list(dict.fromkeys(map(parse_value, listed))))
        low, high = (parse_value(part) for part in parts[:2])
        log = parts[2:] == ["log"]
        if parts[2:] not in ([], ["log"]):
            raise ValueError
        if isinstance(low, int) and isinstance(high, int) and not log:
            return name, IntDistribution(low, high)
        return name, FloatDistribution(float(low), float(high), log=log)
    except (ValueError, TypeError) as error:
        raise LabError(
            f"--param {text!r} does not fit; write name=low:high, name=low:high:log or a list name=a,b,c"
        ) from error


@dataclass(frozen=True)
class Plan:
    """What to search and where."""

    task: Task
    method: str
    scale: str
    seeds: Sequence[int]
    ranges: Mapping[str, Range]
    out: Path
    data: Path | None = None
    overrides: Mapping[str, Value] = field(default_factory=dict)
    storage: str | None = None

    @property
    def setting(self) -> Setting:
        """What its runs share, whatever is searched."""
        return self.task.setting(self.method, self.scale, data=self.data, overrides=self.overrides)

    @property
    def title(self) -> str:
        """Of the summary: sweeps over the same parameters and the same files share it, whatever their ranges."""
        derived = {key: value for key, value in self.setting.overrides.items() if key not in self.overrides}
        changes = "".join(f" {key}={value}" for key, value in sorted({**self.overrides, **derived}.items()))
        seeds = ",".join(map(str, self.seeds))
        return f"{self.task.name} {self.scale} {self.method} [{' '.join(self.ranges)}] seeds {seeds}{changes}"

    @property
    def name(self) -> str:
        """Of the study, which goes on as long as the kind of every range is the same; a list must be the same list."""
        kinds = (
            f"{name} in {', '.join(map(str, found.choices))}"
            if isinstance(found, CategoricalDistribution)
            else f"{name} {type(found).__name__}{' log' * found.log}"
            for name, found in self.ranges.items()
        )
        return f"{self.title}: {'; '.join(kinds)}"

    @property
    def points(self) -> list[dict[str, Any]] | None:
        """The points to visit when every range is a list."""
        lists = [found.choices for found in self.ranges.values() if isinstance(found, CategoricalDistribution)]
        if len(lists) < len(self.ranges):
            return None
        return [dict(zip(self.ranges, values)) for values in itertools.product(*lists)]


def file_name(plan: Plan) -> str:
    """A file name for a plan."""
    return hashlib.sha256(plan.title.encode()).hexdigest()[:12]


def raise_early(plan: Plan) -> None:
    """See that names, types and values fit: every value of the lists, both ends of the ranges."""
    for name, found in plan.ranges.items():
        if name in plan.overrides:
            raise LabError(f"{name} is given by --param and by --set; choose one")
        for value in found.choices if isinstance(found, CategoricalDistribution) else (found.low, found.high):
            plan.task.setting(plan.method, plan.scale, overrides={**plan.overrides, name: value})


def jobs_of(plan: Plan, params: Mapping[str, Any]) -> list[Job]:
    """The runs of one trial."""
    rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in params.items()}
    changes = {**plan.overrides, **rounded}
    note = ", ".join(f"{name}={value}" for name, value in rounded.items())
    found = jobs(plan.task, [plan.method], plan.seeds, plan.scale, plan.out, plan.data, changes)
    return [replace(job, note=note) for job in found]
