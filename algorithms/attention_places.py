"""Where agents are and to whom they attend: arrows as wide as the attention, and paths.

T steps, N agents. Agents of one kind (names that differ by their number) have one colour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marlogue.algorithms.attention_figures import COLOURS, INK, MARK, Scale
from marlogue.algorithms.attention_trace import AttentionTrace, partners

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALL_ARROWS = 5  # up to so many agents, an arrow for each pair
_STRONGEST = 2  # of more agents, arrows from each
_WIDEST = 6.0  # points, the arrow of the largest weight; half of it among many
_TRAIL = 12  # steps that are seen behind an agent
_TRAILED = 60  # up to so many agents; more would hide each other
_NAMED = 12  # up to so many agents are named where they are


def arrows_of(count: int) -> str:
    """Which arrows are drawn among so many agents, in words."""
    return "to each other" if count <= _ALL_ARROWS else f"to each agent's strongest {_STRONGEST}"


def draw_team(
    axes: Axes, trace: AttentionTrace, step: int, weights: NDArray[Any], scale: Scale
) -> None:
    """Everyone at a step, with the latest part of the way there and arrows to whom it attends.

    Args:
        axes: where.
        trace: with positions.
        step: of the episode.
        weights: [N, N], NaN where unknown.
        scale: of the arrows' widths and colours.
    """
    assert trace.positions is not None
    colours = _colours(trace.names)
    places = np.where(trace.present[step][:, None], trace.positions[step], np.nan)
    landmarks = np.zeros((0, 2)) if trace.landmarks is None else trace.landmarks[step]
    _frame(axes, np.concatenate([places, landmarks]))
    for agent, colour in enumerate(colours if len(colours) <= _TRAILED else []):
        trail = trace.positions[max(0, step - _TRAIL) : step + 1, agent]
        axes.plot(*trail.T, color=colour, alpha=0.35, linewidth=1.2, zorder=1)
    _draw_arrows(axes, places, weights, scale)
    few = len(colours) <= _NAMED
    _dots(axes, places, size=130 if few else min(30, 1500 / len(colours)), c=colours)
    _dots(axes, landmarks, size=170, color=MARK, marker="*")
    if few:
        for name, place in zip(trace.names, places, strict=True):
            _label(axes, _number(name), place, inside=len(_number(name)) <= 2)
    if len(landmarks) <= _NAMED:
        for name, place in zip(trace.landmark_names, landmarks, strict=True):
            _label(axes, name, place)


def _draw_arrows(axes: Axes, places: NDArray[Any], weights: NDArray[Any], scale: Scale) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import FancyArrowPatch

    count = len(places)
    most = count - 1 if count <= _ALL_ARROWS else _STRONGEST
    widest = _WIDEST if count <= _NAMED else _WIDEST / 2
    for agent, others in enumerate(partners(weights, most)):
        for other in others:
            share = float(weights[agent, other]) / scale.largest
            start, end = places[agent], places[other]
            if share <= 0 or not np.isfinite([start, end]).all():
                continue
            width = widest * share
            axes.add_patch(
                FancyArrowPatch(
                    tuple(start),
                    tuple(end),
                    arrowstyle=f"simple,tail_width={width},head_width={1.6 * width + 2.5},"
                    f"head_length={1.2 * width + 3}",
                    connectionstyle="arc3,rad=0.16",  # there and back are two arrows
                    shrinkA=5,
                    shrinkB=5,
                    linewidth=0,
                    color=colormaps[COLOURS](0.15 + 0.85 * share),
                    alpha=0.85,
                    zorder=2 + share,
                )
            )


def draw_paths(axes: Axes, trace: AttentionTrace) -> None:
    """Everyone's whole path, with a dot at its end."""
    assert trace.positions is not None
    drawn = [trace.positions] if trace.landmarks is None else [trace.positions, trace.landmarks]
    _frame(axes, np.concatenate([places.reshape(-1, 2) for places in drawn]))
    seen: set[str] = set()
    for agent, colour in enumerate(_colours(trace.names)):
        there = np.where(trace.present[:, agent, None], trace.positions[:, agent], np.nan)
        kind = _kind(trace.names[agent])
        label = None if kind in seen else kind
        seen.add(kind)
        axes.plot(*there.T, color=colour, linewidth=1.3, alpha=0.8, label=label)
        known = there[np.isfinite(there).all(-1)]
        if len(known):
            _dots(axes, known[-1:], size=18, color=colour)
    if trace.landmarks is not None:
        for index, name in enumerate(trace.landmark_names):
            way = trace.landmarks[:, index]
            axes.plot(*way.T, color=MARK, linewidth=1.0, linestyle=":", label=name)
    if 1 < len(axes.get_legend_handles_labels()[1]) <= 6:
        axes.legend(fontsize=7, frameon=False, loc="best", labelcolor=INK)


def _frame(axes: Axes, places: NDArray[Any]) -> None:
    """A square around all places [..., 2] that are known."""
    known = places.reshape(-1, 2)
    known = known[np.isfinite(known).all(-1)]
    if not len(known):
        known = np.zeros((1, 2))
    low, high = known.min(0), known.max(0)
    middle, half = (low + high) / 2, 0.62 * float((high - low).max()) or 1.0
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.set(xticks=[], yticks=[], aspect="equal")
    for spine in axes.spines.values():
        spine.set(color="0.8", linewidth=0.8)


def _dots(axes: Axes, places: NDArray[Any], *, size: float, **style: Any) -> None:
    axes.scatter(
        places[:, 0], places[:, 1], s=size, edgecolors="white", linewidths=0.8, zorder=4, **style
    )


def _label(axes: Axes, text: str, place: NDArray[Any], inside: bool = False) -> None:
    if not np.isfinite(place).all():
        return
    if inside:
        axes.text(
            place[0], place[1], text, fontsize=7, color="white", ha="center", va="center", zorder=5
        )
        return
    axes.annotate(
        text, tuple(place), (6, 6), textcoords="offset points", fontsize=7.5, color=INK, zorder=5
    )


def _kind(name: str) -> str:
    """``pursuer`` of ``pursuer_3``."""
    return re.sub(r"[_\-]?\d+$", "", name) or name


def _number(name: str) -> str:
    """``3`` of ``pursuer_3``; the name where it ends otherwise."""
    number = re.search(r"\d+$", name)
    return number[0] if number else name


def _colours(names: Sequence[str]) -> list[Any]:
    """One colour per kind of agent."""
    from matplotlib import colormaps

    kinds = list(dict.fromkeys(map(_kind, names)))
    return [colormaps["tab10"](kinds.index(_kind(name)) % 10) for name in names]
