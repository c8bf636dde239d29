"""Text environments for TRL: GRPO of one model in a team.

Two ways lead into `trl.GRPOTrainer` (1.16):

- `Rollouts` is a `rollout_func`. The model answers the prompts of the environment as they are, in
  one growing dialogue per agent; nothing but its own tokens is trained. Several agents may be
  played by the model that is being trained.
- `environment_factory` makes what the argument of that name takes: the model plays by calling the
  tool `answer`, so it needs a chat template with tools. The other agents are frozen.

Both want the dataset that `dataset` makes out of the environment's rows, and neither needs vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.envs.optional import require
from marlogue.envs.runner import BatchRunner, Episode
from marlogue.envs.waiting import waits
from marlogue.wrappers.partners import Asked, Policy
from marlogue.wrappers.players import FrozenAgents
from marlogue.wrappers.seats import idle_action
from marlogue.wrappers.trl_dialogues import Dialogue, Writer
from marlogue.wrappers.trl_episodes import TextGame, dataset, environment_factory, origin_of
from marlogue.wrappers.view import parallel, require_texts

with require("trl", extra="trl"):
    import trl  # noqa: F401  (what uses this module is given to TRL)

if TYPE_CHECKING:
    from marlogue.agents import SamplingParams

__all__ = ["Rollouts", "TextGame", "dataset", "environment_factory", "episode_reward"]


@dataclass
class _Play:
    """A running episode, the agent that learns from it, and what the model said in it."""

    episode: Episode
    learner: str
    stream: tuple[int, ...]
    dialogues: dict[str, Dialogue] = field(default_factory=dict)
    reward: float = 0.0

    def shown(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Each live agent with its prompt and info."""
        for agent in self.episode.agents:
            yield agent, self.episode.observations[agent], self.episode.infos.get(agent, {})

    def learned(self, writer: Writer) -> Dialogue:
        """The learner's dialogue."""
        return self.dialogues.get(self.learner) or writer.silence()


