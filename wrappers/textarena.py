"""TextArena games as parallel text environments."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping
from typing import Any

from marlogue.envs.callbacks import noted
from marlogue.envs.optional import require
from marlogue.envs.reward_values import as_finite
from marlogue.envs.task import whole_number
from marlogue.wrappers.games import Turn
from marlogue.wrappers.global_random import MAX_SEED, PrivateRandom
from marlogue.wrappers.json_infos import json_infos
from marlogue.wrappers.turn_based import TurnBased

with require("textarena", extra="textarena"), PrivateRandom(0).lent():  # it draws when imported
    import textarena as ta


def textarena_env(
    game: str | ta.Env,
    num_players: int = 2,
    *,
    truncate_after: int | None = None,
    max_prompt_chars: int | None = None,
    max_completion_chars: int | None = None,
    **kwargs: Any,
) -> TurnBased:
    """Make a TextArena game a parallel text environment with the agents `player_0`, `player_1`...

    The player whose turn it is sees what TextArena's wrappers show it (`-v0`: the whole dialogue,
    `-v0-train`: mostly the rules and the board, `-v0-raw`: no wrappers; their messages one a line).
    Who waits is shown its last text again ("" before the first), and at the end everybody what
    came after it. An invalid move that the game forgives leaves the turn with the same player.
    Rewards come at the end, as the game gives them, and so do `invalid_move`, `reason` and what
    else it says of each player, in the infos.

    The game draws from generators of its own: the same seed gives the same game, the one that
    TextArena plays with that seed, and the global generators are left alone.

    Args:
        game: an id such as `"TicTacToe-v0"`, or a game that was made already, with or without
            TextArena's wrappers; it is copied.
        num_players: how many play.
        truncate_after: cut the game off after so many moves, forgiven ones included. Some games
            have no limit of their own.
        max_prompt_chars, max_completion_chars: bounds of the spaces; a longer text is an error.
        kwargs: for `textarena.make`, such as `max_turns` where the game has it.

    Raises:
        ValueError: when there is no such game, or it is not for that many players.
        TypeError: when `game` is something else, or keyword arguments come with a made game.
        Exception: what the game raises when it is made, say for lack of a word list.
    """
    played = TextArenaGame(game, num_players, **kwargs)
    return TurnBased(
        played,
        max_prompt_chars=max_prompt_chars,
        max_completion_chars=max_completion_chars,
        truncate_after=truncate_after,
        name=played.name,
    )


class TextArenaGame:
    """A TextArena game as a `TurnBasedGame`; see `textarena_env`."""

    def __init__(self, game: str | ta.Env, num_players: int = 2, **kwargs: Any) -> None:
        self.num_players = whole_number("num_players", num_players)
        self.random = PrivateRandom()
        self.name = (
            game if isinstance(game, str) else type(getattr(game, "unwrapped", game)).__name__
        )
        # Never played: some games, and all of TextArena's wrappers, remember the game before.
        self._fresh = _peel(self._make(game, kwargs))
        self.possible_agents = [f"player_{index}" for index in range(self.num_players)]
        self._shown = dict.fromkeys(range(self.num_players), "")
        self._try()

    def _make(self, game: str | ta.Env, kwargs: dict[str, Any]) -> ta.Env:
        if isinstance(game, ta.Env):
            if kwargs:
                raise TypeError(
                    f"keyword arguments ({', '.join(kwargs)}) are for textarena.make; leave them "
                    "out beside a game that was made already"
                )
            return _assemble(*copy.deepcopy(_peel(game)))
        if not isinstance(game, str):
            raise TypeError(f"game ({game!r}) must be an id of TextArena, or a textarena.Env")
        with noted(f"making {game} of TextArena"), self.random.lent():
            return ta.make(game, **kwargs)

    def _try(self) -> None:
        """Begin a game, since only then TextArena says whether so many can play it."""
        try:
            self.reset(0, None)
        except AssertionError as error:
            raise ValueError(
                f"num_players ({self.num_players}) must suit {self.name}, which says: {error}"
            ) from error
        if not isinstance(getattr(self._base, "state", None), ta.State):
            raise TypeError(f"{self.name} must have a textarena.State as its state after reset")
        self.random = PrivateRandom()  # or the seed above would be that of every first game

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> Turn:
        """Begin a game; there are no options."""
        if seed is not None:
            self.random.seed(seed)
        layers, self._base = copy.deepcopy(self._fresh)
        self._env = _assemble(layers, self._base)
        self._shown = dict.fromkeys(range(self.num_players), "")
        with self.random.lent():
            drawn = random.randrange(MAX_SEED) if seed is None else seed
            self._env.reset(num_players=self.num_players, seed=drawn)
            return self._turn(done=False, infos={})

    def step(self, text: str) -> Turn:
        """Let the current player say something."""
        mover = self._agent(self._base.state.current_player_id)
        with self.random.lent():
            done, info = self._env.step(action=text)
            return self._turn(done=bool(done), infos={mover: self._facts(mover, info)})

    def _turn(self, done: bool, infos: dict[str, dict[str, Any]]) -> Turn:
        if not done:
            player, seen = self._env.get_observation()
            agent = self._agent(player)
            text = seen if isinstance(seen, str) else self._with_messages(player, seen)
            self._shown[player] = text
            return Turn(agent, {agent: text}, infos=infos)
        rewards, facts = self._env.close()
        for player, said in (facts or {}).items():
            if player in self._shown:
                agent = self._agent(player)
                infos[agent] = {**infos.get(agent, {}), **self._facts(agent, said)}
        unread = self._base.state.observations
        shown = {
            self._agent(player): self._with_messages(player, unread.get(player, ()))
            for player in self._shown
        }
        return Turn(None, shown, self._rewards(rewards), infos=infos)

    def _facts(self, agent: str, said: Mapping[Any, Any] | None) -> dict[str, Any]:
        return json_infos(said or {}, agent, drop=True)

    def _rewards(self, rewards: Mapping[int, Any] | None) -> dict[str, float]:
        if rewards is None:
            raise ValueError(f"{self.name} ended without rewards; it cannot be trained on")
        return {
            self._agent(player): as_finite(reward, f"the reward is {reward!r}", f"player {player}")
            for player, reward in rewards.items()
        }

    def _with_messages(self, player: int, messages: Iterable[tuple[int, str, Any]]) -> str:
        names = self._base.state.role_mapping
        lines = [f"[{names.get(who, f'Player {who}')}] {text}" for who, text, *_ in messages]
        return "\n".join([self._shown[player], *lines] if self._shown[player] else lines)

    def _agent(self, player: Any) -> str:
        if player not in self._shown:
            raise ValueError(
                f"{self.name} names player {player!r}; num_players ({self.num_players}) does not "
                "reach so far; set as many as the game is for"
            )
        return self.possible_agents[player]

    def render(self) -> str:
        """The board, where the game has one to show."""
        return str(self._base.get_board_str())

    def __getstate__(self) -> dict[str, Any]:
        # TextArena's wrappers cannot be unpickled as they are, and not all of them copied.
        state = {name: value for name, value in self.__dict__.items() if name != "_env"}
        return {**state, "_base": _peel(self._env)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        layers, self._base = state["_base"]
        self._env = _assemble(layers, self._base)

    def __deepcopy__(self, memo: dict[int, Any]) -> TextArenaGame:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        memo[id(self._fresh)] = self._fresh  # may hold a dictionary of English
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin


Layers = list[tuple[type, dict[str, Any]]]


def _peel(env: ta.Env) -> tuple[Layers, ta.Env]:
    """Take TextArena's wrappers off, outermost first: their classes and attributes."""
    layers: Layers = []
    while isinstance(env, ta.Wrapper):
        attributes = {k: v for k, v in env.__dict__.items() if k != "env"}
        layers.append((type(env), attributes))
        env = env.env
    return layers, env


def _assemble(layers: Layers, env: ta.Env) -> ta.Env:
    """Put wrappers around a game."""
    for kind, attributes in reversed(layers):
        wrapper: ta.Env = object.__new__(kind)
        wrapper.__dict__.update(attributes, env=env)
        env = wrapper
    return env
