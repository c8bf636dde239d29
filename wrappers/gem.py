"""Environments of gem as parallel text environments, for one agent or a team."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.actions import check_agents
from marlogue.envs.callbacks import (
    callback_name,
    kind_of,
    noted,
    require_callable,
    shortened,
)
from marlogue.envs.declared_spaces import DeclaredSpaces
from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.optional import require
from marlogue.envs.reward_values import as_finite
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.task import whole_number
from marlogue.wrappers.games import text_bound
from marlogue.wrappers.global_random import MAX_SEED, PrivateRandom
from marlogue.wrappers.json_infos import json_infos

with require("gem", extra="gem"), PrivateRandom(0).lent():  # it draws when imported
    import gem
    from gem.core import EnvWrapper
    from gem.multiagent import MultiAgentEnv
    from gem.wrappers.observation_wrapper import ObservationWrapper

Join = Callable[[Sequence[str]], str]
Show = Callable[[str, str], str]


def gem_env(
    env: str | gem.Env,
    num_agents: int = 1,
    *,
    join: Join | None = None,
    show: Show | None = None,
    history: bool = True,
    truncate_after: int | None = None,
    max_prompt_chars: int | None = None,
    max_completion_chars: int | None = None,
    **kwargs: Any,
) -> GemEnv:
    """Make an environment of gem a parallel text environment with `agent_0`, `agent_1`, ...

    Args:
        env: an id such as `"game:GuessTheNumber-v0-easy"`, or an environment that was made (and
            wrapped) already, which is copied.
        num_agents: how many agents answer together; all are shown what gem shows, and all earn
            what it pays.
        join: makes the team's action: `join(texts)`, one text per agent in their order. Required
            with more than one agent.
        show: what an agent is shown: `show(agent, text)`, say to tell it its part.
        history: of an environment named by its id: show the whole dialogue, as gem's
            `ObservationWrapper` writes it (True), or only the newest message (False).
        truncate_after: cut the episode off after so many turns.
        max_prompt_chars, max_completion_chars: bounds of the spaces; a longer text is an error.
        kwargs: for `gem.make`.

    Raises:
        ValueError: when there is no such environment, or `join` is missing.
        TypeError: when an argument has a wrong type, or `env` is a multi-agent one of gem.
        Exception: what gem raises when it makes the environment, say for lack of a data set.
    """
    generator = PrivateRandom()
    if isinstance(env, str):
        with noted(f"making {env} of gem"), generator.lent():
            made = gem.make(env, **kwargs)
        name = env
        if history:
            made = ObservationWrapper(made, include_action=True, include_chat_template=False)
    elif isinstance(env, gem.Env) and not isinstance(env.unwrapped, MultiAgentEnv):
        if kwargs:
            raise TypeError(
                f"keyword arguments ({', '.join(kwargs)}) are for gem.make; leave them out beside "
                "an environment that was made already"
            )
        made, name = copy.deepcopy(env), type(env.unwrapped).__name__
    else:
        raise TypeError(f"env ({env!r}) must be an id of gem, or a gem.Env for one agent")
    return GemEnv(
        made,
        num_agents,
        join=join,
        show=show,
        truncate_after=truncate_after,
        max_prompt_chars=max_prompt_chars,
        max_completion_chars=max_completion_chars,
        generator=generator,
        name=name,
    )


class GemEnv(DeclaredSpaces, ParallelEnv):  # type: ignore[misc]
    """An environment of gem as a `ParallelEnv`; made by `gem_env`, which describes the arguments.

    Everybody is shown the same (but for `show`), answers in every turn, and earns what gem pays.
    Infos have `turn`, the turns so far, after a step `action`, what gem was told, and those of
    gem's own facts that JSON can express. Gem's generators are private: the same seed gives the
    same episode, and the global ones are left alone.
    """

    metadata: dict[str, Any]
    possible_agents: list[str]
    agents: list[str]
    render_mode = None

    def __init__(
        self,
        env: gem.Env,
        num_agents: int = 1,
        *,
        join: Join | None = None,
        show: Show | None = None,
        truncate_after: int | None = None,
        max_prompt_chars: int | None = None,
        max_completion_chars: int | None = None,
        generator: PrivateRandom | None = None,
        name: str = "gem",
    ) -> None:
        if whole_number("num_agents", num_agents) > 1 and join is None:
            raise ValueError(
                f"join (None) must make one action of {num_agents} texts; set it, say to "
                "lambda texts: ' '.join(texts)"
            )
        for argument, func in (("join", join), ("show", show)):
            if func is not None:
                require_callable(func, argument)
        self.env = env
        self.join, self.show = join, show
        self.truncate_after = (
            None if truncate_after is None else whole_number("truncate_after", truncate_after)
        )
        self.possible_agents = [f"agent_{index}" for index in range(num_agents)]
        self.agents = []
        shown = text_bound("max_prompt_chars", max_prompt_chars)
        said = text_bound("max_completion_chars", max_completion_chars)
        self.observation_spaces = {agent: UnicodeText(shown) for agent in self.possible_agents}
        self.action_spaces = {agent: UnicodeText(said) for agent in self.possible_agents}
        self.metadata = {"name": name, "render_modes": [], "is_parallelizable": True}
        self.random = generator or PrivateRandom()
        self._turns = 0

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, str], Infos]:
        """Start an episode; gem takes no options, so none are read."""
        if seed is not None:
            self.random.seed(seed)
        with noted(f"resetting {self} with seed {seed}"), self.random.lent():
            drawn = random.randrange(MAX_SEED) if seed is None else seed
            text, facts = self.env.reset(seed=drawn)
        self._turns = 0
        self.agents = list(self.possible_agents)
        return self._prompts(text, facts), self._infos(facts)

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Answer.

        Raises:
            RuntimeError: when no episode is running.
            ValueError: when agents are missing or unknown, a text is too long or none, or gem or a
                callback returns something else than it must.
        """
        if not self.agents:
            raise RuntimeError(f"step was called on {self} without an episode; call reset first")
        check_agents(actions, self.agents)
        for agent, said in actions.items():
            if not self.action_space(agent).contains(said):
                raise ValueError(
                    f"the action of {agent} ({shortened(said)}) must be in its action space, "
                    f"{self.action_space(agent)}"
                )
        action = self._joined([actions[agent] for agent in self.possible_agents])
        with noted(f"stepping {self} with {shortened(action)}, after {self._turns} turns"):
            with self.random.lent():
                text, paid, terminated, truncated, facts = self.env.step(action)
            reward = as_finite(paid, f"gem gave the reward {paid!r}", str(self))
        self._turns += 1
        acting = self.agents
        shown, infos = self._prompts(text, facts), self._infos({**facts, "action": action})
        terminated = bool(terminated)
        truncated = bool(truncated) or (not terminated and self._turns == self.truncate_after)
        if terminated or truncated:
            self.agents = []
        return StepResult(
            shown,
            dict.fromkeys(acting, reward),
            dict.fromkeys(acting, terminated),
            dict.fromkeys(acting, truncated),
            infos,
        )

    def _joined(self, texts: Sequence[str]) -> str:
        if self.join is None:
            return texts[0]
        with noted(f"join joined {shortened(texts)}"):
            joined = self.join(texts)
        return _checked_text(joined, f"join ({callback_name(self.join)})")

    def _prompts(self, text: Any, facts: Mapping[str, Any]) -> dict[str, str]:
        shown = _checked_text(text, f"{self}, as observation,")
        if not _writes_suffixes(self.env):
            shown = "\n".join(
                part for part in (facts.get("prefix"), shown, facts.get("suffix")) if part
            )
        prompts = {agent: self._prompt(agent, shown) for agent in self.possible_agents}
        for agent, prompt in prompts.items():
            if not self.observation_space(agent).contains(prompt):
                raise ValueError(
                    f"the prompt of {agent} has {len(prompt)} characters, too many for its space "
                    f"({self.observation_space(agent)}); raise max_prompt_chars"
                )
        return prompts

    def _prompt(self, agent: str, shown: str) -> str:
        if self.show is None:
            return shown
        with noted(f"show was called for {agent}"):
            return _checked_text(self.show(agent, shown), f"show ({callback_name(self.show)})")

    def _infos(self, facts: Mapping[str, Any]) -> Infos:
        return {
            agent: {**json_infos(facts, agent, drop=True), "turn": self._turns}
            for agent in self.possible_agents
        }

    def close(self) -> None:
        """Close the environment, where gem has something to close."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def __deepcopy__(self, memo: dict[int, Any]) -> GemEnv:
        # The user's callbacks are shared: they may hold models.
        twin = copy.copy(self)
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            if name not in ("join", "show"):
                setattr(twin, name, copy.deepcopy(value, memo))
        return twin

    def __str__(self) -> str:
        return f"GemEnv<{self.metadata['name']}>"


def _writes_suffixes(env: gem.Env) -> bool:
    """Whether gem's own wrapper puts the prefix and suffix of the info around the text."""
    while not isinstance(env, ObservationWrapper):
        if not isinstance(env, EnvWrapper):
            return False
        env = env.env
    return True


def _checked_text(text: Any, what: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"{what} must return a text (str), not {kind_of(text)}")
    return text
