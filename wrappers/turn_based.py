"""Games in which one agent moves at a time, as parallel text environments."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.actions import check_agents
from marlogue.envs.callbacks import kind_of, noted, shortened
from marlogue.envs.declared_spaces import DeclaredSpaces
from marlogue.envs.episodes import Infos, StepResult
from marlogue.envs.reward_values import as_finite
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.task import whole_number
from marlogue.envs.waiting import WAITS
from marlogue.wrappers.games import AecGame, Turn, TurnBasedGame, text_bound

__all__ = ["Turn", "TurnBased", "TurnBasedGame"]


class TurnBased(DeclaredSpaces, ParallelEnv):  # type: ignore[misc]
    """A game in which one agent moves at a time, as a `ParallelEnv` that every learner can step.

    All agents are live until the game ends for them. While it is not its turn an agent's info says
    `"waits": True` (`marlogue.envs.WAITS`): it is shown what there is to see, and whatever it does
    is ignored (say ""). Rewards are passed on in the turn in which they are given, whoever moved.
    Infos also have `turn`, the moves so far.

    Args:
        game: a `TurnBasedGame`, or a PettingZoo `AECEnv` whose observations and actions are texts.
        max_prompt_chars, max_completion_chars: bounds of the spaces of a `TurnBasedGame`; a longer
            text is an error. An `AECEnv` brings its own spaces.
        truncate_after: cut the episode off after so many moves (no limit if None).
        name: name of the environment in its metadata.

    Raises:
        TypeError: when `game` is neither, or its observations and actions are not texts.
        ValueError: when a bound is out of range, or two agents have one name.
    """

    metadata: dict[str, Any]
    possible_agents: list[str]
    agents: list[str]

    def __init__(
        self,
        game: TurnBasedGame | AECEnv,
        *,
        max_prompt_chars: int | None = None,
        max_completion_chars: int | None = None,
        truncate_after: int | None = None,
        name: str | None = None,
    ) -> None:
        self.game: TurnBasedGame
        if isinstance(game, AECEnv):
            if max_prompt_chars is not None or max_completion_chars is not None:
                raise ValueError(
                    f"max_prompt_chars ({max_prompt_chars}) and max_completion_chars "
                    f"({max_completion_chars}) must be None around an AECEnv, which brings its "
                    "own spaces"
                )
            self.game = aec = AecGame(game)
            self.observation_spaces, self.action_spaces = aec.spaces()
        elif isinstance(game, TurnBasedGame):
            self.game = game
            shown = text_bound("max_prompt_chars", max_prompt_chars)
            said = text_bound("max_completion_chars", max_completion_chars)
            self.observation_spaces = {a: UnicodeText(shown) for a in game.possible_agents}
            self.action_spaces = {a: UnicodeText(said) for a in game.possible_agents}
        else:
            raise TypeError(
                f"game ({game!r}) must have possible_agents, reset and step, as in "
                "marlogue.wrappers.turn_based.TurnBasedGame, or be a PettingZoo AECEnv"
            )
        self.truncate_after = (
            None if truncate_after is None else whole_number("truncate_after", truncate_after)
        )
        self.possible_agents = list(self.game.possible_agents)
        if len(set(self.possible_agents)) < len(self.possible_agents):
            raise ValueError(
                f"possible_agents ({self.possible_agents}) of {type(game).__name__} must be "
                "different; give each agent a name of its own"
            )
        self.agents = []
        self.render_mode = getattr(game, "render_mode", None)
        own = dict(getattr(game, "metadata", None) or {"render_modes": []})
        self.metadata = {**own, "name": name or own.get("name") or type(game).__name__}
        self._mover: str | None = None
        self._shown: dict[str, str] = {}
        self._turns = 0

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, str], Infos]:
        """Start a game; seed and options are passed on to it.

        Raises:
            TypeError: when the game returns no `Turn`.
            ValueError: when the game shows or names what it must not, or gives a reward before the
                first move.
        """
        self.agents, self._mover, self._turns = [], None, 0
        self._shown = dict.fromkeys(self.possible_agents, "")
        with noted(f"resetting {self} with seed {seed}"):
            turn = self.game.reset(seed, options)
            self._take(turn, live=self.possible_agents)
        if any(turn.rewards.values()):
            raise ValueError(
                f"{self} gave rewards ({dict(turn.rewards)}) before the first move, which no agent "
                "can have earned; give them in the turn after a move"
            )
        if turn.agent is None:
            raise ValueError(f"{self} was over before the first move; give it another seed")
        self.agents = [
            agent
            for agent in self.possible_agents
            if agent not in turn.terminated and agent not in turn.truncated
        ]
        return {agent: self._shown[agent] for agent in self.agents}, self._infos(turn, self.agents)

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Play what the agent whose turn it is says.

        Args:
            actions: for each live agent what it says; only the mover's is read.

        Raises:
            RuntimeError: when no game is running.
            TypeError: when the game returns no `Turn`.
            ValueError: when agents are missing or unknown, the mover's action is outside its space,
                or the game shows or names what it must not.
        """
        if self._mover is None:
            raise RuntimeError(
                f"step was called on {self} without a running game; call reset first"
            )
        check_agents(actions, self.agents)
        mover, acting = self._mover, self.agents
        said, space = actions[mover], self.action_space(mover)
        if not space.contains(said):
            raise ValueError(
                f"the action of {mover} ({shortened(said)}) must be in its action space, {space}"
            )
        with noted(f"{mover} moves in {self}, after {self._turns} moves"):
            turn = self.game.step(said)
            self._take(turn, live=acting)
        self._turns += 1
        return self._result(turn, acting)

    def _result(self, turn: Turn, acting: list[str]) -> StepResult:
        over = turn.agent is None
        truncated = {agent for agent in acting if agent in turn.truncated}
        terminated = {
            agent
            for agent in acting
            if agent in turn.terminated or (over and agent not in truncated)
        }
        if self._turns == self.truncate_after:
            truncated |= set(acting) - terminated
        self.agents = [a for a in acting if a not in terminated and a not in truncated]
        self._mover = turn.agent if self.agents else None
        return StepResult(
            {agent: self._shown[agent] for agent in acting},
            {agent: float(turn.rewards.get(agent, 0.0)) for agent in acting},
            {agent: agent in terminated for agent in acting},
            {agent: agent in truncated for agent in acting},
            self._infos(turn, acting),
        )

    def _take(self, turn: Turn, live: Collection[str]) -> None:
        """Check what a game says, and remember what it shows."""
        if not isinstance(turn, Turn):
            raise TypeError(
                f"the game returned {kind_of(turn)}, but its reset and step must return a "
                "marlogue.wrappers.turn_based.Turn"
            )
        ended = {*turn.terminated, *turn.truncated}
        if turn.agent is not None and (turn.agent not in live or turn.agent in ended):
            raise ValueError(
                f"the game says that it is the turn of {turn.agent!r}, which must be one of the "
                f"agents that are left ({', '.join(a for a in live if a not in ended)}), or None"
            )
        for said in (turn.observations, turn.rewards, ended):
            unknown = [agent for agent in said if agent not in live]
            if unknown:
                raise ValueError(f"the game names {unknown}; the live agents are {list(live)}")
        for agent, text in turn.observations.items():
            if not self.observation_space(agent).contains(text):
                raise ValueError(
                    f"the game shows {agent} {shortened(text)}, which must be in its observation "
                    f"space ({self.observation_space(agent)}); raise max_prompt_chars, or mend the "
                    "game"
                )
        for agent, reward in turn.rewards.items():
            as_finite(reward, f"the game gave the reward {reward!r}", agent)
        self._shown.update(turn.observations)
        self._mover = turn.agent

    def _infos(self, turn: Turn, agents: Collection[str]) -> Infos:
        return {
            agent: {
                **copy.deepcopy(dict(turn.infos.get(agent, {}))),
                WAITS: agent in self.agents and agent != self._mover,
                "turn": self._turns,
            }
            for agent in agents
        }

    def render(self) -> Any:
        """What the game's own `render` returns.

        Raises:
            NotImplementedError: when it has none.
        """
        render = getattr(self.game, "render", None)
        if render is None:
            raise NotImplementedError(f"{self} cannot be rendered: its game has no render method")
        return render()

    def close(self) -> None:
        """Close the game, where it has something to close."""
        close = getattr(self.game, "close", None)
        if close is not None:
            close()

    def __str__(self) -> str:
        return f"TurnBased<{self.metadata['name']}>"
