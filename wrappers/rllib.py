"""RLlib (new API stack) trains on text environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Space, Text, Tuple
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.callbacks import noted, shortened
from marlogue.envs.optional import require
from marlogue.wrappers.embedder import Embedder
from marlogue.wrappers.rllib_env import MultiAgentView, check_spaces
from marlogue.wrappers.shares import Share
from marlogue.wrappers.view import ACTION_MASK, alike

with require("ray.rllib", extra="rllib"):
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.connectors.env_to_module import FlattenObservations
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.tune.registry import register_env

__all__ = ["EmbedTexts", "MultiAgentView", "register", "use_environment"]

TEAM = "team"
"""The name of the module that all agents share."""

OBSERVATIONS = "observations"
Env: TypeAlias = ParallelEnv | Callable[[], ParallelEnv]


class EmbedTexts(ConnectorV2):  # type: ignore[misc]
    """Env-to-module connector: texts in observations become `Box(-inf, inf, (size,), float32)`.

    The text preprocessor: it does what `EmbedObservations` does within the environment, but keeps
    texts as texts up to RLlib, and embeds a text that several episodes show at once only once.
    Texts within a `Dict` or `Tuple` are embedded, too.

    Args:
        embed: `embed(prompt) -> [size]`, as that of `EmbedObservations`.
        size: the length of an embedding; None calls `embed` once to measure it.

    Raises:
        TypeError: when `embed` cannot be called.
        ValueError: when an embedding is no vector of `size` finite numbers.
    """

    def __init__(
        self,
        input_observation_space: Space[Any] | None = None,
        input_action_space: Space[Any] | None = None,
        *,
        embed: Callable[[str], Any],
        size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.embedder = Embedder(embed, size=size)
        super().__init__(input_observation_space, input_action_space, **kwargs)

    @override
    def recompute_output_observation_space(
        self, input_observation_space: Space[Any], input_action_space: Space[Any]
    ) -> Space[Any]:
        return self._seen(input_observation_space)

    @override
    def __call__(
        self, *, rl_module: Any, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any
    ) -> dict[str, Any]:
        vectors: dict[str, NDArray[np.float32]] = {}
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            observation = episode.get_observations(-1)
            space = self.observation_space[episode.agent_id]
            embedded = self._embedded(observation, vectors)
            if embedded is not observation:
                episode.set_observations(at_indices=-1, new_data=embedded)
            episode.observation_space = space
        return batch

    def _seen(self, space: Space[Any]) -> Space[Any]:
        if isinstance(space, Text):
            return self.embedder.space
        if isinstance(space, Dict):
            return Dict({key: self._seen(inner) for key, inner in space.items()})
        if isinstance(space, Tuple):
            return Tuple([self._seen(inner) for inner in space])
        return space

    def _embedded(self, observation: Any, vectors: dict[str, NDArray[np.float32]]) -> Any:
        if isinstance(observation, str):
            if observation not in vectors:
                with noted(f"embedding {shortened(observation)} for RLlib"):
                    vectors[observation] = self.embedder(observation, "for RLlib")
            return vectors[observation]
        if isinstance(observation, Mapping):
            return {key: self._embedded(value, vectors) for key, value in observation.items()}
        if isinstance(observation, tuple):
            return tuple(self._embedded(value, vectors) for value in observation)
        return observation


def use_environment(
    config: AlgorithmConfig,
    name: str,
    env: Env,
    *,
    embed: Callable[[str], Any] | None = None,
    shared: bool = True,
) -> AlgorithmConfig:
    """Register an environment and set up a configuration to train on it.

    Sets the environment, the policies and their mapping, and what the spaces call for: an
    `EmbedTexts` where observations are texts, RLlib's `FlattenObservations` where they are neither
    texts nor vectors of floats, and its action-masking module (PPO only) where they are
    `Dict(observations, action_mask)`, as `ActionMask(env, key="observations")` makes them. Settings
    of the module's model, by `config.rl_module(model_config=...)`, are respected.

    Args:
        config: of the new API stack, as `PPOConfig()`.
        name: the name to register the environment by.
        env: see `register`.
        embed: embeds observations that are texts; see `EmbedTexts`.
        shared: whether the agents share one module, named "team". Otherwise each agent has a
            module by its own name.

    Returns:
        The configuration that was given.

    Raises:
        TypeError: when `config` is no `AlgorithmConfig`, or `name` no text; when observations or
            actions are texts, and no `embed` is there to help; when masks are given to another
            algorithm than PPO, or under other keys.
        ValueError: when agents that share a module have different spaces.
    """
    if not isinstance(config, AlgorithmConfig):
        raise TypeError(f"config ({config!r}) must be an AlgorithmConfig, as PPOConfig() is")
    first = register(name, env, texts=embed is not None)
    if shared:
        alike(first, "A module that agents share (shared=True)")
    spaces = {agent: first.observation_space(agent) for agent in first.possible_agents}
    masked = any(_masked(agent, space) for agent, space in spaces.items())
    if masked and not isinstance(config, PPOConfig):
        raise TypeError(
            f"config ({type(config).__name__}) must be a PPOConfig when observations carry an "
            "action mask, which RLlib's masking module knows only for PPO; leave ActionMask out "
            "and set CandidateActions(fill=...)"
        )
    # RLlib's check would play a random step, in which masked actions are errors.
    config.environment(name, disable_env_checking=True)
    config.multi_agent(
        policies={TEAM} if shared else set(spaces),
        policy_mapping_fn=partial(_module_of, shared),
    )
    if masked:
        _choose_by_masks(config)
    _preprocess(config, list(spaces.values()), masked, embed)
    return config


def register(name: str, env: Env, *, texts: bool = False) -> ParallelEnv:
    """Make an environment known to RLlib by a name, for `config.environment(name)`.

    Every environment runner gets copies of its own. Around a `TextEnv` they divide the rows among
    them, so that together they play each row once per epoch.

    Args:
        name: the name.
        env: the parallel environment, of which deep copies are made and which is pickled for remote
            runners, or a function that makes it.
        texts: whether observations may be texts; the configuration then needs an `EmbedTexts`.

    Returns:
        One of the environments, to look at.

    Raises:
        TypeError: when `name` is no text; when observations or actions are texts, which names the
            views that help.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"name ({name!r}) must be a text (str), by which RLlib finds the environment"
        )
    first = Share(env).make()
    check_spaces(first, texts)
    register_env(name, _Maker(env, texts))
    return first


