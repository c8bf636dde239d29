"""Checks that an episode comes out the same again: from a seed, and from copies in mid-episode."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from marlogue.envs.trial import ConformanceError, Trial


def check_seeding(trial: Trial) -> None:
    """The same seed gives the same episode from reset to end, without the global generators."""
    episodes = [_record(trial) for _ in range(2)]
    for moment, (first, second) in enumerate(zip(*episodes, strict=False)):
        when = "reset" if moment == 0 else f"turn {moment - 1}"
        trial.require(
            first == second,
            f"two episodes with seed {trial.seed} differ at {when}: {first!r} and {second!r}",
        )
    lengths = [len(episode) - 1 for episode in episodes]
    trial.require(
        lengths[0] == lengths[1],
        f"two episodes with seed {trial.seed} have {lengths[0]} and {lengths[1]} turns",
    )
    with _moved_generators():
        before = _global_generators()
        _record(trial)
        untouched = _global_generators() == before
    trial.require(
        untouched,
        "it seeds or uses a global random generator; give it a private one, of reset's seed",
    )


def _record(trial: Trial) -> list[Any]:
    """The whole episode: what reset returned, and every step."""
    return [copy.deepcopy(trial.reset()), *(copy.deepcopy(step) for step in trial.steps())]


def _global_generators() -> list[bytes]:
    states: list[Any] = [random.getstate(), np.random.get_state()]  # noqa: NPY002
    if "torch" in sys.modules:
        states.append(sys.modules["torch"].get_rng_state().numpy().tobytes())
    return [pickle.dumps(state) for state in states]


@contextmanager
def _moved_generators() -> Iterator[None]:
    """Put the global generators where no seeding leaves them, and back afterwards."""
    saved = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    saved_torch = None if torch is None else torch.get_rng_state()
    random.random()
    np.random.random()  # noqa: NPY002
    if torch is not None:
        torch.rand(())
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(saved_torch)


def check_copies(trial: Trial) -> None:
    """Pickled and deep copies, made in mid-episode, play on alike and apart from each other."""
    trial.reset()
    try:
        copies = {
            "pickled": pickle.loads(pickle.dumps(trial.env)),
            "deep": copy.deepcopy(trial.env),
        }
    except Exception as error:
        raise ConformanceError(
            f"{trial.env}: it must be possible to pickle and deep-copy it ({error!r}); give it "
            "functions of a module in place of lambdas and local ones, or skip 'copies'"
        ) from error
    expected = [copy.deepcopy(step) for step in trial.steps()]
    for kind, env in copies.items():
        twin = Trial(env, trial.seed, trial.max_turns, trial.leaving)
        trial.require(
            [copy.deepcopy(step) for step in twin.steps()] == expected,
            f"a {kind} copy made after reset does not play on like the original",
        )
