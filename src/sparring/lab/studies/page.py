"""The page of claims, written from the records: verdict, table, figure, cost and command of every study.

The hand-written parts are in `claims.template.md` beside the records; `{{ claims }}`, `{{ summary }}`, `{{ controls }}` and
`{{ theorems }}` in it are replaced. The page of methods has the same table of controls, between two comments.
"""

import re
from pathlib import Path

from ..errors import LabError
from ..runs.files import write_atomic
from ..statistics import Difference, holm
from .figure import figure
from .library import studies
from .results import Results, results
from .theorems import THEOREMS
from .verdict import FEWEST, LEVEL

TEMPLATE = "claims.template.md"
BEGIN, END = "<!-- made by: sparring study docs -->\n", "<!-- end -->"


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


def controls(found: list[Results]) -> str:
    """Every adversary beside the same thing done at random: five seeds at least, Holm's correction in each study.

    Studies that share runs show them once, in the study with most seeds.
    """
    best: dict[tuple[str, ...], tuple[int, str]] = {}
    for one in found:
        study, sign = one.study, 1 if one.study.better == "higher" else -1
        rows = [(row, row.to_control) for row in one.rows if row.to_control and row.to_control.pairs >= FEWEST]
        adjusted = holm([1.0 if gap.p_value is None else gap.p_value for _, gap in rows])
        for (row, difference), p_value in zip(rows, adjusted):
            gained = sign * difference.mean
            low, high = sorted(sign * end for end in difference.interval or (float("nan"),) * 2)
            said = "not told apart" if p_value >= LEVEL else "**better**" if gained > 0 else "worse"
            arm, seeds = row.arm, difference.pairs
            key = (study.file, study.metric, arm.name, arm.control)
            gap_said = f"{gained:+.3g} [{low:+.3g}, {high:+.3g}] {study.metric}"
            line = f"| {study.name} | {arm.name} | {arm.control} | {gap_said} | {seeds} | {said} |"
            if seeds > best.get(key, (0, ""))[0]:
                best[key] = (seeds, line)
    head = ["| study | arm | its control | gain over it [95 %] | seeds | after Holm |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(line for _, line in best.values())])


def between(text: str, part: str) -> str:
    """A page whose part between the two comments is replaced."""
    if BEGIN not in text or END not in text:
        raise LabError(
            f"the page of methods lacks the lines {BEGIN.strip()} and {END}: the table of controls goes there"
        )
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{part}\n\n{END}", text, flags=re.S)


def pages(records: Path, docs: Path) -> dict[str, str]:
    """The pages and figures made from the records: text by path under `docs`, the folder of the documentation."""
    template = records / TEMPLATE
    if not template.is_file():
        raise LabError(f"{template} is missing; it holds the hand-written part of the page of claims")
    found = [results(study, records) for study in studies().values()]
    theorems = ["| statement | source | test |", "|---|---|---|"]
    theorems += [f"| {entry.statement} | {entry.source} | `{entry.test}` |" for entry in THEOREMS]
    parts = {
        "summary": summary(found),
        "claims": "\n".join(section(one) for one in found).rstrip(),
        "controls": controls(found),
        "theorems": "\n".join(theorems),
    }
    text = template.read_text()
    for name, part in parts.items():
        text = text.replace("{{ " + name + " }}", part)
    made = {"claims.md": text}
    if (docs / "methods.md").is_file():
        made["methods.md"] = between((docs / "methods.md").read_text(), parts["controls"])
    for one in found:
        if any(row.to_baseline for row in one.rows):
            made[f"assets/claims/{one.study.name}.svg"] = figure(one)
    return made


def write_page(records: Path, docs: Path) -> Path:
    """Write the page of claims, its figures, and the table of controls among the methods; returns the page of claims."""
    for name, text in pages(records, docs).items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    return docs / "claims.md"