class _Maker:
    """Makes the environments of one runner, which divide between them what it is to play."""

    def __init__(self, env: Env, texts: bool) -> None:
        self.env = env
        self.texts = texts
        self.share: Share | None = None

    def __call__(self, context: Any) -> MultiAgentView:
        if self.share is None:
            runners = max(1, context.num_workers or 0)
            self.share = Share(self.env, max(0, (context.worker_index or 0) - 1), runners)
        return MultiAgentView(self.share.make(), texts=self.texts, plan=self.share.plan)


def _choose_by_masks(config: AlgorithmConfig) -> None:
    # Only here, since importing it prints a warning.
    from ray.rllib.examples.rl_modules.classes import action_masking_rlm

    masking = action_masking_rlm.ActionMaskingTorchRLModule
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=masking))


def _preprocess(
    config: AlgorithmConfig,
    spaces: Sequence[Space[Any]],
    masked: bool,
    embed: Callable[[str], Any] | None,
) -> None:
    """Set the connectors that turn observations into what RLlib has networks for."""
    pieces: list[Callable[[], Any]] = []
    if embed is not None:
        pieces.append(partial(EmbedTexts, embed=embed))
    if not masked and not all(isinstance(s, Text) or _is_vector(s) for s in spaces):
        pieces.append(partial(FlattenObservations, multi_agent=True))
    if pieces:
        config.env_runners(env_to_module_connector=partial(_connectors, pieces))


def _is_vector(space: Space[Any] | None) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1 and space.dtype.kind == "f"


def _masked(agent: str, space: Space[Any]) -> bool:
    if not isinstance(space, Dict) or ACTION_MASK not in space.spaces:
        return False
    inner = space.spaces.get(OBSERVATIONS)
    if set(space.spaces) != {OBSERVATIONS, ACTION_MASK} or not (
        isinstance(inner, Text) or _is_vector(inner)
    ):
        raise TypeError(
            f"RLlib's masking module needs Dict({OBSERVATIONS!r}: a vector of floats, "
            f"{ACTION_MASK!r}); the observation space of {agent} is {space}. Use "
            f"ActionMask(EmbedObservations(...), key={OBSERVATIONS!r})"
        )
    return True


def _module_of(shared: bool, agent: str, episode: Any, **kwargs: Any) -> str:
    return TEAM if shared else agent


def _connectors(
    pieces: Sequence[Callable[[], Any]], env: Any, spaces: Any, device: Any
) -> list[Any]:
    return [piece() for piece in pieces]
