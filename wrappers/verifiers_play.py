"""How a text environment is played in verifiers: tasks, the harness, and episodes."""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from pydantic import Field

from marlogue.envs.optional import require
from marlogue.envs.reward_values import as_finite
from marlogue.envs.waiting import waits
from marlogue.wrappers.partners import Asked
from marlogue.wrappers.players import FrozenAgents
from marlogue.wrappers.seats import idle_action
from marlogue.wrappers.starts import Starts, first_prompts

with require("verifiers", extra="verifiers"):
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire
with require("httpx", extra="verifiers"):
    import httpx  # type: ignore[import-not-found, unused-ignore]


class TeamData(vf.TaskData):  # type: ignore[misc]
    """A row on verifiers' wire: which episode to play.

    Its `prompt` stays unset, since each seat is shown its own.

    Fields:
        row, seed: how the episode begins; one of the two.
        prompts: agent to what it is shown first.
    """

    row: int | None = None
    seed: int | None = None
    prompts: dict[str, str] = Field(default_factory=dict)


class TeamState(vf.State):  # type: ignore[misc]
    """What a seat has done in the running episode.

    Fields:
        earned: the sum of its rewards.
        turns: how often it answered.
        finished: whether the episode came to its end for it.
    """

    earned: float = 0.0
    turns: int = 0
    finished: bool = False


class TeamTask(vf.Task[TeamData, TeamState, vf.TaskConfig]):  # type: ignore[misc]
    """A row, and what a seat's trace is worth: what the environment gave the agent."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def episode_return(self, trace: Any) -> float:
        """The sum of the agent's rewards over the episode."""
        return float(trace.state.earned)

    @vf.metric  # type: ignore[untyped-decorator]
    async def episode_turns(self, trace: Any) -> float:
        """How often the agent answered."""
        return float(trace.state.turns)

    @vf.metric  # type: ignore[untyped-decorator]
    async def finished(self, trace: Any) -> float:
        """1.0 if the episode came to its end for the agent, 0.0 if a limit or a fault cut it."""
        return float(trace.state.finished)


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """One chat completion per turn, asked for from within this process: no tools, no program."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Ask the model to go on with the conversation."""
        system, prompt = self.resolve_prompt(data)
        asked = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
        if system:
            asked.insert(0, vf.SystemMessage(content=system))
        body = {"model": ctx.model, "messages": [message_to_wire(message) for message in asked]}
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(timeout=None, verify=_certificates()) as client:
            answer = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
        # Where the provider failed verifiers has recorded why, and only wants to see it here.
        return vf.ProgramResult(int(answer.is_error), "", answer.text if answer.is_error else "")


@functools.cache
def _certificates() -> Any:
    """Read once: that takes longer than a turn, and every turn has a client of its own."""
    return httpx.create_ssl_context()


class TeamRows:
    """The half of a taskset that is the same for all environments."""

    text_env: ClassVar[ParallelEnv]
    starts: ClassVar[Starts]
    config: Any

    def load(self) -> Iterator[TeamTask]:
        """One task per row or seed, with what the agents are shown first."""
        for start, shown in first_prompts(self.text_env, self.starts):
            name = " ".join(f"{kind} {number}" for kind, number in start.items())
            yield TeamTask(TeamData(name=name, prompts=shown, **start), self.config.task)


class TeamPlay:
    """The half of an `Env` that is the same for all environments."""

    text_env: ClassVar[ParallelEnv]
    seats: ClassVar[tuple[str, ...]]
    learners: ClassVar[frozenset[str]]
    frozen: ClassVar[FrozenAgents]
    seed: ClassVar[int]
    lock: ClassVar[threading.Lock]
    played: ClassVar[Counter[int]]

    async def setup(self, agents: Any) -> None:
        """Tell verifiers whose tokens are training data."""
        for seat in self.seats:
            getattr(agents, seat).trainable = seat in self.learners

    async def run(self, task: TeamTask, agents: Any) -> None:
        """Play an episode: the environment is the user of every seat's interaction."""
        episode = _Episode(copy.deepcopy(self.text_env), self)
        await episode.begin(task.data)
        async with AsyncExitStack() as stack:
            for seat in self.seats:
                interaction = getattr(agents, seat).interaction(task)
                episode.talks[seat] = await stack.enter_async_context(interaction)
            while episode.env.agents:  # who has left may be given something until all have
                if not await episode.turn():
                    return

    async def outside(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what may take long without holding up other episodes; one call at a time, since
        reward functions and policies need not be ready for more."""

        def alone() -> Any:
            with self.lock:
                return call(*args, **kwargs)

        return await asyncio.to_thread(alone)


class _Episode:
    """One episode as it is played."""

    def __init__(self, env: ParallelEnv, play: TeamPlay) -> None:
        self.env = env
        self.play = play
        self.talks: dict[str, Any] = {}
        self.numbers = {agent: number for number, agent in enumerate(env.possible_agents)}
        self.shown: Mapping[str, str] = {}
        self.infos: Mapping[str, Any] = {}
        self.stream: tuple[int, ...] = ()
        self.turns = 0

    async def begin(self, data: TeamData) -> None:
        """Reset the environment to the row or seed."""
        options = None if data.row is None else {"row": data.row}
        origin = data.seed if data.row is None else data.row
        assert origin is not None
        # The others' random numbers: new ones for each time that an episode is played.
        self.stream = (self.play.seed, origin, self.play.played[origin])
        self.play.played[origin] += 1
        self.shown, self.infos = await self.play.outside(
            self.env.reset, seed=data.seed, options=options
        )

    async def turn(self) -> bool:
        """Play a turn; returns False when verifiers has ended a seat (a limit, a stop, a fault)."""
        asked, texts = [], {}
        for agent in self.env.agents:
            info = self.infos.get(agent, {})
            if waits(info):
                texts[agent] = idle_action(self.env.action_space(agent), info)
            elif agent in self.play.frozen.names:
                stream = (*self.stream, self.turns, self.numbers[agent])
                asked.append(Asked(agent, self.shown[agent], info, stream))
        speaking = [
            agent for agent in self.talks if agent in self.env.agents and agent not in texts
        ]
        segments = await asyncio.gather(
            *(self.talks[seat].turn(self.shown[seat]) for seat in speaking)
        )
        for seat, segment in zip(speaking, segments, strict=True):
            if segment.terminated:
                return False
            texts[seat] = segment.last_reply
            self.talks[seat].trace.state.turns += 1
        for one, answer in zip(
            asked, await self.play.outside(self.play.frozen.answer, asked), strict=True
        ):
            texts[one.agent] = answer
        self._take(await self.play.outside(self.env.step, texts))
        return True

    def _take(self, result: Sequence[Mapping[str, Any]]) -> None:
        self.shown, rewards, terminations, truncations, self.infos = result
        self.turns += 1
        for seat, talk in self.talks.items():
            reward = rewards.get(seat, 0.0)
            said = f"{self.env} gave the reward {reward!r}"
            talk.trace.state.earned += as_finite(reward, said, seat)
            if terminations.get(seat, False) or truncations.get(seat, False):
                talk.trace.state.finished = True
