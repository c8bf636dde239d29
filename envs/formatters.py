"""Formatters: from a dataset row to the prompt that an agent is shown."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from marlogue.envs.callbacks import (
    POSITIONAL,
    accepted_keywords,
    callback_name,
    callback_signature,
    noted,
    place,
    require_callable,
    require_result,
    shortened,
)
from marlogue.envs.rows import Row

Formatter = Callable[..., str]

EXTERNAL = "external_prompts"


def prompt_field(item: Row) -> str:
    """The formatter used where none is given: the row's `prompt`, as it is.

    Raises:
        ValueError: when the row has no such field, or it is not a text.
    """
    prompt = item.get("prompt")
    if isinstance(prompt, str):
        return prompt
    fields = ", ".join(map(repr, item)) or "none"
    problem = "has no field 'prompt'" if "prompt" not in item else f"has the prompt {prompt!r}"
    raise ValueError(
        f"the row {problem} (its fields: {fields}); without formatters it must have one that is a "
        "str; add it, or pass formatters"
    )


class Formatters:
    """One formatter per agent, with the calling form of each settled.

    A formatter is called as `formatter(item)`; one that names `external_prompts` (or takes
    `**kwargs`) also gets that keyword: the prompt that the transition made for this agent, None
    in the first turn. It is given a deep copy of the row.

    Args:
        formatters: None (the row's `prompt`), one callable for all agents, or one per agent.
        agents: the agents' names.

    Raises:
        TypeError: when a formatter is not callable, is an async function, or cannot be called
            with one row.
        ValueError: when there are not as many formatters as agents.
    """

    def __init__(
        self, formatters: Formatter | Sequence[Formatter] | None, agents: Sequence[str]
    ) -> None:
        if formatters is None:
            formatters = prompt_field
        if callable(formatters):
            formatters = [formatters] * len(agents)
        if not isinstance(formatters, Sequence):
            raise TypeError(
                f"formatters ({formatters!r}) must be None, a callable, or a list of callables"
            )
        if len(formatters) != len(agents):
            raise ValueError(
                f"formatters ({len(formatters)}) must be as many as agents ({len(agents)}); "
                "pass one callable to use it for all of them"
            )
        self.agents = tuple(agents)
        self.calls = tuple(
            (formatter, _takes_external(formatter, agent))
            for formatter, agent in zip(formatters, agents, strict=True)
        )

    def first_prompts(self, item: Row, row: int | None) -> tuple[str, ...]:
        """Each agent's prompt for the first turn."""
        return tuple(self._format(index, item, None, row, 0) for index in range(len(self.agents)))

    def next_prompts(
        self, item: Row, external: Sequence[str], row: int | None, turn: int
    ) -> tuple[str, ...]:
        """Each agent's prompt for a later turn, from what the transition made for it.

        The formatter sees a row whose `prompt` is the external one; the row's own is kept as
        `_original_prompt`.
        """
        original = item.get("prompt", "")
        return tuple(
            self._format(
                index,
                {**item, "_original_prompt": original, "prompt": prompt},
                prompt,
                row,
                turn,
            )
            for index, prompt in enumerate(external)
        )

    def _format(
        self, index: int, item: Row, external: str | None, row: int | None, turn: int
    ) -> str:
        formatter, takes_external = self.calls[index]
        where = f"{self.agents[index]}, {place(row, turn)}"
        kwargs: dict[str, Any] = {EXTERNAL: external} if takes_external else {}
        with noted(f"formatting the prompt of {where}"):
            prompt = formatter(copy.deepcopy(item), **kwargs)
        require_result(prompt, "formatters", formatter)
        if not isinstance(prompt, str):
            raise ValueError(
                f"the formatter {callback_name(formatter)} returned {shortened(prompt)} ({where}); "
                "it must return a prompt (str)"
            )
        return prompt


def _takes_external(formatter: Formatter, agent: str) -> bool:
    require_callable(formatter, f"the formatter of {agent}")
    signature = callback_signature(formatter)
    if signature is None:
        return False
    takes_external = bool(accepted_keywords(formatter, signature, (EXTERNAL,)))
    # An item parameter that is itself named external_prompts takes the row by position.
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is not None and first.kind in POSITIONAL and first.name == EXTERNAL:
        takes_external = False
    try:
        signature.bind({}, **({EXTERNAL: None} if takes_external else {}))
    except TypeError as error:
        raise TypeError(
            f"the formatter of {agent} ({callback_name(formatter)}{signature}) cannot be called "
            f"as formatter(item) or formatter(item, external_prompts=...): {error}"
        ) from None
    return takes_external
