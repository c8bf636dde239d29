"""Completions written one token per step: a token-level decision process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Discrete, Text
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.joint_text import joint_text
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.task import MAX_CHARS, flag, whole_number
from marlogue.envs.waiting import WAITS, idle_text, waits
from marlogue.wrappers.view import ACTION_MASK, View, require_texts
from marlogue.wrappers.vocabulary import as_vocabulary, require_room


class TokenByToken(View):
    """Each step every agent picks one token, `Discrete(V)`; closed texts are played as a turn.

    The end token closes an agent's text, and so does its last of `max_tokens`. An agent whose text
    is closed stays live and waits (`marlogue.envs.WAITS`); one that waits in the environment inside
    is closed from the start, with an empty text. When all texts are closed the environment inside
    is stepped with them, and its rewards and flags are passed on; until then rewards are 0.0. An
    episode of T turns so has at most T * max_tokens steps.

    Observations are texts: the prompt, and behind it what the agent has written so far. The agent's
    info gets `action_mask` (int8 array [V]): all ones, or the end token alone once the text is
    closed (token 0 where the vocabulary has no end). Where an agent's action space does not contain
    the empty text, its first token must not be the end.

    Args:
        env: an environment whose observations and actions are texts.
        vocabulary: `Words`, `TokenizerVocabulary`, or a tokenizer (all of its tokens).
        max_tokens: the most tokens of a text, the end not counted.
        separator: stands between the prompt and what was written, once something was.
        ignore_masked: let an agent whose text is closed choose anything, which is ignored: for
            learners that read no masks.

    Raises:
        TypeError: when an argument has a wrong type, or the environment does not speak in texts.
        ValueError: when a text of so many tokens may be longer than the environment takes; in a
            step, when a masked token is chosen. The environment is then as it was before.
    """

    shared: ClassVar[tuple[str, ...]] = ("vocabulary",)

    def __init__(
        self,
        env: ParallelEnv,
        vocabulary: Any,
        max_tokens: int,
        *,
        separator: str = "\n",
        ignore_masked: bool = False,
    ) -> None:
        super().__init__(env)
        require_texts(env, "TokenByToken", observations=True, actions=True)
        self.vocabulary = as_vocabulary(vocabulary)
        self.max_tokens = whole_number("max_tokens", max_tokens)
        require_room(env, self.vocabulary, self.max_tokens, "max_tokens")
        if not isinstance(separator, str):
            raise TypeError(f"separator ({separator!r}) must be a text")
        self.separator = separator
        self.ignore_masked = flag("ignore_masked", ignore_masked)
        # Agents whose text must not be empty.
        self._wordy = {a for a in env.possible_agents if not env.action_space(a).contains("")}
        self.idle = 0 if self.vocabulary.end is None else self.vocabulary.end
        agents = list(env.possible_agents)
        longest = len(separator) + self.vocabulary.longest_text(self.max_tokens)
        self.observation_spaces = {
            agent: UnicodeText(_longest(env.observation_space(agent)) + longest) for agent in agents
        }
        self.action_spaces = {agent: Discrete(len(self.vocabulary)) for agent in agents}
        state_space = getattr(env, "state_space", None)
        if isinstance(state_space, Text):
            labels = len(joint_text([""] * len(agents)))
            more = labels + len(agents) * longest
            self.state_space = UnicodeText(state_space.max_length + more)
        self.begin()

    @override
    def begin(self) -> None:
        self._prompts: dict[str, str] = {}
        self._written: dict[str, tuple[int, ...]] = {}
        self._closed: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()

    @override
    def _show(
        self, shown: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Infos]:
        self.begin()  # the environment inside has begun a turn, so texts begin, too
        return super()._show(shown, infos)

    @override
    def observe(self, agent: str, observation: str, info: dict[str, Any]) -> str:
        self._prompts[agent], self._written[agent] = observation, ()
        if agent in self.agents and waits(info):
            self._waiting |= {agent}
            self._closed |= {agent}
        info[ACTION_MASK] = self._mask(agent)
        return observation

    @override
    def check_action(self, agent: str, action: Any) -> None:
        super().check_action(agent, action)
        if self._mask(agent)[int(action)] or (agent in self._closed and self.ignore_masked):
            return
        raise ValueError(
            f"the action of {agent} ({action}, {self.vocabulary.piece(int(action))!r}) is masked, "
            f"its text {'is closed' if agent in self._closed else 'must not be empty'}; choose "
            f"where infos[{agent!r}]['action_mask'] is 1, or set ignore_masked=True for a learner "
            "that reads no masks (texts that must not be empty: give the vocabulary no end)"
        )

    @override
    def step(self, actions: Mapping[str, Any]) -> StepResult:
        """Write a token of each open text, and play a turn when all are closed.

        Raises:
            RuntimeError: when no episode is running.
            ValueError: when agents are missing or unknown, or an action is masked or outside its
                space. The environment is then as it was before.
        """
        self.check_actions(actions)
        written, closed = dict(self._written), set(self._closed)
        for agent in self.agents:
            if agent in closed:
                continue
            if int(actions[agent]) != self.vocabulary.end:
                written[agent] = (*written[agent], int(actions[agent]))
            if int(actions[agent]) == self.vocabulary.end or len(written[agent]) == self.max_tokens:
                closed.add(agent)
        if closed.issuperset(self.agents):
            return self.step_inside(
                {
                    agent: self._text(written[agent])
                    if agent not in self._waiting
                    else idle_text(self.env.action_space(agent))
                    for agent in self.agents
                }
            )
        self._written, self._closed = written, frozenset(closed)
        return StepResult(
            observations={agent: self._seen(agent) for agent in self.agents},
            rewards=dict.fromkeys(self.agents, 0.0),
            terminations=dict.fromkeys(self.agents, False),
            truncations=dict.fromkeys(self.agents, False),
            infos={agent: self._info(agent) for agent in self.agents},
        )

    def state(self) -> Any:
        """The state inside; where that is a text, with what the agents have written behind it."""
        state = self.env.state()
        if not isinstance(state, str) or not any(self._written.values()):
            return state
        texts = [self._text(self._written.get(agent, ())) for agent in self.possible_agents]
        return state + self.separator + joint_text(texts)

    def _text(self, written: tuple[int, ...]) -> str:
        return self.vocabulary.decode(written)

    def _seen(self, agent: str) -> str:
        written = self._written[agent]
        prompt = self._prompts[agent]
        return prompt + self.separator + self._text(written) if written else prompt

    def _info(self, agent: str) -> dict[str, Any]:
        info: dict[str, Any] = {ACTION_MASK: self._mask(agent)}
        return {**info, WAITS: True} if agent in self._closed else info

    def _mask(self, agent: str) -> NDArray[np.int8]:
        mask = np.ones(len(self.vocabulary), dtype=np.int8)
        if agent in self._closed:
            mask[:] = 0
            mask[self.idle] = 1
        elif agent in self._wordy and self.vocabulary.end is not None:
            mask[self.vocabulary.end] = agent not in self.agents or bool(self._written[agent])
        return mask


def _longest(space: Any) -> int:
    """The most characters of a text in a space."""
    return int(space.max_length) if isinstance(space, Text) else MAX_CHARS
