"""The figure of a study: every arm's paired difference to the baseline with its interval, a picture that stands alone."""

from ..report.plots import differences
from .results import Results

# The charts of reports take their colours from the page; a file has to bring them along, for light and dark screens.
STYLE = """
svg { --s0: #6b7280; --s1: #1d6fb8; --s2: #b45309; --ink: #1f2937; --faint: #d1d5db; font: 12px sans-serif }
@media (prefers-color-scheme: dark) {
  svg { --s0: #9ca3af; --s1: #6cb2f2; --s2: #f0a860; --ink: #e5e7eb; --faint: #4b5563 }
}
text { fill: var(--ink) } .tick { font-size: 11px } .grid { stroke: var(--faint); stroke-width: .5 }
.zero { stroke: var(--ink); stroke-dasharray: 3 3 } .gap { stroke-width: 2.5 }
"""


def figure(found: Results) -> str:
    """An SVG file. Random controls are drawn in another colour than what they control."""
    study = found.study
    controls = {arm.control for arm in study.arms}
    rows = [
        (row.arm.name, row.to_baseline.mean, row.to_baseline.interval, 2 if row.arm.name in controls else 1, "")
        for row in found.rows
        if row.to_baseline is not None
    ]
    label = f"{study.metric} minus that of {study.baseline} ({study.better} is better), 95 % intervals"
    drawing = differences(rows, label)
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="840" '
    return drawing.replace("<svg ", head, 1).replace("<title>", f"<style>{STYLE}</style><title>", 1) + "\n"
