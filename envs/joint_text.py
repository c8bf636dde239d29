"""The text that a centralised critic reads."""

from __future__ import annotations

from collections.abc import Sequence


def joint_text(prompts: Sequence[str], completions: Sequence[str] | None = None) -> str:
    """Write the team's joint history, and optionally its joint action, as one text.

    The agents' prompts in order, each labelled, with a blank line between them; then, when
    completions are given, the joint action in the same manner:

        [Agent 0] PROMPT

        [Agent 1] PROMPT

        [Joint Action]

        [Agent 0 action]
        COMPLETION

        [Agent 1 action]
        COMPLETION

    Args:
        prompts: one prompt per agent.
        completions: one completion per agent, for a critic of Q(joint history, joint action).

    Raises:
        ValueError: when the two lengths differ.
    """
    blocks = [f"[Agent {index}] {prompt}" for index, prompt in enumerate(prompts)]
    if completions is not None:
        if len(completions) != len(prompts):
            raise ValueError(
                f"completions ({len(completions)}) must be as many as prompts ({len(prompts)})"
            )
        blocks.append("[Joint Action]")
        blocks += [f"[Agent {index} action]\n{text}" for index, text in enumerate(completions)]
    return "\n\n".join(blocks)
