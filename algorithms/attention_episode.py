"""A picture of an episode: who attends to whom, step by step, and where everyone was.

K steps whose weights are kept, N agents; see `attention_figures` for what the colours mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marlogue.algorithms.attention_figures import (
    FAINT,
    INK,
    MARK,
    Scale,
    add_words,
    draw_scale,
    draw_weights,
    how_to_read,
    new_figure,
    steps_of,
)
from marlogue.algorithms.attention_places import arrows_of, draw_paths, draw_team
from marlogue.algorithms.attention_trace import AttentionTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

#: Steps shown when none are chosen.
STEPS_SHOWN = 4


def episode_figure(
    trace: AttentionTrace, at: Sequence[int] | None = None, *, title: str | None = None
) -> Figure:
    """Heat maps (mean over heads) of some steps and of the whole episode; below, where positions
    are known, the agents at these steps with arrows as wide as the attention; below, how widely
    each head spreads its attention over time, with the team's reward.

    Args:
        trace: of the episode.
        at: steps to show; the nearest whose weights are kept are taken. None for ``STEPS_SHOWN``
            from first to last.
        title: None for what the trace says.

    Raises:
        ImportError: without matplotlib.
        ValueError: when a step lies outside the episode.
    """
    indices = chosen_steps(trace, at)
    count = len(trace.names)
    side = min(max(0.36 * count, 2.3), 3.4)
    columns = len(indices) + 1
    placed = trace.positions is not None
    heights = [side, *([side] if placed else []), 1.7]
    label = 0.075 * min(max(map(len, trace.names)), 18)
    figure = new_figure(
        columns * (side + 0.15) + label + 1.2, sum(heights) + label + 0.5 * len(heights) + 0.8
    )
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    panels = [trace.weights_at(index) for index in indices]
    scale = _draw_maps(figure, grid, trace, panels, indices, side)
    if placed:
        _draw_places(figure, grid, trace, panels, indices, scale)
    _draw_time(figure.add_subplot(grid[-1, :]), trace, indices)
    shown = title or f"Who attends to whom over an episode{trace.about and f' · {trace.about}'}"
    below = how_to_read(count)
    if placed:
        below += f"\narrows {arrows_of(count)}, as wide as the weight; zoomed to who is there"
    add_words(figure, shown, f"{below}\n{trace.kept}" if trace.kept else below)
    return figure


def chosen_steps(trace: AttentionTrace, at: Sequence[int] | None) -> list[int]:
    """Indices of kept steps to show, in order.

    Raises:
        ValueError: when a step of ``at`` lies outside the episode.
    """
    if at is None:
        last = len(trace.weights) - 1
        return sorted({round(x) for x in np.linspace(0, last, STEPS_SHOWN).tolist()})
    outside = [step for step in at if not 0 <= step < len(trace.present)]
    if outside:
        raise ValueError(
            f"at ({', '.join(map(str, outside))}) must be steps of the episode, from 0 to "
            f"{len(trace.present) - 1}."
        )
    return sorted({int(np.abs(trace.steps - step).argmin()) for step in at})


def _draw_maps(
    figure: Figure,
    grid: GridSpec,
    trace: AttentionTrace,
    panels: Sequence[NDArray[Any]],
    indices: Sequence[int],
    side: float,
) -> Scale:
    mean = trace.mean_weights()
    scale = Scale.of([*panels, mean], trace.uniform())
    titles = [f"step {trace.steps[index]}" for index in indices]
    titles.append(f"mean over {steps_of(trace)}")
    drawn = []
    for column, (weights, title) in enumerate(zip([*panels, mean], titles, strict=True)):
        axes = figure.add_subplot(grid[0, column])
        image = draw_weights(axes, weights, trace.names, scale, side=side, rows_named=not column)
        axes.set_title(title, fontsize=9.5, color=INK)
        drawn.append(axes)
    draw_scale(figure, image, drawn, scale)
    return scale


def _draw_places(
    figure: Figure,
    grid: GridSpec,
    trace: AttentionTrace,
    panels: Sequence[NDArray[Any]],
    indices: Sequence[int],
    scale: Scale,
) -> None:
    for column, (weights, index) in enumerate(zip(panels, indices, strict=True)):
        axes = figure.add_subplot(grid[1, column])
        draw_team(axes, trace, int(trace.steps[index]), weights, scale)
    axes = figure.add_subplot(grid[1, len(indices)])
    axes.set_title("paths", fontsize=9.5, color=INK)
    draw_paths(axes, trace)


def _draw_time(axes: Axes, trace: AttentionTrace, indices: Sequence[int]) -> None:
    """Entropy of each head over the episode (1: to all alike), and the team's reward."""
    entropies = trace.entropies_by_step()
    heads = entropies.shape[1]
    for head in range(heads):
        name = "mean of the heads" if trace.heads_averaged else f"head {head}"
        axes.plot(trace.steps, entropies[:, head], linewidth=1.4, label=name)
    axes.axhline(1.0, color=MARK, linewidth=1, linestyle="--", label="uniform")
    for index in indices:
        axes.axvline(trace.steps[index], color="0.85", linewidth=1, zorder=0)
    axes.set_ylim(0, 1.08)
    axes.set_xlim(0, max(len(trace.present) - 1, 1))
    axes.set_ylabel("entropy / log(others)", fontsize=8.5, color=INK)
    axes.set_xlabel("step of the episode", fontsize=8.5, color=INK)
    axes.locator_params(axis="x", integer=True)
    rewards = axes.twinx()
    team = np.where(trace.present, trace.rewards, 0.0).sum(-1)
    rewards.plot(np.arange(len(team)), team, color=FAINT, linewidth=1, alpha=0.7)
    rewards.set_ylabel("team reward", fontsize=8.5, color=FAINT)
    for one in (axes, rewards):
        one.tick_params(labelsize=8, colors=INK, length=2)
        one.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(fontsize=7.5, frameon=False, ncols=heads + 1, loc="lower left", labelcolor=INK)
