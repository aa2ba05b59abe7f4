"""From the records of runs to the charts of a report."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ..compare import Comparison, Run
from . import pictures, plots, svg
from .units import with_unit

Chart = dict[str, Any]  # title, drawing (Markup), legend [(name, colour)], note


def by_epoch(runs: Sequence[Run], *path: str) -> tuple[list[float], list[float]]:
    """A recorded figure by epoch, averaged over the runs that reached the epoch."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for record in run.metrics:
            value: Any = record
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, (int, float)):
                found.setdefault(record["epoch"], []).append(value)
    epochs = sorted(found)
    return [float(epoch) for epoch in epochs], [sum(found[epoch]) / len(found[epoch]) for epoch in epochs]


def chart(title: str, drawing: str, legend: Sequence[tuple[str, int]] = (), note: str = "") -> Chart:
    """A drawing with what stands around it."""
    return {"title": title, "drawing": Markup(drawing), "legend": list(legend), "note": note}


def learning_curves(comparison: Comparison, colours: Mapping[str, int]) -> list[Chart]:
    """Validation score and training loss of every method, by epoch."""
    charts: list[Chart] = []
    drawn: list[Any] = []
    for title, label, path in (
        (f"Validation {comparison.score}", with_unit(comparison.score), ("validation", comparison.score)),
        ("Training loss", "loss", ("loss",)),
        ("Cross-entropy on the clean pass", "clean loss", ("diagnostics", "clean_loss")),
        ("Validation loss", "loss", ("validation", "loss")),
    ):
        series = {row.label: by_epoch(row.runs, *path) for row in comparison.rows}
        series = {name: points for name, points in series.items() if len(points[0]) > 1}
        if series and series not in drawn:  # methods without a term have the same loss twice
            drawn.append(series)
            legend = [(name, colours[name]) for name in series]
            charts.append(chart(title, svg.lines(series, "epoch", label, colours), legend))
    return [*charts, *fit(comparison, colours)]


def fit(comparison: Comparison, colours: Mapping[str, int]) -> list[Chart]:
    """Loss on training and on validation data in one picture: what a method costs in fit, what it gains beyond."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in comparison.rows:
        both = by_epoch(row.runs, "diagnostics", "clean_loss"), by_epoch(row.runs, "validation", "loss")
        if all(len(points[0]) > 1 for points in both):
            series[row.label], series[f"{row.label} (dashed: validation)"] = both
    if not series:
        return []
    tints = {name: colours[name.removesuffix(" (dashed: validation)")] for name in series}
    dashes = {name: int(name.endswith("(dashed: validation)")) for name in series}
    drawing = svg.lines(series, "epoch", "loss", tints, dashes=dashes)
    return [chart("Training and validation loss", drawing, list(tints.items()))]


def diagnostics(comparison: Comparison, colours: Mapping[str, int]) -> list[Chart]:
    """What the objectives said about themselves, one chart for each name."""
    hidden = {"loss", "clean_loss", "forward_passes", "backward_passes"}
    names: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for row in comparison.rows:
        keys = {key for record in row.runs[0].metrics for key in record.get("diagnostics", {})} - hidden
        for key in sorted(keys):
            term, _, quantity = key.rpartition("/")
            points = by_epoch(row.runs, "diagnostics", key)
            names.setdefault(quantity, {})[f"{row.label} · {term}" if term else row.label] = points
    charts = []
    for quantity, series in sorted(names.items()):
        tints = {name: colours[name.partition(" · ")[0]] for name in series}
        drawing = svg.lines(series, "epoch", quantity, tints)
        charts.append(chart(quantity.replace("_", " "), drawing, list(tints.items())))
    return charts


def figures_of(run: Run) -> list[dict[str, Any]]:
    """A run's figures: those made after training, and those of every epoch stacked."""
    stacks: dict[str, dict[str, Any]] = {}
    for record in run.metrics:
        for figure in record.get("probe", []):
            if figure["kind"] == "heatmap" and figure["title"] in stacks:
                stacks[figure["title"]]["rows"] += figure["rows"]
            else:
                stacks[figure["title"]] = {**figure, "rows": list(figure.get("rows", ()))}
    return [*map(dict, run.figures), *stacks.values()]


