"""Prompts and completions as arrays of token indices."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import logger
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from typing_extensions import override

from marlogue.envs.callbacks import noted
from marlogue.envs.task import whole_number
from marlogue.envs.waiting import idle_text, waits
from marlogue.wrappers.view import View, require_texts
from marlogue.wrappers.vocabulary import as_vocabulary, require_room

LARGE_HEAD = 250_000
"""From so many outputs of a policy on, a warning says what they cost."""


class TokenObservations(View):
    """Prompts become `Box(0, high, (length,), int64)`: indices of tokens, filled up with `pad`.

    The agent's info gets `prompt_tokens`, the number of tokens that are not filling (which may be a
    token that also occurs in prompts), and with `prompt_overflow="truncate"` also
    `prompt_tokens_cut`, the number of tokens that were left out at the start.

    Args:
        env: an environment whose observations are texts.
        vocabulary: `Words`, `TokenizerVocabulary`, or a tokenizer (all of its tokens).
        length: tokens per observation.
        pad: the index that fills up; None: the vocabulary's own (a tokenizer's padding token, or
            its end), or where there is none one index more, `len(vocabulary)`.
        pad_side: `"right"` or `"left"` of the prompt.
        prompt_overflow: `"error"`, or `"truncate"`, which shows the last `length` tokens of a
            prompt that has more.

    Attributes:
        pad: the index that fills up.

    Raises:
        TypeError: when an argument has a wrong type, or observations are not texts.
        ValueError: when an option is unknown; in a step, when a prompt is too long, or has parts
            that are not in the vocabulary.
    """

    shared: ClassVar[tuple[str, ...]] = ("vocabulary",)

    def __init__(
        self,
        env: ParallelEnv,
        vocabulary: Any,
        length: int,
        *,
        pad: int | None = None,
        pad_side: str = "right",
        prompt_overflow: str = "error",
    ) -> None:
        super().__init__(env)
        require_texts(env, "TokenObservations", observations=True, actions=False)
        self.vocabulary = as_vocabulary(vocabulary)
        self.length = whole_number("length", length)
        if pad_side not in ("right", "left"):
            raise ValueError(f"pad_side ({pad_side!r}) must be 'right' or 'left'")
        if prompt_overflow not in ("error", "truncate"):
            raise ValueError(f"prompt_overflow ({prompt_overflow!r}) must be 'error' or 'truncate'")
        self.pad_side, self.prompt_overflow = pad_side, prompt_overflow
        tokens = len(self.vocabulary)
        own = tokens if self.vocabulary.pad is None else self.vocabulary.pad
        self.pad = own if pad is None else whole_number("pad", pad, 0)
        if self.pad > tokens:
            raise ValueError(
                f"pad ({pad}) must be an index of the vocabulary, 0 to {tokens - 1}, or the next "
                f"one, {tokens}"
            )
        high = max(tokens - 1, self.pad)
        self.observation_spaces = {
            agent: Box(0, high, (self.length,), np.int64) for agent in env.possible_agents
        }

    @override
    def observe(self, agent: str, observation: str, info: dict[str, Any]) -> NDArray[np.int64]:
        with noted(f"making tokens of the prompt of {agent}"):
            tokens = self.vocabulary.encode(observation)
        cut = max(0, len(tokens) - self.length)
        if cut and self.prompt_overflow == "error":
            raise ValueError(
                f"length ({self.length}) must not be less than the tokens of a prompt; that of "
                f"{agent} has {len(tokens)}. Raise it, or set prompt_overflow='truncate' to cut "
                "the start"
            )
        tokens = tokens[cut:]
        info["prompt_tokens"] = len(tokens)
        if self.prompt_overflow == "truncate":
            info["prompt_tokens_cut"] = cut
        filled = np.full(self.length, self.pad, dtype=np.int64)
        if self.pad_side == "right":
            filled[: len(tokens)] = tokens
        else:
            filled[self.length - len(tokens) :] = tokens
        return filled


class TokenActions(View):
    """Text actions become `MultiDiscrete([V] * length)`, decoded to text; `end` closes it early.

    Choose a small vocabulary. A policy has `length * V` outputs, all at once: over 49,152 tokens
    and 16 places that is 51 million parameters behind 64 hidden units (the default of
    stable-baselines3), over 50 words it is 52 thousand. `TokenByToken` has V outputs.

    An agent that waits (`marlogue.envs.WAITS`) says nothing, whatever it chooses.

    Args:
        env: an environment whose actions are texts.
        vocabulary: `Words`, `TokenizerVocabulary`, or a tokenizer (all of its tokens).
        length: tokens per action.

    Raises:
        TypeError: when an argument has a wrong type, or actions are not texts.
        ValueError: when a text of so many tokens may be longer than the environment takes, or
            empty where it takes no empty text.
    """

    shared: ClassVar[tuple[str, ...]] = ("vocabulary",)

    def __init__(self, env: ParallelEnv, vocabulary: Any, length: int) -> None:
        super().__init__(env)
        require_texts(env, "TokenActions", observations=False, actions=True)
        self.vocabulary = as_vocabulary(vocabulary)
        self.length = whole_number("length", length)
        require_room(env, self.vocabulary, self.length, "length")
        picky = [agent for agent in env.possible_agents if not env.action_space(agent).contains("")]
        if picky and self.vocabulary.end is not None:
            raise ValueError(
                f"vocabulary must have no end, which may leave a text empty: the action space of "
                f"{picky[0]}, {env.action_space(picky[0])}, does not contain it. Leave end out, or "
                "use TokenByToken, which masks it"
            )
        outputs = self.length * len(self.vocabulary)
        if outputs > LARGE_HEAD:
            logger.warn(
                f"length ({self.length}) times {len(self.vocabulary)} tokens are {outputs:,} "
                f"outputs of a policy, {65 * outputs / 1e6:.0f} million parameters behind 64 "
                "hidden units; choose fewer tokens (TokenizerVocabulary(tokenizer, ids), Words)"
            )
        self.action_spaces = {
            agent: MultiDiscrete([len(self.vocabulary)] * self.length)
            for agent in env.possible_agents
        }
        self._waiting: set[str] = set()

    @override
    def observe(self, agent: str, observation: Any, info: dict[str, Any]) -> Any:
        (self._waiting.add if waits(info) else self._waiting.discard)(agent)
        return observation

    @override
    def act(self, agent: str, action: Any) -> str:
        if agent in self._waiting:
            return idle_text(self.env.action_space(agent))
        return self.vocabulary.decode(np.asarray(action).tolist())
