"""Pictures of attention weights: who attends to whom, head by head.

Needs matplotlib (``pip install "marlogue[plot]"``), which is imported when a picture is drawn. Only
figures of our own are made: pyplot's state, its windows and the user's settings of it are left
alone.

H heads, N agents. A row is an agent that attends, a column one that is attended to. Every colour
scale begins at 0, ends at the largest weight shown, and marks what an even spread would be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.logger import Image

from marlogue.algorithms.attention_trace import AttentionTrace
from marlogue.envs.optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLOURS = "magma_r"
#: Of what is no weight: the uniform level, landmarks.
MARK = "dodgerblue"
#: Drawn where there is nothing to know: an agent itself, and two that never met.
ITSELF, NEVER = "0.88", "0.75"
INK, FAINT = "0.15", "0.45"

_LETTER = 0.112  # inches that a name takes beside the next
_LONGEST = 18  # letters of a name
_HATCHED = 20  # up to so many agents, their own cells are large enough for a hatch
_NUMBERS = 8  # up to so many agents, weights are written into the cells


class Scale(NamedTuple):
    """What colours stand for: weights from 0 to ``largest``; ``uniform`` is marked."""

    largest: float
    uniform: float

    @classmethod
    def of(cls, weights: Sequence[NDArray[Any]], uniform: float) -> Scale:
        """One scale for several panels."""
        known = [panel[np.isfinite(panel)] for panel in weights]
        largest = max((float(panel.max()) for panel in known if panel.size), default=0.0)
        return cls(largest if largest > 0 else 1.0, uniform)


def figures_available() -> bool:
    """Whether matplotlib is installed, without importing it."""
    return find_spec("matplotlib") is not None


def attention_image(
    weights: AttentionTrace | ArrayLike,
    names: Sequence[str] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """A heat map of the mean over heads, and one of each head.

    Args:
        weights: a trace, of which the mean over the episode is shown; or [H, N, N] or [N, N]
            weights, for instance the mean over a batch, NaN where two agents never met. The
            diagonal counts for nothing.
        names: [N]; those of a trace are known.
        title: instead of "Who attends to whom" and so on.

    Raises:
        ImportError: without matplotlib.
        ValueError: when shapes and names don't go together.
    """
    if isinstance(weights, AttentionTrace):
        heads = 1 if weights.heads_averaged else weights.num_heads
        panels = [weights.mean_weights(head) for head in range(heads)]
        mean, names, uniform = weights.mean_weights(), weights.names, weights.uniform()
        title = title or f"Who attends to whom: mean over {steps_of(weights)}"
    else:
        panels = _panels(weights, names)
        mean, names = np.mean(panels, axis=0), names or ()
        uniform = 1 / (len(names) - 1) if len(names) > 1 else math.nan
    titles = ["mean of the heads", *(f"head {head}" for head in range(len(panels)))]
    panels = [mean, *panels] if len(panels) > 1 else [mean]
    return _grid(panels, titles if len(panels) > 1 else [""], names, uniform, title)


def image_of(figure: Figure, dpi: int = 100) -> Image:
    """A picture for stable-baselines3's logger; exclude the formats of text and numbers."""
    return Image(pixels(figure, dpi), "HWC")


