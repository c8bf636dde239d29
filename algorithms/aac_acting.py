"""How a team of networks acts, and explores, in environments that step together.

E environments, N agents, D observation size, A actions or size of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marlogue.agents.vector_actors import VectorActors
from marlogue.algorithms.aac_config import AACConfig
from marlogue.algorithms.annealing import as_anneal
from marlogue.algorithms.exploration import EpsilonGreedy, GaussianNoise
from marlogue.algorithms.streams import EXPLORE, derived_seed, restore_generator
from marlogue.algorithms.team_views import TeamView

Array = NDArray[Any]


class ActingTeam:
    """Policies with the memory that they have of each environment's episode.

    Args:
        actors: the networks.
        num_envs: E.
        observations: normalises [E, N, D].
        seed: seed of the draws.
    """

    def __init__(
        self,
        actors: VectorActors,
        num_envs: int,
        observations: Callable[[Tensor], Tensor],
        seed: int,
    ) -> None:
        self.actors = actors
        self._observations = observations
        device = actors.exists.device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.state = actors.initial_state(num_envs)

    @torch.no_grad()
    def act(self, view: TeamView, *, greedy: bool = False) -> Array:
        """Actions [E, N] or [E, N, A] for what is seen; the memory goes on."""
        seen = self._observed(view)
        available = None
        if view.available is not None:
            available = torch.from_numpy(view.available).to(seen.device)
        policy, self.state = self.actors(seen, self.state, available=available)
        actions = policy.mode() if greedy else policy.sample(self._generator)[0]
        return actions.cpu().numpy()

    def seen(self, view: TeamView) -> Tensor:
        """What a critic reads [E, N, D (+ H)] of what was acted from just now."""
        seen = self._observed(view)
        return torch.cat([seen, self.state], -1) if self.actors.recurrent else seen

    def _observed(self, view: TeamView) -> Tensor:
        device = self.actors.exists.device
        return self._observations(torch.from_numpy(view.observations).to(device))

    @property
    def memory(self) -> Array | None:
        """[E, N, H], the state before the next action; None without recurrence."""
        return self.state.cpu().numpy() if self.actors.recurrent else None

    def state_tensors(self) -> dict[str, Tensor]:
        """What they remember, and the state of their draws."""
        return {"memory": self.state, "generator": self._generator.get_state()}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`state_tensors` gave."""
        self.state = tensors["memory"].to(self.state.device)
        restore_generator(self._generator, tensors["generator"])

    def forget(self, envs: Array) -> None:
        """Begin new episodes in these environments (bool [E])."""
        if self.actors.recurrent and envs.any():
            over = torch.from_numpy(envs).to(self.state.device)
            self.state = self.state.masked_fill(over[:, None, None], 0.0)


class Explorer:
    """What is done beside the policies' own draws: random actions at first, then epsilon or noise.

    Args:
        args: the configuration.
        discrete: whether actions are.

    Raises:
        ValueError: when something is configured that is for the other kind of actions.
    """

    def __init__(self, args: AACConfig, discrete: bool) -> None:
        self.args = args
        self._rng = np.random.default_rng(derived_seed(args.seed, EXPLORE, 0))
        self._beside: EpsilonGreedy | GaussianNoise
        seed = derived_seed(args.seed, EXPLORE, 1)
        name, other, kind = "epsilon", "noise", "continuous"
        if discrete:
            name, other, kind = "noise", "epsilon", "discrete"
            self._beside = EpsilonGreedy(as_anneal(args.epsilon), seed)
        else:
            self._beside = GaussianNoise(as_anneal(args.noise), seed)
        if getattr(args, name) != AACConfig.__dataclass_fields__[name].default:
            raise ValueError(
                f"{name} ({getattr(args, name)!r}) does nothing here, since the environment's "
                f"actions are {kind}; leave it out, and set {other}."
            )

    def state_dict(self) -> dict[str, Any]:
        """The states of its draws, as JSON can hold them."""
        return {name: rng.bit_generator.state for name, rng in self._rngs().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        for name, rng in self._rngs().items():
            rng.bit_generator.state = state[name]

    def _rngs(self) -> dict[str, np.random.Generator]:
        return {"start": self._rng, "beside": self._beside.rng}

    def __call__(self, actions: Array, view: TeamView, exists: Array, steps: int) -> Array:
        """Explore.

        Args:
            actions: [E, N] or [E, N, A], those of the policies.
            view: what they were chosen from.
            exists: [N, A] bool, actions or numbers that agents have.
            steps: of the training so far.
        """
        if self.args.random_start and steps < self.args.learning_starts:
            return random_actions(view, exists, self._rng)
        allowed = exists if view.available is None else view.available
        return self._beside(actions, allowed, min(1.0, steps / self.args.total_steps))


def random_actions(view: TeamView, exists: Array, rng: np.random.Generator) -> Array:
    """Uniformly random actions: of those available, or of all numbers in [-1, 1].

    Args:
        view: what is seen.
        exists: [N, A] bool, actions or numbers that agents have.
        rng: source of the draws.
    """
    shape = (*view.present.shape, exists.shape[-1])
    if view.available is None:
        return np.where(exists, rng.uniform(-1.0, 1.0, shape), 0.0).astype(np.float32)
    return np.where(view.available & exists, rng.random(shape), -1.0).argmax(-1)
