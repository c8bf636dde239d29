"""Small pictures of situations, drawn by array operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]


def discs(
    layers: Sequence[tuple[NDArray[np.float64], float, Colour]], half_width: float, size: int = 256
) -> NDArray[np.uint8]:
    """Discs on white.

    Args:
        layers: centres [K, 2] (x to the right, y up), radius and colour; later ones cover earlier.
        half_width: the picture shows [-half_width, half_width]^2.
        size: its height and width in pixels.

    Returns:
        [size, size, 3].
    """
    image = np.full((size, size, 3), 255, np.uint8)
    axis = ((np.arange(size) + 0.5) / size * 2 - 1) * half_width
    for centres, radius, colour in layers:
        for x, y in centres:
            across, down = (axis - x) ** 2, (-axis - y) ** 2
            image[down[:, None] + across <= radius**2] = colour
    return image


def cells(colours: NDArray[np.uint8], scale: int = 8) -> NDArray[np.uint8]:
    """A grid of colours [height, width, 3] with `scale` pixels to a cell's side."""
    return colours.repeat(scale, axis=0).repeat(scale, axis=1)
