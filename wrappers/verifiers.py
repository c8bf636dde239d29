"""Text environments for verifiers 0.4: each agent that learns has a seat, and a trace of its own.

In verifiers an environment is a package that exports a taskset (the rows), an `Env` (how a row is
played) and a harness (what talks to the model). `plugin` makes the three out of a text environment:

    CoordinationTaskset, CoordinationEnv, ChatHarness = plugin(coordination_v0.parallel_env())
    __all__ = ["CoordinationTaskset", "CoordinationEnv", "ChatHarness"]

are the lines of a module `my_task.py`, which `vf-eval my_task` and prime-rl find by its name. In a
script, `environment` does without the module.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from pydantic import create_model

from marlogue.envs.optional import require
from marlogue.envs.task import whole_number
from marlogue.wrappers.partners import Policy
from marlogue.wrappers.players import FrozenAgents
from marlogue.wrappers.starts import starts
from marlogue.wrappers.verifiers_play import ChatHarness, TeamPlay, TeamRows, TeamTask
from marlogue.wrappers.view import parallel, require_texts

with require("verifiers", extra="verifiers"):
    import verifiers.v1 as vf

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams


class Plugin(NamedTuple):
    """What a module exports to be one of verifiers' plugins.

    Fields:
        taskset: the rows.
        env: how a row is played.
        harness: what talks to the model.
    """

    taskset: type[Any]
    env: type[Any]
    harness: type[Any]


def plugin(
    env: ParallelEnv,
    agents: Iterable[str] | None = None,
    others: Mapping[str, Policy] | Policy | None = None,
    *,
    learners: Iterable[str] | None = None,
    seeds: Iterable[int] | None = None,
    sampling: SamplingParams | None = None,
    seed: int = 0,
) -> Plugin:
    """The classes of a module that verifiers loads by its name.

    Args:
        env: a text environment. It is copied, not touched.
        agents: whom verifiers plays, each in a seat (`--env.agent-0.model ...`) with a trace of its
            own; None: all whom `others` does not name.
        others: the frozen agents, played here; see `marlogue.wrappers.single_agent.SingleAgent`.
        learners: those of the seats whose tokens are training data; None for all.
        seeds: seeds of the episodes. None for the rows of the `TextEnv` inside, one task each.
        sampling: how an `LLMPolicy` among the others samples.
        seed: of the others' random numbers.

    Raises:
        TypeError: when it is no text environment, a policy cannot be asked, or the seeds are no
            integers.
        ValueError: when agents are unknown or missing, or cannot be seats by their name, there are
            no seeds in `seeds`, or there are neither seeds nor rows that can be counted.
    """
    require_texts(parallel(env), "verifiers", observations=True, actions=True)
    named = others if isinstance(others, Mapping) else {}
    seats = tuple(env.possible_agents if agents is None else agents)
    if agents is None:
        seats = tuple(agent for agent in seats if agent not in named)
    original = copy.deepcopy(env)
    frozen = FrozenAgents(original, seats, others, sampling)
    training = frozenset(seats if learners is None else learners)
    if not training <= set(seats):
        raise ValueError(f"learners ({sorted(training)}) must be among the seats, {list(seats)}")
    config = _config(seats)
    rows = {"text_env": original, "starts": starts(original, seeds)}
    play = {
        "text_env": original,
        "seats": seats,
        "learners": training,
        "frozen": frozen,
        "seed": whole_number("seed", seed, 0),
        "lock": threading.Lock(),
        "played": Counter(),
    }

    class TeamTaskset(TeamRows, vf.Taskset[TeamTask, vf.TasksetConfig]):  # type: ignore[misc]
        """The rows of a text environment."""

    class TeamEnv(TeamPlay, vf.Env[config]):  # type: ignore[misc]
        """A text environment, with a seat per agent."""

    for made, attributes in ((TeamTaskset, rows), (TeamEnv, play)):
        for attribute, value in attributes.items():
            setattr(made, attribute, value)
    return Plugin(TeamTaskset, TeamEnv, ChatHarness)


def _config(seats: Sequence[str]) -> Any:
    """The configuration of an `Env` with these seats, which run in this process."""
    for seat in seats:
        if not seat.isidentifier() or seat.startswith("_") or hasattr(vf.EnvConfig, seat):
            raise ValueError(
                f"the agent {seat!r} must have a name that can be an option of verifiers; name it "
                "like a variable, and not like a field of verifiers' EnvConfig"
            )
    fields: dict[str, Any] = {
        seat: (vf.AgentConfig, vf.AgentConfig(runtime=vf.SubprocessConfig())) for seat in seats
    }
    return create_model("TeamEnvConfig", __base__=vf.EnvConfig, **fields)


def environment(
    name: str,
    env: ParallelEnv,
    agents: Iterable[str] | None = None,
    others: Mapping[str, Policy] | Policy | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A verifiers `Env`, ready to be served, without a module of one's own.

    Verifiers finds its plugins by the name of a module, so that one of that name is made in this
    process (and in no other: for `vf-eval` and servers write the module, see `plugin`).

    Args:
        name: of the task, as it stands in records; no module that exists.
        env, agents, others, settings: see `plugin`.
        config: fields of the `Env`'s configuration, as `{"agent_0": {"max_turns": 4}}`.

    Raises:
        TypeError, ValueError: see `plugin`.
        ValueError: when the name is taken, or no name of a module.
    """
    ours = getattr(sys.modules.get(name), "__marlogue__", False)
    if not name.isidentifier() or name != name.lower() or (not ours and _exists(name)):
        raise ValueError(
            f"name ({name!r}) must be lower-case like that of a module, and not of one that "
            "exists; choose another one"
        )
    made = plugin(env, agents, others, **settings)
    module = ModuleType(name, "A text environment for verifiers.")
    vars(module).update(made._asdict(), __marlogue__=True, __all__=list(made._fields))
    sys.modules[name] = module
    resolved = vf.resolve_env_config({"taskset": {"id": name}, **(config or {})})
    return vf.load_environment(resolved)


def _exists(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None
