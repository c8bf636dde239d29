"""The agents that do not learn: frozen policies, asked for many episodes at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.callbacks import (
    accepted_keywords,
    callback_name,
    callback_signature,
    noted,
    require_callable,
    require_result,
    shortened,
)
from marlogue.wrappers.view import holds_texts

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams

OFFERED = ("info", "rng")
"""What a callable policy gets by keyword where it names it."""


@runtime_checkable
class Answers(Protocol):
    """What answers prompts in batches, as `marlogue.agents.LLMPolicy` does."""

    def act(
        self, prompts: Sequence[str], params: SamplingParams, streams: Sequence[Sequence[int]]
    ) -> Sequence[Any]:
        """Completions (with a `text`) of prompts; see `LLMPolicy.act`."""
        ...


Policy: TypeAlias = Callable[..., Any] | Answers
"""An `LLMPolicy`, or a function from an agent's observation to its action.

A function that names them also gets `info` (the agent's info) and `rng` (a numpy `Generator` that
depends on the seed, the episode, the turn and the agent only).
"""


@dataclass(frozen=True)
class Asked:
    """One agent that has to act.

    Fields:
        agent: its name.
        observation: what it is shown.
        info: its info.
        stream: the name of its random numbers: seed, episode, turn, agent.
    """

    agent: str
    observation: Any
    info: Mapping[str, Any]
    stream: tuple[int, ...]


class Partners:
    """The frozen policies of all agents but one.

    Args:
        env: the environment that they act in.
        agent: the agent that is left out.
        others: agent to policy for each of the others, or one policy for all of them.
        sampling: how an `LLMPolicy` samples; None for `SamplingParams()`.

    Raises:
        TypeError: when a policy is neither a callable nor an `LLMPolicy`, or an `LLMPolicy` would
            be shown something else than a text.
        ValueError: when policies are missing or name no other agent.
    """

    def __init__(
        self,
        env: ParallelEnv,
        agent: str,
        others: Mapping[str, Policy] | Policy | None,
        sampling: SamplingParams | None = None,
    ) -> None:
        names = [name for name in env.possible_agents if name != agent]
        self.policies = _policies(names, others)
        self._keywords = {
            name: _check_policy(env, name, policy) for name, policy in self.policies.items()
        }
        self._spaces = {name: env.action_space(name) for name in names}
        self._sampling = sampling

    def answer(self, asked: Sequence[Asked]) -> list[Any]:
        """Their actions. All prompts of one `LLMPolicy` are answered in one batch.

        Raises:
            ValueError: when an action is not in the agent's action space.
        """
        actions: dict[int, Any] = {}
        batches: dict[int, list[int]] = {}
        for index, one in enumerate(asked):
            policy = self.policies[one.agent]
            if not callable(policy):
                batches.setdefault(id(policy), []).append(index)
            else:
                actions[index] = self._ask(policy, one)
        for indices in batches.values():
            actions.update(self._ask_together([asked[index] for index in indices], indices))
        for index, one in enumerate(asked):
            if not self._spaces[one.agent].contains(actions[index]):
                raise ValueError(
                    f"the policy of {one.agent} in others answered {shortened(actions[index])}, "
                    f"which is not in its action space, {self._spaces[one.agent]}"
                )
        return [actions[index] for index in range(len(asked))]

    def _ask(self, policy: Callable[..., Any], one: Asked) -> Any:
        offered = {
            "info": lambda: copy.deepcopy(dict(one.info)),
            "rng": lambda: np.random.default_rng(one.stream),
        }
        keywords = {name: offered[name]() for name in self._keywords[one.agent]}
        with noted(f"asking the policy of {one.agent} in others"):
            action = policy(one.observation, **keywords)
        require_result(action, f"others[{one.agent!r}]", policy)
        return action

    def _ask_together(self, asked: Sequence[Asked], indices: Sequence[int]) -> dict[int, str]:
        policy = self.policies[asked[0].agent]
        assert isinstance(policy, Answers)
        prompts, streams = [one.observation for one in asked], [one.stream for one in asked]
        with noted(f"asking the policy of {asked[0].agent} in others"):
            completions = policy.act(prompts, self._params(), streams)
        texts = [str(completion.text) for completion in completions]
        return dict(zip(indices, texts, strict=True))

    def __deepcopy__(self, memo: dict[int, Any]) -> Partners:
        return self  # the policies may be large models, and nothing here changes

    def _params(self) -> SamplingParams:
        if self._sampling is None:
            from marlogue.agents import SamplingParams  # heavy, and only needed with an LLMPolicy

            self._sampling = SamplingParams()
        return self._sampling


def _policies(names: Sequence[str], others: Any) -> dict[str, Policy]:
    if others is None:
        others = {}
    elif not isinstance(others, Mapping):
        others = dict.fromkeys(names, others)
    missing = [name for name in names if name not in others]
    unknown = [str(name) for name in others if name not in names]
    if missing or unknown:
        problems = [f"lacks {', '.join(missing)}"] if missing else []
        problems += [f"names {', '.join(unknown)}"] if unknown else []
        raise ValueError(
            f"others ({', '.join(map(str, others)) or 'none given'}) {' and '.join(problems)}; "
            f"give a policy (a function from observation to action, or an LLMPolicy) for each of "
            f"{', '.join(names) or 'no agent: there is only one'}"
        )
    return {name: others[name] for name in names}


def _check_policy(env: ParallelEnv, name: str, policy: Any) -> tuple[str, ...]:
    """Refuse what cannot act; returns the keywords that a callable takes."""
    if not callable(policy) and isinstance(policy, Answers):
        for kind in ("observation", "action"):
            space = getattr(env, f"{kind}_space")(name)
            if not holds_texts(space):
                raise TypeError(
                    f"others[{name!r}] answers texts, but the {kind} space of {name} is {space}; "
                    "give a function from observation to action instead"
                )
        return ()
    require_callable(policy, f"others[{name!r}]")
    if isinstance(policy, type):
        raise TypeError(
            f"others[{name!r}] ({callback_name(policy)}) is a class; pass an object made of it"
        )
    signature = callback_signature(policy)
    return () if signature is None else accepted_keywords(policy, signature, OFFERED)