def grouped_figures(comparison: Comparison, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """Figures of the first seed of every method, those of equal title together."""
    groups: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for row in comparison.rows:
        for figure in figures_of(row.runs[0]):
            groups.setdefault((figure["kind"], figure["title"]), []).append((row.label, figure))
    made = []
    for (kind, title), members in groups.items():
        charts = [together(kind, members, colours)] if kind in ("curves", "violins") else []
        shared = shared_scale(kind, [figure for _, figure in members])
        charts = charts or [draw(name, figure, colours, shared) for name, figure in members]
        made.append({"title": title, "charts": charts, "wide": kind in ("curves", "sentences", "violins", "pictures")})
    return made


def together(kind: str, members: Sequence[tuple[str, dict[str, Any]]], colours: Mapping[str, int]) -> Chart:
    """The figures of all methods in one chart."""
    if kind == "curves":
        return merged(members, colours)
    series = {method: values for method, figure in members for values in figure["series"].values()}
    drawing = plots.violins(series, members[0][1]["y_label"], colours)
    return chart("", drawing, [(name, colours[name]) for name in series], members[0][1]["note"])


def shared_scale(kind: str, figures: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The lightest and the darkest value of heat maps that stand side by side; None for other figures."""
    if kind == "heatmap":
        return svg.extent([v for figure in figures for row in plots.shades(figure["rows"]) for v in row], 0.0)
    if kind == "sentences":
        weights = [abs(w) for figure in figures for item in figure["items"] for w in item["weights"]]
        return 0.0, max(weights, default=1.0) or 1.0
    return None


def merged(members: Sequence[tuple[str, dict[str, Any]]], colours: Mapping[str, int]) -> Chart:
    """The curves of all methods in one chart."""
    series, tints, dashes = {}, {}, {}
    for method, figure in members:
        for place, (name, values) in enumerate(figure["series"].items()):
            label = method if len(figure["series"]) == 1 or name == method else f"{method} · {name}"
            label += ("", " (dashed)", " (dotted)")[place % 3]
            series[label], tints[label], dashes[label] = (figure["x"], values), colours[method], place
    first = members[0][1]
    drawing = svg.lines(series, first["x_label"], first["y_label"], tints, first["log"], dashes)
    notes = {method: figure["note"] for method, figure in members if figure["note"]}
    alike = len(notes) == len(members) and len(set(notes.values())) == 1
    note = next(iter(notes.values())) if alike else "; ".join(f"{method}: {note}" for method, note in notes.items())
    return chart("", drawing, list(tints.items()), note)


def draw(
    name: str, figure: Mapping[str, Any], colours: Mapping[str, int], scale: tuple[float, float] | None = None
) -> Chart:
    """One figure of one method; `scale` is what the heat maps beside it share."""
    note = figure["note"]
    match figure["kind"]:
        case "reliability":
            parts = (figure["confidence"], figure["accuracy"], figure["count"])
            drawing = plots.reliability(*parts, colours[name])
            told = f"expected calibration error {100 * figure['ece']:.3g} %"
            if "debiased" in figure:
                value, low, high = (100 * part for part in figure["debiased"])
                told += f", debiased {value:.3g} % [{low:.3g}, {high:.3g}]"
            return chart(name, drawing, note=f"{told}; {note}" if note else told)
        case "histogram":
            legend = [(series, place) for place, series in enumerate(figure["series"], 1)]
            return chart(name, plots.histogram(figure["series"], figure["x_label"]), legend, note)
        case "heatmap":
            drawing = plots.heatmap(figure["rows"], figure["x_label"], figure["y_label"], scale)
            return chart(name, drawing, note=note)
        case "bars":
            return chart(name, plots.bars(figure["series"], figure["y_label"]), note=note)
        case "pictures":
            return chart(name, pictures.draw(figure), note=note)
        case "sentences":
            darkest = scale[1] if scale else None
            return chart(name, plots.sentences(figure["items"], darkest), note=note)
    raise ValueError(f"a figure of unknown kind {figure['kind']!r}")
