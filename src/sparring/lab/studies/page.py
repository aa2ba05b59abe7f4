"""The page of claims, written from the records: verdict, table, figure, cost and command of every study.

The hand-written parts are in `claims.template.md` beside the records; `{{ claims }}`, `{{ summary }}` and
`{{ theorems }}` in it are replaced.
"""

from pathlib import Path

from ..errors import LabError
from ..runs.files import write_atomic
from ..statistics import Difference
from .figure import figure
from .library import studies
from .results import Results, results
from .theorems import THEOREMS

TEMPLATE = "claims.template.md"


def number(value: float | None) -> str:
    """A figure for a table.

    >>> number(12.3456), number(None), number(float("nan"))
    ('12.35', '-', '-')
    """
    return "-" if value is None or value != value else f"{value:.4g}"


def gap(difference: Difference | None) -> str:
    """A paired difference with its interval."""
    if difference is None:
        return "-"
    if difference.interval is None:
        return f"{difference.mean:+.3g}"
    return f"{difference.mean:+.3g} [{difference.interval[0]:+.3g}, {difference.interval[1]:+.3g}]"


def table(found: Results) -> list[str]:
    """One line for every arm that has been evaluated."""
    study = found.study
    head = (
        "arm",
        "chosen",
        f"test {study.metric}",
        "spread",
        f"minus {study.baseline} [95 %]",
        "minus its control [95 %]",
    )
    lines = ["| " + " | ".join((*head, "seeds", "passes a step", "CPU s a run")) + " |", "|---" * 9 + "|"]
    for row in found.rows:
        if row.values:
            chosen = ", ".join(f"{name} {value}" for name, value in (row.trial or {}).items()) or "-"
            control = f"{gap(row.to_control)} ({row.arm.control})" if row.to_control else "-"
            cells = (
                row.arm.name,
                chosen,
                number(row.mean),
                number(row.spread),
                gap(row.to_baseline),
                control,
                str(len(row.values)),
                number(row.passes),
                f"{row.seconds:.0f}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def section(found: Results) -> str:
    """Everything about one study."""
    study = found.study
    lines = [
        f"### {study.name}: {found.verdict}",
        "",
        f"**Claim.** {study.claim[0].upper()}{study.claim[1:]} ({study.source}).",
        "",
        "**Verdict.** " + found.sentence[0].upper() + found.sentence[1:] + ".",
        "",
    ]
    if any(row.values for row in found.rows):
        lines += [*table(found), ""]
    if any(row.to_baseline for row in found.rows):
        lines += [f"![Differences to {study.baseline} with 95 % intervals](assets/claims/{study.name}.svg)", ""]
    cost = f"{found.done} of {found.total} runs are recorded in `studies/{study.file}`"
    if found.done:
        cost += f", {found.seconds / 60:.0f} CPU minutes"
    if found.epochs == found.epochs:
        cost += f"; {study.baseline} is best at epoch {found.best_epoch:.0f} of {found.epochs:.0f}"
    shrunk = f" Smaller than in the source: {study.shrunk}." if study.shrunk else ""
    lines += [
        f"Task `{study.task}` at `{study.scale}`; chosen on validation with seeds that evaluation never sees. {cost}.{shrunk}",
        "",
        "```console",
        f"$ sparring study run {study.name} && sparring study show {study.name}",
        "```",
        "",
    ]
    return "\n".join(lines)


def summary(found: list[Results]) -> str:
    """One line for every claim."""
    lines = ["| study | claim | verdict | runs |", "|---|---|---|---|"]
    for one in found:
        study = one.study
        lines.append(
            f"| [{study.name}](#{study.name}-{one.verdict}) | {study.claim} | {one.verdict} | {one.done} of {one.total} |"
        )
    return "\n".join(lines)


def pages(records: Path) -> dict[str, str]:
    """The page and its figures: text by path under the folder of the documentation."""
    template = records / TEMPLATE
    if not template.is_file():
        raise LabError(f"{template} is missing; it holds the hand-written part of the page of claims")
    found = [results(study, records) for study in studies().values()]
    theorems = ["| statement | source | test |", "|---|---|---|"]
    theorems += [f"| {entry.statement} | {entry.source} | `{entry.test}` |" for entry in THEOREMS]
    parts = {
        "summary": summary(found),
        "claims": "\n".join(section(one) for one in found).rstrip(),
        "theorems": "\n".join(theorems),
    }
    text = template.read_text()
    for name, part in parts.items():
        text = text.replace("{{ " + name + " }}", part)
    made = {"claims.md": text}
    for one in found:
        if any(row.to_baseline for row in one.rows):
            made[f"assets/claims/{one.study.name}.svg"] = figure(one)
    return made


def write_page(records: Path, docs: Path) -> Path:
    """Write the page of claims and its figures; returns the page."""
    for name, text in pages(records).items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    return docs / "claims.md"
