"""Episodes for TRL: its dataset, and environments whose one tool is to answer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import datasets  # type: ignore[import-untyped]
import numpy as np
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.reward_values import as_finite
from marlogue.envs.runner import Start
from marlogue.envs.task import whole_number
from marlogue.wrappers.partners import Policy
from marlogue.wrappers.single_agent import SingleAgent
from marlogue.wrappers.starts import first_prompts, starts
from marlogue.wrappers.view import parallel, require_texts

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams

OVER = "The episode is over."
"""What the model is told when it has answered for the last time."""


def dataset(
    env: ParallelEnv, agents: Iterable[str] | None = None, *, seeds: Iterable[int] | None = None
) -> datasets.Dataset:
    """TRL's dataset: one entry per episode to be played and agent that learns from it.

    An entry has one column, `prompt`: a conversation of one user message with what the agent is
    shown first. Beside `role` and `content` the message has `agent`, and `row` or `seed`, by which
    the episode is begun again for each rollout.

    Args:
        env: a text environment. It is copied, not touched.
        agents: who learns; None for all agents.
        seeds: seeds of the episodes. None for the rows of the `TextEnv` inside, one episode each.

    Raises:
        TypeError: when it is no text environment, or the seeds are no integers.
        ValueError: when an agent is unknown, there are no seeds in `seeds`, or there are neither
            seeds nor rows that can be counted.
    """
    require_texts(parallel(env), "TRL", observations=True, actions=True)
    learners = list(env.possible_agents if agents is None else agents)
    if not learners or not set(learners) <= set(env.possible_agents):
        raise ValueError(f"agents ({learners}) must be some of {env.possible_agents}")
    entries = []
    for start, shown in first_prompts(env, starts(env, seeds)):
        for agent in learners:
            message = {"role": "user", "content": shown.get(agent, ""), "agent": agent, **start}
            entries.append({"prompt": [message]})
    return datasets.Dataset.from_list(entries)


def origin_of(prompt: Any) -> tuple[str, Start]:
    """The agent that learns and the start of its episode, from an entry of `dataset`.

    Raises:
        ValueError: when the entry was made by something else.
    """
    message = prompt[-1] if isinstance(prompt, list) and prompt else None
    if not isinstance(message, Mapping) or not {"agent", "content"} <= set(message):
        message = {}
    if ("row" in message) == ("seed" in message):
        raise ValueError(
            f"the prompt ({prompt!r}) must be one of marlogue.wrappers.trl.dataset; set "
            "train_dataset=dataset(env)"
        )
    if "row" in message:
        return message["agent"], Start(options={"row": message["row"]})
    return message["agent"], Start(seed=message["seed"])


class TextGame:
    """What TRL's `environment_factory` returns: one agent's episode, with `answer` as its tool.

    Args:
        env: the environment as the agent sees it; this object alone steps it.
        unfinished: added to the reward of an episode that the model left before its end.
        streams: where the seeds of the others' random numbers come from.
    """

    def __init__(
        self, env: SingleAgent, unfinished: float, streams: np.random.SeedSequence
    ) -> None:
        self._env = env
        self._unfinished = unfinished
        self._streams = streams
        self._over = True
        self._reward = 0.0
        self._failure: Exception | None = None

    def reset(self, prompt: Any = None, **_: Any) -> None:
        """Begin the episode of an entry of `dataset`. Its prompt shows the model what to do.

        Raises:
            ValueError: when the entry was made by something else, or for another agent.
        """
        agent, start = origin_of(prompt)
        if agent != self._env.agent:
            raise ValueError(
                f"the dataset lets {agent} learn, but this environment is that of "
                f"{self._env.agent}; set train_dataset=dataset(env, [{self._env.agent!r}])"
            )
        seed = start.seed
        if seed is None:  # it then names the others' random numbers only
            seed = int(self._streams.spawn(1)[0].generate_state(1)[0] >> 1)
        options = None if start.options is None else dict(start.options)
        self._env.reset(seed=seed, options=options)
        self._over, self._reward, self._failure = False, 0.0, None

    def answer(self, text: str) -> str:
        """Give your answer to what you have been asked.

        Args:
            text: The text of your answer.

        Returns:
            What you are asked next, or that the episode is over.
        """
        if self._over:
            return OVER
        if not self._env.action_space.contains(text):
            raise ValueError(f"text must be in {self._env.action_space}")
        try:
            shown, reward, terminated, truncated, _ = self._env.step(text)
        except Exception as error:
            # TRL shows what a tool raises to the model; get_reward shows it to the user.
            self._failure, self._over = error, True
            raise
        self._reward += reward
        self._over = terminated or truncated
        return OVER if self._over else str(shown)

    def get_reward(self) -> float:
        """What the agent earned in the episode.

        Raises:
            Exception: whatever the environment raised in `answer`.
        """
        if self._failure is not None:
            raise self._failure
        return self._reward + (0.0 if self._over else self._unfinished)


def environment_factory(
    env: ParallelEnv,
    agent: str | None = None,
    others: Mapping[str, Policy] | Policy | None = None,
    *,
    sampling: SamplingParams | None = None,
    unfinished: float = 0.0,
    seed: int = 0,
) -> Callable[[], TextGame]:
    """What `GRPOTrainer(environment_factory=...)` takes: one agent of a team plays by a tool.

    The model answers by calling the tool `answer`, so its chat template must know tools; the
    reward is the environment's. Use it with `train_dataset=dataset(env, [agent])`.

    Args:
        env: a text environment. It is copied, not touched.
        agent: who learns; None for the first agent.
        others: the frozen agents, see `marlogue.wrappers.single_agent.SingleAgent`.
        sampling: how an `LLMPolicy` among them samples.
        unfinished: added to the reward of an episode that the model left before its end, as by
            not calling the tool.
        seed: of the others' random numbers.

    Raises:
        TypeError, ValueError: when it is no text environment, the others are not complete, or
            `unfinished` or `seed` is no number that it can be.
    """
    require_texts(parallel(env), "TRL", observations=True, actions=True)
    original = copy.deepcopy(env)
    SingleAgent(original, agent, others, sampling=sampling)  # finds mistakes at once
    penalty = as_finite(unfinished, f"unfinished is {unfinished!r}", "environment_factory")
    streams = np.random.SeedSequence(whole_number("seed", seed, 0))

    def make() -> TextGame:
        view = SingleAgent(copy.deepcopy(original), agent, others, sampling=sampling)
        return TextGame(view, penalty, streams.spawn(1)[0])

    return make
