"""A conformance test for text environments, ours and anyone's.

PettingZoo's own tests accept an environment whose observations are outside its spaces, or that is
reproducible for one step only. What a learner of text policies relies on is checked here.
"""

from __future__ import annotations

import copy
import json
import math
import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gymnasium.spaces import Space
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.repeat_checks import check_copies, check_seeding
from marlogue.envs.trial import ConformanceError, Trial

SAYABLE = (
    "two words",
    "",
    "a new\nline",
    "naïve",
    "\N{SLIGHTLY SMILING FACE}",
    "\N{REPLACEMENT CHARACTER}",
)
"""What a language model may say: every action space must contain it, if it is not too long."""


def check_text_env(
    env: ParallelEnv,
    *,
    seed: int = 0,
    max_turns: int = 1000,
    leaving: bool = False,
    skip: Collection[str] = (),
) -> None:
    """Play episodes of a parallel text environment with sampled actions, and check everything.

    Args:
        env: the environment; it is reset and played, and left in a finished episode.
        seed: of the episodes.
        max_turns: an episode that is longer counts as endless.
        leaving: allow agents to end before the others, or in another way (terminated, truncated).
        skip: names of checks to leave out, keys of `CHECKS`.

    Raises:
        ConformanceError: (an `AssertionError`) at the first fault; says what is wrong, and where.
        ValueError: when `skip` names no check.
    """
    unknown = sorted(set(skip) - set(CHECKS))
    if unknown:
        raise ValueError(f"skip ({', '.join(unknown)}) must name checks: {', '.join(CHECKS)}")
    trial = Trial(env, seed, max_turns, leaving)
    for name, check in CHECKS.items():
        if name not in skip:
            check(trial)


def check_interface(trial: Trial) -> None:
    """It is a `ParallelEnv` with named agents and one space object per agent and kind."""
    env = trial.env
    trial.require(isinstance(env, ParallelEnv), "it must be a pettingzoo.ParallelEnv")
    agents = getattr(env, "possible_agents", None)
    trial.require(
        isinstance(agents, list) and bool(agents) and all(isinstance(a, str) for a in agents),
        f"possible_agents ({agents!r}) must be a list of names",
    )
    assert isinstance(agents, list)
    trial.require(len(set(agents)) == len(agents), f"possible_agents ({agents}) must be unique")
    for kind in ("observation_space", "action_space"):
        for agent in agents:
            space = getattr(env, kind)(agent)
            trial.require(isinstance(space, Space), f"{kind}({agent!r}) must be a gymnasium Space")
            trial.require(
                space is getattr(env, kind)(agent),
                f"{kind}({agent!r}) must be the same object at every call, or seeding it is lost",
            )


def check_containment(trial: Trial) -> None:
    """Spaces contain every observation, and whatever a language model may say."""
    for agent in trial.env.possible_agents:
        space = trial.env.action_space(agent)
        longest = getattr(space, "max_length", math.inf)
        for text in SAYABLE:
            trial.require(
                len(text) > longest or space.contains(text),
                f"action_space({agent!r}) ({space}) does not contain {text!r}, which a model may "
                "say; use marlogue.envs.UnicodeText",
            )
        sample = space.sample()
        trial.require(
            isinstance(sample, str) and space.contains(sample),
            f"action_space({agent!r}) samples {sample!r}, which must be a text that it contains",
        )
    shown, _ = trial.reset()
    _require_contained(trial, shown, trial.env.agents, "reset")
    for turn, step in enumerate(trial.steps()):
        _require_contained(trial, step.parts["observations"], step.acting, f"turn {turn}")


def _require_contained(
    trial: Trial, shown: Mapping[str, Any], agents: Collection[str], when: str
) -> None:
    for agent in agents:
        trial.require(agent in shown, f"{agent} got no observation at {when}")
        space = trial.env.observation_space(agent)
        trial.require(
            isinstance(shown[agent], str) and space.contains(shown[agent]),
            f"observation_space({agent!r}) ({space}) does not contain the observation at {when}: "
            f"{shown[agent]!r}",
        )


def check_reset(trial: Trial) -> None:
    """Reset takes seed and options, tolerates unknown options, and brings all agents back."""
    for _ in range(2):
        returned = trial.reset(options={"an unknown option": 1})
        agents = list(trial.env.agents)
        trial.require(bool(agents), "agents must not be empty after reset")
        trial.require(
            set(agents) <= set(trial.env.possible_agents),
            f"agents ({agents}) must be among possible_agents ({trial.env.possible_agents})",
        )
        for name, part in zip(("observations", "infos"), returned, strict=True):
            missing = [agent for agent in agents if agent not in part]
            trial.require(not missing, f"the {name} of reset lack {', '.join(missing)}")
        for _ in trial.steps():
            pass