def pixels(figure: Figure, dpi: int = 100) -> NDArray[np.uint8]:
    """A figure as [height, width, 3], drawn without a window."""
    with require("matplotlib", extra="plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(np.asarray(canvas.buffer_rgba())[..., :3])


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that finds room for its labels; sizes in inches."""
    with require("matplotlib", extra="plot"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def steps_of(trace: AttentionTrace) -> str:
    """How much of an episode a mean is over, in words."""
    kept, steps = len(trace.weights), len(trace.present)
    return f"{kept} of {steps} steps" if kept < steps else f"{steps} steps"


def draw_weights(
    axes: Axes,
    weights: NDArray[Any],
    names: Sequence[str],
    scale: Scale,
    *,
    side: float,
    rows_named: bool = True,
    columns_named: bool = True,
) -> AxesImage:
    """A heat map with an agent's own cell hatched and unknown ones grey.

    Args:
        axes: where.
        weights: [N, N], NaN where unknown.
        names: [N].
        scale: of the colours.
        side: how large the panel is drawn, in inches: names that don't fit are left out evenly.
        rows_named: whether agents are named at the left.
        columns_named: and below.
    """
    from matplotlib import colormaps

    count = len(names)
    shown = np.where(np.eye(count, dtype=bool), np.nan, weights).astype(float)
    colours = colormaps[COLOURS].with_extremes(bad=NEVER)
    image = axes.imshow(shown, cmap=colours, vmin=0.0, vmax=scale.largest, interpolation="nearest")
    _hatch_diagonal(axes, count)
    _name_ticks(axes, names, max(1, math.ceil(count * _LETTER / side)), rows_named, columns_named)
    if count <= _NUMBERS and side >= 0.3 * count:
        _write_numbers(axes, shown, scale)
    return image


def draw_scale(figure: Figure, image: AxesImage, axes: Sequence[Axes], scale: Scale) -> None:
    """A colour bar from 0 to the largest weight, with the uniform level marked."""
    bar = figure.colorbar(image, ax=list(axes), fraction=0.05, aspect=32, pad=0.02)
    bar.outline.set_visible(False)
    ticks = {0.0: "0", scale.largest: f"{scale.largest:.2g}"}
    if 0 < scale.uniform <= scale.largest * (1 + 1e-6):
        near = [tick for tick in ticks if abs(tick - scale.uniform) < 0.06 * scale.largest]
        for tick in near:
            del ticks[tick]
        ticks[scale.uniform] = f"{scale.uniform:.2g} uniform"
        bar.ax.axhline(scale.uniform, color=MARK, linewidth=2.5)
    for tick in (0.25 * scale.largest, 0.5 * scale.largest, 0.75 * scale.largest):
        if all(abs(tick - other) >= 0.08 * scale.largest for other in ticks):
            ticks[tick] = f"{tick:.2g}"
    bar.set_ticks(sorted(ticks), labels=[ticks[tick] for tick in sorted(ticks)])
    bar.ax.tick_params(labelsize=8, colors=INK, length=2)
    bar.set_label("attention weight", fontsize=9, color=INK)


def add_words(figure: Figure, title: str, below: str) -> None:
    """What is shown, above the panels, and how to read it, below them."""
    figure.suptitle(title, fontsize=12, color=INK, fontweight="bold")
    figure.supxlabel(below, fontsize=8.5, color=FAINT)


def how_to_read(count: int) -> str:
    """Of a heat map of so many agents, in words."""
    itself = "hatched" if count <= _HATCHED else "pale grey"
    return (
        f"each row's agent attends to the columns' · {itself}: itself · grey: never there together"
    )


def _panels(weights: ArrayLike, names: Sequence[str] | None) -> list[NDArray[Any]]:
    array = np.asarray(weights, np.float32)
    array = array[None] if array.ndim == 2 else array
    count = len(names or ())
    if array.shape[1:] != (count, count):
        raise ValueError(
            f"weights have the shape {np.shape(weights)}, which must be [heads, N, N] or [N, N] "
            f"for N = {count} names; give the name of every agent as names."
        )
    return list(array)


def _grid(
    panels: Sequence[NDArray[Any]],
    titles: Sequence[str],
    names: Sequence[str],
    uniform: float,
    title: str | None,
) -> Figure:
    count = len(names)
    columns = min(len(panels), 5 if count <= 12 else 3)
    rows = math.ceil(len(panels) / columns)
    side = min(max(0.34 * count, 2.2), 4.6) if len(panels) > 1 else min(max(0.5 * count, 3.6), 6.5)
    label = 0.075 * min(max(map(len, names), default=0), _LONGEST)
    figure = new_figure(columns * (side + 0.2) + label + 1.3, rows * (side + 0.3) + label + 0.75)
    grid = figure.subplots(rows, columns, squeeze=False)
    scale = Scale.of([_off_diagonal(panel) for panel in panels], uniform)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.set_axis_off()
            continue
        image = draw_weights(
            axes,
            panels[index],
            names,
            scale,
            side=side,
            rows_named=index % columns == 0,
            columns_named=index + columns >= len(panels),
        )
        axes.set_title(titles[index], fontsize=9.5, color=INK)
    draw_scale(figure, image, list(grid.flat), scale)
    add_words(figure, title or "Who attends to whom", how_to_read(count))
    return figure


def _off_diagonal(weights: NDArray[Any]) -> NDArray[Any]:
    return weights[~np.eye(len(weights), dtype=bool)]


def _hatch_diagonal(axes: Axes, count: int) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    cells = [Rectangle((i - 0.5, i - 0.5), 1, 1) for i in range(count)]
    hatch = "////" if count <= _HATCHED else ""
    axes.add_collection(
        PatchCollection(cells, facecolor=ITSELF, edgecolor="0.6", linewidth=0, hatch=hatch)
    )


def _name_ticks(
    axes: Axes, names: Sequence[str], every: int, rows_named: bool, columns_named: bool
) -> None:
    places = list(range(0, len(names), every))
    shown = [_short(names[place]) for place in places]
    size = 8 if every == 1 and len(names) <= 25 else 7
    axes.set_xticks(places, shown if columns_named else [], rotation=90, fontsize=size)
    axes.set_yticks(places, shown if rows_named else [], fontsize=size)
    axes.tick_params(length=0 if every == 1 else 2, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _write_numbers(axes: Axes, weights: NDArray[Any], scale: Scale) -> None:
    for (row, column), weight in np.ndenumerate(weights):
        if not math.isnan(weight):
            colour = "white" if weight > 0.45 * scale.largest else INK
            text = f"{weight:.2f}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7.5)
