"""AgileRL's language-model algorithms (GRPO, LLMPPO, LLMREINFORCE) on text environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.copies import Copies
from marlogue.envs.optional import require
from marlogue.envs.task import whole_number
from marlogue.wrappers.partners import Policy
from marlogue.wrappers.single_agent import SingleAgent
from marlogue.wrappers.starts import number_of_rows
from marlogue.wrappers.view import require_texts

with require("agilerl.llm_envs", extra="agilerl-llm"):
    from agilerl.llm_envs.harness import RolloutHarness

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams


class RowTask(SingleAgent):
    """One agent of a text environment, with rows that AgileRL can ask for by number.

    AgileRL begins all episodes of a group with one row and one seed. Around a `TextEnv` the seed
    alone would begin the order of rows anew, and every group would play the first one; here a seed
    without a row plays row `seed % dataset_size`.

    Args:
        env, agent, others, sampling: those of `SingleAgent`.
        system_prompt: shown to the model before the first prompt; needs a chat template.

    Attributes:
        dataset_size: the number of rows; 0 where rows cannot be asked for.

    Raises:
        TypeError: when observations or actions are no texts.
        ValueError: when a `TextEnv` streams its rows, which then have no numbers; besides those of
            `SingleAgent`.
    """

    def __init__(
        self,
        env: ParallelEnv,
        agent: str | None = None,
        others: Mapping[str, Policy] | Policy | None = None,
        *,
        sampling: SamplingParams | None = None,
        system_prompt: str = "",
    ) -> None:
        super().__init__(env, agent, others, sampling=sampling)
        require_texts(env, "RowTask", observations=True, actions=True)
        self.system_prompt = system_prompt
        self.dataset_size = number_of_rows(env)

    @override
    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        row_index: int | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        if row_index is None and seed is not None and self.dataset_size:
            row_index = seed % self.dataset_size
        if row_index is not None:
            options = {"row": row_index, **(options or {})}
        return super().reset(seed=seed, options=options)


def harness_maker(
    env: ParallelEnv | Callable[[], ParallelEnv],
    tokenizer: Any,
    *,
    agent: str | None = None,
    others: Mapping[str, Policy] | Policy | None = None,
    sampling: SamplingParams | None = None,
    system_prompt: str = "",
    max_turns: int = 1,
    **settings: Any,
) -> Callable[[], RolloutHarness]:
    """Make what `train_llm_rollout` takes as its `env_factory`.

    Args:
        env: the text environment, of which each harness gets a deep copy, or a function that makes
            it.
        tokenizer: the model's.
        agent: the agent that learns; None for the first one.
        others: the policies of the others; see `SingleAgent`.
        sampling: how others that are language models sample.
        system_prompt: shown before the first prompt; needs a chat template.
        max_turns: turns of an episode.
        settings: further arguments of `RolloutHarness`, such as `apply_chat_template=False`.

    Raises:
        TypeError, ValueError: see `RowTask`.
    """
    max_turns = whole_number("max_turns", max_turns)
    copies = Copies(env)
    made = 0

    def make() -> RolloutHarness:
        nonlocal made
        made += 1
        copies.grow(made)
        task = RowTask(
            copies[made - 1], agent, others, sampling=sampling, system_prompt=system_prompt
        )
        return RolloutHarness.local(task, tokenizer, max_turns=max_turns, **settings)

    RowTask(copies[0], agent, others, sampling=sampling)  # finds mistakes at once
    return make