def check_end_flags(trial: Trial) -> None:
    """Flags are bools, agree with `agents`, and are the same for all agents."""
    trial.reset()
    for turn, step in enumerate(trial.steps()):
        for name in ("terminations", "truncations"):
            flags = step.parts[name]
            trial.require(
                set(flags) == set(step.acting),
                f"the {name} of turn {turn} ({flags}) must have a flag of each agent that acted "
                f"({', '.join(step.acting)}) and of nobody else",
            )
            wrong = [agent for agent, value in flags.items() if not isinstance(value, bool)]
            trial.require(not wrong, f"the {name} of turn {turn} ({flags}) must be bools")
        ended = {
            agent: (step.parts["terminations"][agent], step.parts["truncations"][agent])
            for agent in step.acting
        }
        live = [agent for agent, flags in ended.items() if not any(flags)]
        trial.require(
            set(live) == set(step.live),
            f"agents ({step.live}) after turn {turn} must be those that are neither terminated nor "
            f"truncated ({live})",
        )
        trial.require(
            trial.leaving or len(set(ended.values())) == 1,
            f"the agents' (termination, truncation) flags of turn {turn} differ ({ended}); pass "
            "leaving=True if agents are meant to end at different times",
        )


def check_after_end(trial: Trial) -> None:
    """A step after the end is an error or has an empty result; it revives nobody."""
    trial.reset()
    for _ in trial.steps():
        pass
    actions = {a: trial.env.action_space(a).sample() for a in trial.env.possible_agents}
    try:
        returned = trial.env.step(actions)
    except Exception:
        returned = ()
    trial.require(
        not any(returned), f"a step after the end returned {returned!r}; it must be an error"
    )
    trial.require(not trial.env.agents, "a step after the end revived agents")


def check_rewards(trial: Trial) -> None:
    """Every agent that acted gets a finite number, the last turn included."""
    trial.reset()
    for turn, step in enumerate(trial.steps()):
        rewards = step.parts["rewards"]
        when = f"turn {turn}" + ("" if step.live else ", the last one")
        trial.require(
            set(rewards) == set(step.acting),
            f"the rewards of {when} ({rewards}) must be those of the agents that acted "
            f"({', '.join(step.acting)})",
        )
        for agent, reward in rewards.items():
            trial.require(
                isinstance(reward, numbers.Real) and math.isfinite(reward),
                f"the reward of {agent} in {when} ({reward!r}) must be a finite number",
            )


def check_infos(trial: Trial) -> None:
    """Infos are JSON, one of each agent."""
    _, infos = trial.reset()
    _require_json(trial, infos, trial.env.agents, "reset")
    for turn, step in enumerate(trial.steps()):
        _require_json(trial, step.parts["infos"], step.acting, f"turn {turn}")


def _require_json(
    trial: Trial, infos: Mapping[str, Any], agents: Collection[str], when: str
) -> None:
    for agent in agents:
        trial.require(
            isinstance(infos.get(agent), dict),
            f"the info of {agent} at {when} ({infos.get(agent)!r}) must be a dict",
        )
    for key, info in infos.items():
        try:
            json.dumps(info, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConformanceError(
                f"{trial.env}: infos[{key!r}] at {when} must be JSON-serialisable: {error}"
            ) from error


def check_fresh_dicts(trial: Trial) -> None:
    """Nothing that was returned changes later, or is returned again."""
    shown, infos = trial.reset()
    returned: list[Any] = [shown, infos, *infos.values()]
    before = copy.deepcopy(returned)
    for turn, step in enumerate(trial.steps()):
        parts = [*step.parts.values(), *step.parts["infos"].values()]
        again = [part for part in parts if any(part is earlier for earlier in returned)]
        trial.require(not again, f"turn {turn} returned a dict again that was returned before")
        trial.require(returned == before, f"turn {turn} changed a dict that was returned before")
        returned += parts
        before = copy.deepcopy(returned)


def check_state(trial: Trial) -> None:
    """Where there is a `state_space`, it contains every state."""
    space = getattr(trial.env, "state_space", None)
    if space is None:
        return
    trial.reset()
    moments = ["reset"]
    while True:
        state = trial.env.state()
        trial.require(
            space.contains(state),
            f"state_space ({space}) does not contain the state at {moments[-1]}: {state!r}",
        )
        if not trial.env.agents:
            return
        trial.step()
        moments.append(f"turn {len(moments) - 1}")


CHECKS: dict[str, Callable[[Trial], None]] = {
    "interface": check_interface,
    "containment": check_containment,
    "reset": check_reset,
    "end_flags": check_end_flags,
    "after_end": check_after_end,
    "rewards": check_rewards,
    "infos": check_infos,
    "fresh_dicts": check_fresh_dicts,
    "seeding": check_seeding,
    "copies": check_copies,
    "state": check_state,
}
"""The checks by name, in the order in which `check_text_env` makes them."""
