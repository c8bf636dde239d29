"""Episodes as text that people read."""

from __future__ import annotations

from marlogue.envs.episodes import EpisodeState
from marlogue.envs.task import TextTask


def heading(state: EpisodeState) -> str:
    """One line that says which row is played."""
    row = state.origin.row
    return f"=== {'a given item' if row is None else f'row {row}'} ==="


def transcript(task: TextTask, state: EpisodeState) -> str:
    """The whole episode so far: each turn, and what is being asked now."""
    blocks = [heading(state)]
    blocks += [turn_text(task, state, index) for index in range(len(state.turns))]
    if not state.over:
        asked = _lines(task, state.prompts, "is asked")
        blocks.append("\n".join([f"--- turn {len(state.turns)} ---", *asked]))
    return "\n".join(blocks)


def turn_text(task: TextTask, state: EpisodeState, index: int) -> str:
    """One turn that was played: prompts, completions, rewards."""
    turn = state.turns[index]
    rewards = ", ".join(
        f"{agent} {'abstained' if reward is None else f'{reward:.4g}'}"
        for agent, reward in zip(task.agents, turn.scores.processed, strict=True)
    )
    lines = [f"--- turn {index} ---"]
    for agent, prompt, completion in zip(task.agents, turn.prompts, turn.completions, strict=True):
        lines += [f"{agent} is asked: {prompt}", f"{agent} answers: {completion}"]
    return "\n".join([*lines, f"rewards: {rewards}"])


def _lines(task: TextTask, texts: tuple[str, ...], verb: str) -> list[str]:
    return [f"{agent} {verb}: {text}" for agent, text in zip(task.agents, texts, strict=True)]
