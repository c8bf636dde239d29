"""``marlogue chat``: type the prompt of a row, and the team answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from marlogue.agents import LLMPolicy, SamplingParams
from marlogue.algorithms.streams import EVAL
from marlogue.cli.errors import UsageError
from marlogue.cli.play import TEAM, prepare, read_settings
from marlogue.envs import TextEnv
from marlogue.envs.text_env import text_env_inside


def chat(words: Sequence[str]) -> None:
    """Play rows that are typed in, one a line, until the end of the input.

    Raises:
        UsageError: when the configuration cannot be used.
    """
    played, team = prepare(read_settings("chat", words, TEAM))
    args = played.args
    env = text_env_inside(played.train)
    if env is None:
        raise UsageError("chat needs an environment with a dataset (a TextEnv)")
    params = args.sampling(args.eval_temperature)
    print(f"{', '.join(played.agents)} listen; an empty line or the end of the input ends.")
    row = 0
    while prompt := _typed():
        answer(env, team, params, prompt, (args.seed, EVAL, row))
        row += 1


def answer(
    env: TextEnv,
    team: Sequence[LLMPolicy],
    params: SamplingParams,
    prompt: str,
    stream: tuple[int, ...],
) -> None:
    """Print the team's answers to one prompt, turn by turn. The last turn needs no reward."""
    shown, _ = env.reset(options={"item": {"prompt": prompt}})
    for turn in range(env.num_turns):
        actions: dict[str, Any] = {}
        for index, (agent, policy) in enumerate(zip(env.possible_agents, team, strict=True)):
            said = policy.act([shown[agent]], params, [(*stream, turn, index)])[0]
            actions[agent] = said.text
            print(f"{agent}: {said.text}", flush=True)
        if turn + 1 < env.num_turns:
            shown, _, _, _, _ = env.step(actions)
            if not env.agents:
                return


def _typed() -> str:
    if sys.stdin.isatty():
        try:
            return input("> ").strip()
        except EOFError:
            return ""
    return sys.stdin.readline().strip()
