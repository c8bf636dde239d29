"""What is known about a task, asked beside the environment before each turn of a text episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.algorithms.team_guidance import Guidance, own_guidance, state_or
from marlogue.envs.callbacks import callback_name, noted, require_callable, require_result
from marlogue.envs.reward_values import as_finite
from marlogue.envs.text_env import text_env_inside


class TextGuide:
    """Calls a guidance and reads what it gives.

    Args:
        guidance: called with (state, actions, infos) before each turn. state: the prompts acted
            from, agent to text; or what ``env.state()`` gives in an environment that is not a
            `TextEnv` of ours and has one. actions: live agent to what it says. infos: those shown
            with the prompts. It gives one advantage per live agent, the higher the better: a
            mapping from agents (at least those that act), or a sequence in the order of
            ``actions``. True for the environment's own method ``guidance``.

    Raises:
        TypeError: when it cannot be called.
    """

    def __init__(self, guidance: Guidance | bool) -> None:
        if not isinstance(guidance, bool):
            require_callable(guidance, "guidance")
        self.given = guidance

    def of(self, env: ParallelEnv) -> Guidance:
        """What is called for an episode in this environment.

        Raises:
            ValueError: when the environment is to have a guidance of its own and has none.
        """
        return own_guidance(env) if isinstance(self.given, bool) else self.given

    def __call__(
        self,
        env: ParallelEnv,
        shown: Mapping[str, str],
        actions: Mapping[str, str],
        infos: Mapping[str, Any],
        acting: Sequence[str],
        where: str,
    ) -> dict[str, float]:
        """Advantages of the agents that act.

        Args:
            env: plays the episode.
            shown: the prompts.
            actions: what each live agent says.
            infos: as shown with the prompts.
            acting: those of the live agents whose turn it is.
            where: row and turn, for messages.

        Raises:
            ValueError: when an agent is missing, unknown or too many, or an advantage is no finite
                number.
            Exception: whatever the guidance raises, with a note of where.
        """
        guidance = self.of(env)
        with noted(f"calling guidance ({callback_name(guidance)}) for {where}"):
            given = guidance(_state(env, shown), dict(actions), dict(infos))
        require_result(given, "guidance", guidance)
        name = f"guidance ({callback_name(guidance)})"
        found = _by_agent(given, list(actions), name, where)
        missing = [agent for agent in acting if agent not in found]
        if missing:
            raise ValueError(f"{name} gave nothing for {missing[0]} ({where}), which acts.")
        return {
            agent: as_finite(
                found[agent], f"{name} gave {found[agent]!r}", f"{agent}, {where}", "advantages"
            )
            for agent in acting
        }


def _state(env: ParallelEnv, shown: Mapping[str, str]) -> Any:
    if text_env_inside(env) is not None:
        return dict(shown)  # its state is the same, run together in one text
    return state_or(env, dict(shown))


def _by_agent(given: Any, live: list[str], name: str, where: str) -> dict[str, Any]:
    if isinstance(given, Mapping):
        strangers = [agent for agent in given if agent not in live]
        if strangers:
            raise ValueError(
                f"{name} gave an advantage for {strangers[0]!r} ({where}); the live agents are "
                f"{', '.join(live)}."
            )
        return dict(given)
    try:
        listed = list(given)
    except TypeError:
        listed = [given]
    if len(listed) != len(live) or isinstance(given, str):
        raise ValueError(
            f"{name} gave {len(listed)} advantage(s) ({where}), which must be one for each of "
            f"{', '.join(live)}."
        )
    return dict(zip(live, listed, strict=True))
