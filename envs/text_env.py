"""The text environment: a PettingZoo `ParallelEnv` that shows prompts and takes completions."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import logger
from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.aec import to_aec, to_raw_aec
from marlogue.envs.declared_spaces import DeclaredSpaces
from marlogue.envs.episodes import (
    EpisodeState,
    Infos,
    Origin,
    StepResult,
    advance,
    begin,
    first_infos,
    make_origin,
    observations,
    state_text,
)
from marlogue.envs.formatters import Formatter
from marlogue.envs.joint_text import joint_text
from marlogue.envs.reward_settings import OnRewardError, RewardBackend, RewardSettings
from marlogue.envs.rewards import RewardFunc, RewardProcessor
from marlogue.envs.rows import Dataset, RowOrder, checked_row
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.task import flag, text_task, whole_number
from marlogue.envs.transcript import heading, transcript, turn_text
from marlogue.envs.transitions import ExternalTransition

RENDER_MODES = ("human", "ansi")


class TextEnv(DeclaredSpaces, ParallelEnv):  # type: ignore[misc]
    """A team of agents answers prompts, turn by turn, and is rewarded for what it wrote together.

    An observation is the agent's prompt (str), an action its completion (str). An episode plays
    one row of the dataset. Rows, agents and turns are counted from 0.

    Args:
        dataset: the rows: a list of dicts, `datasets.Dataset`, any sequence of dicts,
            `datasets.IterableDataset`, or another iterable that can be iterated again.
        reward_func: `reward_func(completions_of_agent_0, completions_of_agent_1, ...)`, each a
            list with one completion per joint action; gets `prompts` and `batch_items` by
            keyword if it names them. See `marlogue.envs.rewards` and, for what it may return,
            `marlogue.envs.reward_values.read_rewards`. An `async def` is awaited, the calls of all
            open episodes together.
        formatters: makes prompts from rows: None (the row's `prompt`), one callable, or one per
            agent. See `marlogue.envs.formatters.Formatters`.
        external_transition: makes the prompts of the later turns; required when `num_turns > 1`.
            See `marlogue.envs.transitions.Transition`.
        num_agents: number of agents, 2 by default; they are named `agent_0`, `agent_1`, ...
        agents: names of the agents, instead of `num_agents`.
        num_turns: turns of an episode. The last one is a termination, not a truncation.
        reward_processor: function from float to float, applied to each agent's reward. See
            `RewardProcessors`.
        reward_timeout, reward_workers, reward_backend, on_reward_error, max_dropped_share: where
            reward calls are made, and what becomes of those that fail. See
            `marlogue.envs.reward_settings.RewardSettings`.
        early_termination_threshold: a turn whose mean processed reward, over the agents that got
            one, is strictly above it ends the episode. None: nothing ends early.
        external_prompt_passthrough: show the transition's prompts as they are, instead of passing
            them through the formatters.
        max_prompt_chars, max_completion_chars: bounds of the spaces. A longer text is an error,
            never cut.
        shuffle: take the rows in a drawn order, another one in each epoch.
        render_mode: `"human"` prints each turn as it is played, `"ansi"` makes `render` return the
            transcript.
        name: name of the environment in its metadata.

    Infos are JSON-serialisable: for each agent `turn` (turns played so far), `row`, `item` (those
    of the row's fields that JSON can express), and after a step `raw_reward`, `reward` and
    `abstained`. Where the reward function abstained (None), the agent's reward is 0.0 and its info
    says so; where its reward was dropped, `reward_error` is there too, and holds the error with its
    traceback. `infos["__common__"]` holds facts about the whole team.

    Raises:
        TypeError: when an argument has a wrong type, or a callback cannot be called as it must.
        ValueError: when a value is out of range, or arguments do not go together.
    """

    metadata: dict[str, Any]
    possible_agents: list[str]
    agents: list[str]

    def __init__(
        self,
        dataset: Dataset,
        reward_func: RewardFunc,
        *,
        formatters: Formatter | Sequence[Formatter] | None = None,
        external_transition: ExternalTransition | None = None,
        num_agents: int | None = None,
        agents: Sequence[str] | None = None,
        num_turns: int = 1,
        reward_processor: RewardProcessor | None = None,
        reward_timeout: float | None = None,
        reward_workers: int = 0,
        reward_backend: RewardBackend = "thread",
        on_reward_error: OnRewardError = "raise",
        max_dropped_share: float = 0.2,
        early_termination_threshold: float | None = None,
        external_prompt_passthrough: bool = False,
        max_prompt_chars: int | None = None,
        max_completion_chars: int | None = None,
        shuffle: bool = False,
        render_mode: str | None = None,
        name: str = "text_env_v0",
    ) -> None:
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ValueError(f"render_mode ({render_mode!r}) must be None, 'human' or 'ansi'")
        self.task = text_task(
            dataset,
            reward_func,
            formatters=formatters,
            external_transition=external_transition,
            num_agents=num_agents,
            agents=agents,
            num_turns=num_turns,
            reward_processor=reward_processor,
            reward_settings=RewardSettings(
                reward_timeout, reward_workers, reward_backend, on_reward_error, max_dropped_share
            ),
            early_termination_threshold=early_termination_threshold,
            external_prompt_passthrough=external_prompt_passthrough,
            max_prompt_chars=max_prompt_chars,
            max_completion_chars=max_completion_chars,
        )
        self.shuffle = flag("shuffle", shuffle)
        self.order = self._new_order(secrets.randbits(32))
        self.render_mode = render_mode
        self.metadata = {
            "name": name,
            "render_modes": list(RENDER_MODES),
            "is_parallelizable": True,
        }
        self.possible_agents = list(self.task.agents)
        self.agents = []
        self._make_spaces()
        self._state: EpisodeState | None = None

    def _make_spaces(self) -> None:
        prompts, completions = self.task.max_prompt_chars, self.task.max_completion_chars
        self.observation_spaces = {a: UnicodeText(prompts) for a in self.possible_agents}
        self.action_spaces = {a: UnicodeText(completions) for a in self.possible_agents}
        labels = len(joint_text([""] * len(self.possible_agents)))
        self.state_space = UnicodeText(labels + len(self.possible_agents) * prompts)

    @property
    def num_turns(self) -> int:
        """Turns of an episode that does not end early."""
        return self.task.num_turns

    @property
    def dataset(self) -> Dataset:
        """The dataset, as it was given."""
        return self.task.rows.source

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, str], Infos]:
        """Start an episode on the next row.

        Args:
            seed: starts the order of the rows anew (from the first row, or from the first one of
                the order drawn with this seed), so that the same seed gives the same episodes.
            options: `{"row": i}` plays that row; `{"item": {...}}` plays a row that need not be
                in the dataset (`row` beside it is only its number in infos). Neither moves the
                order on. Other keys are ignored.

        Returns:
            Agent to prompt, and the infos.

        Raises:
            TypeError: when a row is not a dict.
            ValueError: when there is no such row, or a callback broke its contract.
        """
        state = begin(self.task, self.next_origin(seed, options))
        self._state, self.agents = state, list(self.possible_agents)
        if self.render_mode == "human":
            print(heading(state))
        return observations(self.task, state), first_infos(self.task, state)

    def next_origin(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Origin:
        """Choose the row of the next episode, as `reset` does, without starting one."""
        if seed is not None:
            self.order = self._new_order(seed)
        options = options or {}
        row = options.get("row")
        item = options.get("item")
        if item is not None:
            number = None if row is None else whole_number("row", row, 0)
            return make_origin(checked_row(item, None), number)
        if row is not None:
            return make_origin(self.task.rows.read(row), int(row))
        index, taken = self.order.take()
        return make_origin(taken, index)

    def _new_order(self, seed: int) -> RowOrder:
        return RowOrder(self.task.rows, shuffle=self.shuffle, seed=seed)

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Play one turn.

        Args:
            actions: for each agent its completion.

        Returns:
            Observations, rewards, terminations, truncations and infos, in fresh dicts. At the end
            of an episode the observations are the last prompts, and `agents` is empty.

        Raises:
            RuntimeError: when no episode is running.
            TypeError: when an action is not a str.
            ValueError: when agents are missing or unknown, a text is too long, or a callback
                broke its contract. The environment is then as it was before the step.
        """
        return step_many([self], [actions])[0]

    def state(self) -> str:
        """The joint history as text, in the form of `joint_text`.

        Raises:
            RuntimeError: before the first reset.
        """
        return state_text(self._started("state"))

    def render(self) -> str | None:
        """Print (`human`) or return (`ansi`) the transcript of the episode so far."""
        if self.render_mode is None:
            logger.warn('render() does nothing without a render_mode; pass "human" or "ansi"')
            return None
        text = transcript(self.task, self._started("render"))
        if self.render_mode == "ansi":
            return text
        print(text)
        return None

    def close(self) -> None:
        """End the workers of the reward function; a later step begins them again."""
        self.task.close()

    def _started(self, method: str) -> EpisodeState:
        if self._state is None:
            raise RuntimeError(f"{method} was called before reset; call reset first")
        return self._state

    def _running(self) -> EpisodeState:
        state = self._started("step")
        if state.over:
            raise RuntimeError(
                f"step was called on a finished episode ({len(state.turns)} turn(s) played); "
                "call reset first"
            )
        return state

    def _enter(self, state: EpisodeState) -> None:
        self._state = state
        self.agents = [] if state.over else list(self.possible_agents)
        if self.render_mode == "human":
            print(turn_text(self.task, state, len(state.turns) - 1))

    def __deepcopy__(self, memo: dict[int, Any]) -> TextEnv:
        # Episode and task are never changed in place: only what this object changes is copied.
        twin = copy.copy(self)
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            if name not in ("task", "_state"):
                setattr(twin, name, copy.deepcopy(value, memo))
        return twin


def text_env_inside(env: Any) -> TextEnv | None:
    """The text environment of ours that `env` is or wraps; None where there is none, and for a
    function that makes environments."""
    if not isinstance(env, ParallelEnv):
        return None
    inner = env.unwrapped
    return inner if isinstance(inner, TextEnv) else None


def step_many(envs: Sequence[TextEnv], actions: Sequence[Mapping[str, str]]) -> list[StepResult]:
    """Step several environments that share one definition, with as few reward calls as may be.

    Args:
        envs: copies of one environment, each with a running episode.
        actions: for each of them agent to completion.

    Raises:
        ValueError: when the environments do not share their definition.
    """
    if not envs:
        return []
    task = envs[0].task
    if any(env.task is not task for env in envs):
        raise ValueError("step_many needs copies of one environment; these are different ones")
    states = [env._running() for env in envs]
    results = advance(task, states, actions)
    for env, (state, _) in zip(envs, results, strict=True):
        env._enter(state)
    return [result for _, result in results]


def parallel_env(**kwargs: Any) -> TextEnv:
    """Make a `TextEnv`; the arguments are those of the class."""
    return TextEnv(**kwargs)


def raw_env(**kwargs: Any) -> AECEnv:
    """Make a `TextEnv` in PettingZoo's AEC form, without checks of the order of calls."""
    return to_raw_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """Make a `TextEnv` in PettingZoo's AEC form."""
    return to_aec(parallel_env(**kwargs))