class Rollouts:
    """TRL's `rollout_func`: whole episodes of a team, of which one agent's tokens are trained.

    In each entry of the batch (see `dataset`) one agent learns. Its prompts and answers make one
    sequence, in which the later prompts are masked out of the loss (`env_mask`); its return, the
    sum of its rewards over the turns, is the extra field `episode_reward` that the reward function
    of that name reads. Where it leaves before the others, these play on to their end, since it may
    be given something until then. An episode that ended before the agent's first turn has no token
    of its own: its return counts in its group, and nothing is learned from it. All episodes of a
    batch are played together, one generation per turn, by TRL's own generation (temperature, vLLM
    and so on are those of its configuration).

    Args:
        env: a text environment. It is copied, not touched.
        others: frozen agents: agent to policy, or one policy for all but the agent that learns; see
            `marlogue.wrappers.single_agent.SingleAgent`. Agents that are not named are played by
            the model that is being trained (parameter sharing, self-play); None: all of them.
        sampling: how an `LLMPolicy` among them samples.
        chat: whether prompts go through the tokenizer's chat template; None: if it has one.
        system_prompt: the system message of each dialogue; needs a chat template.
        separator: what stands before the prompt of a later turn where there is no chat template.

    Raises:
        TypeError: when it is no text environment, or a policy cannot be asked.
        ValueError: when `others` names an unknown agent.
    """

    def __init__(
        self,
        env: ParallelEnv,
        others: Mapping[str, Policy] | Policy | None = None,
        *,
        sampling: SamplingParams | None = None,
        chat: bool | None = None,
        system_prompt: str | None = None,
        separator: str = "\n",
    ) -> None:
        require_texts(parallel(env), "TRL", observations=True, actions=True)
        self.runner = BatchRunner(env)
        self.spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
        self.numbers = {agent: number for number, agent in enumerate(env.possible_agents)}
        self.chat = chat
        self.system_prompt = system_prompt
        self.separator = separator
        self._calls = 0
        self._frozen = {
            learner: FrozenAgents(env, players, others, sampling)
            for learner, players in _players(env, others).items()
        }

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play one episode per prompt.

        Args:
            prompts: entries of the `prompt` column of `dataset`.
            trainer: the `GRPOTrainer`.

        Returns:
            `prompt_ids`, `completion_ids`, `logprobs` (None without vLLM, as in TRL), `env_mask`,
            `episode_reward` and `episode_turns`: lists with one entry per prompt.

        Raises:
            ValueError: when a prompt is not one of `dataset`, the agent that learns is a frozen
                one, a dialogue outgrows the model's context, or no agent that learns had a turn in
                any of the episodes.
        """
        origins = [origin_of(prompt) for prompt in prompts]
        writer = Writer(trainer, self.chat, self.system_prompt, self.separator)
        stream = (trainer.args.seed, trainer.accelerator.process_index, self._calls)
        self._calls += 1
        episodes = self.runner.reset([start for _, start in origins])
        plays = [
            _Play(episode, self._learner(learner), (*stream, episode.index))
            for episode, (learner, _) in zip(episodes, origins, strict=True)
        ]
        while running := [play for play in plays if not play.episode.over]:
            actions = self._actions(running, writer)
            results = self.runner.step([play.episode for play in running], actions)
            for play, result in zip(running, results, strict=True):
                play.reward += float(result.rewards.get(play.learner, 0.0))
        if not any(play.learner in play.dialogues for play in plays):
            names = ", ".join(sorted({play.learner for play in plays}))
            raise ValueError(
                f"{names} never had a turn in {len(plays)} episodes, so there is nothing to learn "
                "from; leave them out of the dataset's agents"
            )
        learned = [play.learned(writer) for play in plays]
        return {
            "prompt_ids": [dialogue.prompt_ids for dialogue in learned],
            "completion_ids": [dialogue.ids for dialogue in learned],
            "logprobs": [dialogue.logprobs for dialogue in learned] if trainer.use_vllm else None,
            "env_mask": [dialogue.own for dialogue in learned],
            "episode_reward": [play.reward for play in plays],
            "episode_turns": [dialogue.turns for dialogue in learned],
        }

    def _actions(self, plays: Sequence[_Play], writer: Writer) -> list[dict[str, str]]:
        """What all agents of all running episodes say this turn."""
        actions: list[dict[str, str]] = [{} for _ in plays]
        frozen: dict[str, list[tuple[int, Asked]]] = {}
        spoken: list[tuple[int, str, Dialogue]] = []
        for place, play in enumerate(plays):
            for agent, prompt, info in play.shown():
                if waits(info):
                    actions[place][agent] = idle_action(self.spaces[agent], info)
                elif agent in self._frozen[play.learner].names:
                    stream = (*play.stream, play.episode.turn, self.numbers[agent])
                    asked = Asked(agent, prompt, info, stream)
                    frozen.setdefault(play.learner, []).append((place, asked))
                else:
                    dialogue = play.dialogues.setdefault(agent, Dialogue())
                    dialogue.read(writer.encode(prompt, dialogue))
                    spoken.append((place, agent, dialogue))
        for learner, questions in frozen.items():
            answers = self._frozen[learner].answer([asked for _, asked in questions])
            for (place, asked), answer in zip(questions, answers, strict=True):
                actions[place][asked.agent] = answer
        texts = writer.answer([dialogue for _, _, dialogue in spoken])
        for (place, agent, _), text in zip(spoken, texts, strict=True):
            actions[place][agent] = text
        return actions

    def _learner(self, agent: str) -> str:
        if agent not in self._frozen:
            raise ValueError(
                f"the dataset lets {agent} learn, but only {', '.join(self._frozen)} can learn "
                "here; make it with dataset(env, agents=[...]), or leave the agent out of others"
            )
        return agent


def _players(env: ParallelEnv, others: Any) -> dict[str, list[str]]:
    """Who can learn, and whom the model plays while that agent learns."""
    names = list(env.possible_agents)
    if others is not None and not isinstance(others, Mapping):
        return {name: [name] for name in names}
    shared = [name for name in names if name not in (others or {})]
    if not shared:
        raise ValueError(
            f"others (of {', '.join(names)}) must leave out an agent, which learns; leave one out"
        )
    return dict.fromkeys(shared, shared)


def episode_reward(
    prompts: Sequence[Any], episode_reward: Sequence[float] | None = None, **_: Any
) -> list[float]:
    """TRL's reward function for `Rollouts`: what the agent that learns earned in its episode.

    Raises:
        ValueError: when the rollouts were not made by `Rollouts`.
    """
    if episode_reward is None:
        raise ValueError("episode_reward needs rollout_func=marlogue.wrappers.trl.Rollouts(...)")
    return [float(reward) for reward in episode_reward]
