"""The simulated day as a picture: a small chart for each measure, readable on white and on black."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.simulate import MEASURES, STEP_SECONDS, Sample

_INK, _KEPT, _ALONE = "#7d8590", "#2f81f7", "#e3702d"
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "frazil",  # the same figures make the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "grid.color": _INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
}
_ROOM = 2.2
"""How far over the highest value of the maintained table a chart goes: what leaves it, leaves it."""


def plot_day(path: Path, samples: Sequence[Sample], without: Sequence[Sample]) -> None:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 5.2), layout="constrained")
        charts = list(figure.subplots(2, 3).flat)
        for chart, (name, (title, unit, factor)) in zip(charts, MEASURES.items(), strict=False):
            _measure(chart, name, factor, samples, without)
            _label(chart, title, unit or "files")
        _rewritten(charts[-1], samples)
        charts[0].legend(frameon=False, fontsize=8, loc="upper right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})


def _hours(samples: Sequence[Sample]) -> list[float]:
    return [sample.commit * STEP_SECONDS / 3600 for sample in samples]


def _measure(
    chart: Axes, name: str, factor: float, samples: Sequence[Sample], without: Sequence[Sample]
) -> None:
    values, alone = ([getattr(sample, name) * factor for sample in part] for part in (samples, without))
    chart.plot(_hours(without), alone, color=_ALONE, label="without maintenance")
    chart.plot(_hours(samples), values, color=_KEPT, label="maintained")
    chart.set_ylim(0, max(values) * _ROOM)


def _rewritten(chart: Axes, samples: Sequence[Sample]) -> None:
    """Its slope divided by that of the landed rows is the write amplification."""
    hours = _hours(samples)
    rewritten = [sample.rows_rewritten / 1e6 for sample in samples]
    landed = [sample.rows_landed / 1e6 for sample in samples]
    chart.plot(hours, rewritten, color=_KEPT)
    chart.plot(hours, landed, color=_INK, linestyle="--")
    for text, value, color in (("merged", rewritten[-1], _KEPT), ("landed", landed[-1], _INK)):
        chart.annotate(text, (hours[-1], value), (-4, 4), textcoords="offset points", ha="right", color=color)
    chart.set_ylim(0, max(*rewritten, *landed) * 1.15)
    _label(chart, "rows since midnight", "million rows")


def _label(chart: Axes, title: str, unit: str) -> None:
    chart.set_title(title, fontsize=10, loc="left")
    chart.set_xlabel("hour of the day")
    chart.set_ylabel(unit)
    chart.set_xlim(0, 24)
    chart.set_xticks(range(0, 25, 4))
    chart.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    chart.grid(True, axis="y")
