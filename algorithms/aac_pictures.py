"""Who attends to whom while a trained team plays: looked at, left in the run's folder, drawn."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

from marlogue.agents.attention_critic import AttentionCritic
from marlogue.algorithms.aac_acting import ActingTeam
from marlogue.algorithms.aac_config import AACConfig
from marlogue.algorithms.aac_networks import AACNetworks
from marlogue.algorithms.attention_episode import episode_figure
from marlogue.algorithms.attention_figures import attention_image, figures_available, image_of
from marlogue.algorithms.attention_trace import trace_path
from marlogue.algorithms.attention_watch import AttentionWatch


def watch_for(
    args: AACConfig, networks: AACNetworks, players: ActingTeam, steps: int
) -> AttentionWatch | None:
    """Somebody who looks on, after so many steps of the training; None where there is nothing to
    see, or nobody wants to."""
    if not args.attention_images or not networks.attends:
        return None
    assert isinstance(networks.critic, AttentionCritic)
    places = list(args.attention_position or ())[:2]
    position = places if len(places) == 2 else None
    return AttentionWatch(networks.critic, players, position, f"after {steps:,} steps")


def left_in(logdir: Path, watch: AttentionWatch, steps: int) -> dict[str, Any]:
    """Keep what was seen in a run's folder.

    Returns:
        Pictures of it by tag, where there is what draws them.
    """
    trace = watch.trace()
    trace.save(trace_path(logdir, steps))
    if not figures_available():
        _say_once_that_there_are_no_pictures()
        return {}
    return {
        "attention/episode": image_of(episode_figure(trace)),
        "attention/mean": image_of(attention_image(trace)),
    }


@cache
def _say_once_that_there_are_no_pictures() -> None:
    warnings.warn(
        'attention_images: pictures in TensorBoard need pip install "marlogue[plot]" '
        "(the attention itself is kept in the run's folder).",
        stacklevel=3,
    )
