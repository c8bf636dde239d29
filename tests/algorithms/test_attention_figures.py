"""Pictures of attention, by reading back what is drawn, and in an event file of TensorBoard."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marlogue.algorithms.attention_episode import chosen_steps, episode_figure
from marlogue.algorithms.attention_figures import (
    MARK,
    attention_image,
    figures_available,
    image_of,
)
from marlogue.algorithms.run_log import RunLog
from tests.support.traces import episode, softmax_weights

pytest.importorskip("matplotlib")
from matplotlib.colors import same_color
from matplotlib.patches import FancyArrowPatch
from PIL import Image


def maps(figure):
    """The axes of the heat maps."""
    return [axes for axes in figure.axes if axes.images]


def bar(figure):
    return next(axes for axes in figure.axes if axes.get_label() == "<colorbar>")


def labels(ticks):
    return [tick.get_text() for tick in ticks]


def names_of(count: int) -> list[str]:
    return [f"agent_{i}" for i in range(count)]


class TestHeatMaps:
    weights = softmax_weights(4, 3)

    def test_the_mean_and_one_panel_per_head(self):
        figure = attention_image(self.weights, names_of(4), title="A batch")
        panels = maps(figure)
        assert [axes.get_title() for axes in panels] == [
            "mean of the heads", "head 0", "head 1", "head 2",
        ]  # fmt: skip
        for axes, wanted in zip(panels, [self.weights.mean(0), *self.weights], strict=True):
            drawn = axes.images[0].get_array()
            off = ~np.eye(4, dtype=bool)
            np.testing.assert_allclose(drawn[off], wanted[off], rtol=1e-6)
            assert np.ma.getmaskarray(drawn).diagonal().all()
        assert figure.get_suptitle() == "A batch"
        assert "hatched: itself" in figure.get_supxlabel()

    def test_names_on_both_axes(self):
        figure = attention_image(self.weights, names_of(4))
        first, second = maps(figure)[:2]
        assert labels(first.get_xticklabels()) == names_of(4)
        assert labels(first.get_yticklabels()) == names_of(4)
        assert labels(second.get_xticklabels()) == names_of(4)
        assert labels(second.get_yticklabels()) == [""] * 4  # those of the panel at the left

    def test_one_scale_from_zero_to_the_largest_with_the_uniform_level(self):
        figure = attention_image(self.weights, names_of(4))
        largest = float(self.weights.max())
        assert {axes.images[0].get_clim() for axes in maps(figure)} == {(0.0, largest)}
        lines = [line for line in bar(figure).lines if same_color(line.get_color(), MARK)]
        assert [line.get_ydata()[0] for line in lines] == [pytest.approx(1 / 3)]
        assert "0.33 uniform" in labels(bar(figure).get_yticklabels())
        assert labels(bar(figure).get_yticklabels())[-1] == f"{largest:.2g}"

    def test_the_diagonal_is_hatched(self):
        (cells,) = maps(attention_image(self.weights[:1], names_of(4)))[0].collections
        centres = [path.get_extents().get_points().mean(0).tolist() for path in cells.get_paths()]
        assert centres == [[i, i] for i in range(4)]
        assert cells.get_hatch()

    def test_one_head_is_one_panel(self):
        for weights in (self.weights[0], self.weights[:1]):
            panels = maps(attention_image(weights, names_of(4)))
            assert len(panels) == 1
            assert [text.get_text() for text in panels[0].texts][:2] == [
                f"{weights.reshape(4, 4)[0, 1]:.2f}", f"{weights.reshape(4, 4)[0, 2]:.2f}",
            ]  # fmt: skip

    @pytest.mark.parametrize(("count", "every"), [(40, 1), (42, 2), (400, 10)])
    def test_names_are_thinned_out_among_more_than_forty(self, count: int, every: int):
        """Panels among others are 4.6 inches large at most, and a name takes 0.112."""
        figure = attention_image(softmax_weights(count, 2), names_of(count))
        axes = maps(figure)[0]
        assert labels(axes.get_yticklabels()) == names_of(count)[::every]
        assert axes.get_yticks().tolist() == list(range(0, count, every))
        assert not axes.texts  # no numbers in cells as small as that

    def test_of_a_trace(self):
        """Who left is shown by the steps it was there, who never met in grey."""
        trace = episode(4, leaves=2)
        figure = attention_image(trace)
        np.testing.assert_allclose(
            maps(figure)[0].images[0].get_array().filled(np.nan), trace.mean_weights(), rtol=1e-6
        )
        assert figure.get_suptitle() == "Who attends to whom: mean over 10 steps"

    def test_uniform_weights_and_weights_of_nobody(self):
        alike = (1 - np.eye(3)) / 2
        ticks = bar(attention_image(alike, names_of(3))).get_yticklabels()
        assert labels(ticks)[-1] == "0.5 uniform"
        nobody = maps(attention_image(np.full((3, 3), math.nan), names_of(3)))[0]
        assert np.ma.getmaskarray(nobody.images[0].get_array()).all()
        assert nobody.images[0].get_clim() == (0.0, 1.0)

    def test_shapes_that_do_not_fit(self):
        with pytest.raises(ValueError, match=r"weights have the shape \(3, 4, 4\), which must"):
            attention_image(self.weights, names_of(5))
        with pytest.raises(ValueError, match="for N = 0 names"):
            attention_image(self.weights)


class TestEpisodes:
    def test_some_steps_and_the_mean(self):
        trace = episode(4, steps=10, leaves=6)
        figure = episode_figure(trace)
        panels = maps(figure)
        assert [axes.get_title() for axes in panels] == [
            "step 0", "step 3", "step 6", "step 9", "mean over 10 steps",
        ]  # fmt: skip
        for axes, index in zip(panels, (0, 3, 6, 9), strict=False):
            np.testing.assert_array_equal(
                axes.images[0].get_array().filled(np.nan), trace.weights_at(index)
            )
        assert np.ma.getmaskarray(panels[3].images[0].get_array())[:, 3].all()
        assert figure.get_suptitle() == "Who attends to whom over an episode · a chase"

    def test_steps_that_are_kept(self):
        trace = episode(3, steps=10)
        assert chosen_steps(trace, [9, 2]) == [2, 9]
        assert chosen_steps(episode(3, steps=2), None) == [0, 1]
        with pytest.raises(
            ValueError, match=r"at \(10\) must be steps of the episode, from 0 to 9"
        ):
            chosen_steps(trace, [0, 10])

    def test_arrows_as_wide_as_the_attention(self):
        trace = episode(3, steps=1)
        figure = episode_figure(trace)
        axes = next(
            a for a in figure.axes if any(isinstance(p, FancyArrowPatch) for p in a.patches)
        )
        weights, places = trace.weights_at(0), trace.positions[0]
        widths = {}
        for arrow in axes.patches:
            start, end = arrow._posA_posB
            pair = tuple(int(np.abs(places - point).sum(-1).argmin()) for point in (start, end))
            widths[pair] = arrow.get_arrowstyle().tail_width
        assert set(widths) == {(i, j) for i in range(3) for j in range(3) if i != j}
        widest = max(widths.values()) / np.nanmax(weights)
        for pair, width in widths.items():
            assert width == pytest.approx(widest * weights[pair], rel=1e-3)

    def test_of_many_agents_the_two_strongest(self):
        trace = episode(9, steps=1)
        axes = next(a for a in episode_figure(trace).axes if a.patches and not a.images)
        assert len(axes.patches) == 18

    def test_absent_agents_have_no_arrows(self):
        trace = episode(4, steps=3, leaves=1)
        placed = [a for a in episode_figure(trace).axes if a.patches and not a.images]
        assert [len(axes.patches) for axes in placed] == [12, 6, 6]

    def test_entropy_and_reward_over_time(self):
        trace = episode(4, steps=5, placed=False)
        figure = episode_figure(trace)
        time = next(a for a in figure.axes if a.get_ylabel() == "entropy / log(others)")
        for head in range(2):
            weights = trace.weights[:, head]
            logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
            entropies = -(weights * logs).sum(-1)
            wanted = entropies.mean(-1) / math.log(3)
            np.testing.assert_allclose(time.lines[head].get_ydata(), wanted, rtol=1e-5)
        reward = next(a for a in figure.axes if a.get_ylabel() == "team reward")
        assert reward.lines[0].get_ydata().tolist() == [0.0, 4.0, 8.0, 12.0, 16.0]

    def test_what_was_left_out_is_said(self):
        trace = episode(3, steps=10)
        thinned = replace(trace, weights=trace.weights[::4], stride=4)
        figure = episode_figure(thinned, [5])
        assert "weights of every 4th step only" in figure.get_supxlabel()
        assert [a.get_title() for a in maps(figure)] == ["step 4", "mean over 3 of 10 steps"]


def test_an_image_in_an_event_file(tmp_path: Path) -> None:
    log = RunLog(tmp_path, verbose=True, wandb_config=None, config={}, num_transcripts=0)
    picture = image_of(attention_image(softmax_weights(3, 2), names_of(3)))
    log.logger.record("attention/mean", picture, exclude=("stdout", "csv", "json", "log"))
    log.write(7)
    log.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    events.Reload()
    (event,) = events.Images("attention/mean")
    assert event.step == 7
    kept = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB"))
    np.testing.assert_array_equal(kept, picture.image)
    assert len(np.unique(kept.reshape(-1, 3), axis=0)) > 20  # something was drawn


def test_pyplot_is_left_alone_and_a_missing_library_told(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from marlogue.algorithms.attention_figures import *\n"
        "print('matplotlib' in sys.modules, figures_available())\n"
        "pixels(attention_image([[0, 1], [1, 0]], ['a', 'b']))\n"
        "print('matplotlib.pyplot' in sys.modules)\n"
        "for name in [name for name in sys.modules if name.startswith('matplotlib')]:\n"
        "    sys.modules[name] = None\n"  # as if it were not there
        "print(figures_available())\n"
        "try:\n"
        "    attention_image([[0, 1], [1, 0]], ['a', 'b'])\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, cwd=tmp_path
    )
    said = done.stdout.splitlines()
    assert said[:3] == ["False True", "False", "False"], done.stderr
    assert said[3].endswith('install it with: pip install "marlogue[plot]"')
    assert figures_available()
