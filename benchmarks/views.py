"""What stepping through each view costs, as a ratio to the bare text environment in the same run.

    OMP_NUM_THREADS=1 python benchmarks/views.py [--episodes 300] [--repeats 5]

Each row plays the same episodes of a two-turn, two-agent text environment, bare and through a view,
in turns; CPU time of reset and steps, divided by the turns of the text environment. What the policy
does is free: actions are made beforehand. The median over the repeats is printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pettingzoo import ParallelEnv

from marlogue.envs import coordination_v0
from marlogue.wrappers import (
    ActionMask,
    CandidateActions,
    DictPrompt,
    EmbedObservations,
    HashedNgrams,
    History,
    NumericState,
    Record,
    TokenActions,
    TokenByToken,
    TokenObservations,
    UniformEnd,
    View,
    Words,
)

TURNS = 2
ANSWERS = list(coordination_v0.ANSWERS.values())
WORDS = Words(coordination_v0.VOCABULARY, end="</s>")
MAX_TOKENS = 4
SENTENCE = "the quick brown fox jumps over the lazy dog, and then sleeps until noon. " * 4

Actions = Mapping[str, Any]
Make = Callable[[], ParallelEnv]


def bare() -> ParallelEnv:
    return coordination_v0.parallel_env(num_turns=TURNS)


def long_prompts() -> ParallelEnv:
    """The same with prompts of some sixty words."""
    rows = [{**row, "prompt": row["prompt"] + " " + SENTENCE} for row in coordination_v0.dataset()]
    return coordination_v0.parallel_env(dataset=rows, num_turns=TURNS)


def around(make: Make, *views: Callable[[ParallelEnv], View]) -> Make:
    def made() -> ParallelEnv:
        env = make()
        for view in views:
            env = view(env)
        return env

    return made


def numeric(env: ParallelEnv) -> ParallelEnv:
    return EmbedObservations(CandidateActions(env, ANSWERS), HashedNgrams(64))


def rows(folder: Path) -> dict[str, tuple[Make, Make, Any]]:
    """Name to: the bare environment, the view of it, and an action of every agent."""
    ids = [0] * (MAX_TOKENS - 1) + [WORDS.end]
    pairs: dict[str, tuple[Any, Any]] = {
        "View (changes nothing)": (View, "red"),
        "UniformEnd": (UniformEnd, "red"),
        "History": (partial(History, max_chars=2000), "red"),
        "Record (JSON lines)": (partial(Record, path=folder / "{copy}.jsonl"), "red"),
        "DictPrompt": (DictPrompt, "red"),
        "CandidateActions": (partial(CandidateActions, candidates=ANSWERS), 1),
        "EmbedObservations, HashedNgrams(64)": (
            partial(EmbedObservations, embed=HashedNgrams(64)),
            "red",
        ),
        "TokenObservations, 16 words": (
            partial(TokenObservations, vocabulary=WORDS, length=16),
            "red",
        ),
        "TokenActions, 4 words": (
            partial(TokenActions, vocabulary=WORDS, length=MAX_TOKENS),
            ids,
        ),
        "TokenByToken, 4 tokens a turn": (
            partial(TokenByToken, vocabulary=WORDS, max_tokens=MAX_TOKENS),
            0,
        ),
        "candidates, embedding, numeric state": (lambda env: NumericState(numeric(env)), 1),
        "the same, and ActionMask": (lambda env: ActionMask(NumericState(numeric(env))), 1),
    }
    table = {name: (bare, around(bare, view), action) for name, (view, action) in pairs.items()}
    table["HashedNgrams(64), prompts of 60 words"] = (
        long_prompts,
        around(long_prompts, partial(EmbedObservations, embed=HashedNgrams(64))),
        "red",
    )
    return table


def seconds(env: ParallelEnv, action: Any, episodes: int) -> float:
    """CPU seconds for each turn of the text environment."""
    space = env.action_space(env.possible_agents[0])
    if not isinstance(action, str):
        action = space.dtype.type(action) if space.shape == () else space.sample() * 0 + action
    actions = dict.fromkeys(env.possible_agents, action)
    begun = time.process_time()
    for _ in range(episodes):
        env.reset()
        while env.agents:
            env.step(actions)
    return (time.process_time() - begun) / (episodes * TURNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{'view':40} {'bare, us':>9} {'view, us':>9} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (make_bare, make_view, action) in rows(Path(folder)).items():
            plain, seen = make_bare(), make_view()
            pairs = [
                (seconds(plain, "red", args.episodes), seconds(seen, action, args.episodes))
                for _ in range(args.repeats)
            ]
            before, after = (statistics.median(times) * 1e6 for times in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            print(f"{name:40} {before:9.0f} {after:9.0f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
