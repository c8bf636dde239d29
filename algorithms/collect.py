"""Rollouts: episodes played together, and the samples that they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from marlogue.agents import Completion, LLMPolicy, SamplingParams
from marlogue.algorithms.not_finite import weights_named
from marlogue.algorithms.returns import expected_returns
from marlogue.algorithms.sample import Joint, Sample
from marlogue.algorithms.text_guidance import TextGuide
from marlogue.envs import BatchRunner, Episode, Start, StepResult
from marlogue.envs.episodes import REWARD_ERROR
from marlogue.envs.waiting import waits


@dataclass(frozen=True, slots=True)
class Item:
    """One training or evaluation item: its running number, and how its episodes begin."""

    index: int
    start: Start


@dataclass
class Collector:
    """Plays episodes with a team of policies.

    Args:
        runner: the environment.
        policies: one per agent, in the order of the environment's ``possible_agents``.
        params: how the policies sample.
        max_turns: an episode that has not ended by then is an error.
        stream: first numbers of every stream of random numbers, e.g. (seed, purpose).
        bootstrap_actions: also sample an action for the final observation of a truncated episode
            (a Q critic bootstraps from it).
        parallel: let policies on different devices generate at the same time.
        guide: asked for advantages of what is said; None for none.
        salvage: gets the samples of episodes that an error has cut off, and the error.
        check: called before and after each time the policies answer: the collection may be broken
            off there by what it raises, and leaves nothing behind.
    """

    runner: BatchRunner
    policies: Sequence[LLMPolicy]
    params: SamplingParams
    max_turns: int
    stream: tuple[int, ...]
    bootstrap_actions: bool = False
    parallel: bool = False
    guide: TextGuide | None = None
    salvage: Callable[[Sequence[Sample], BaseException], None] | None = None
    check: Callable[[], None] = lambda: None

    def collect(self, items: Sequence[Item], num_generations: int = 1) -> list[list[Sample]]:
        """Play ``num_generations`` episodes of each item, all of them together.

        Returns:
            The samples of each item: generation by generation, turn by turn, agent by agent.
        """
        episodes = self.runner.reset([item.start for item in items], num_generations)
        records = [
            _Record(episode, items[episode.start].index, self.runner.idle_texts)
            for episode in episodes
        ]
        try:
            while running := [record for record in records if record.episode.agents]:
                self._play_turn(running)
        except (Exception, KeyboardInterrupt) as error:
            if self.salvage is not None:
                self.salvage([sample for r in records for sample in r.samples], error)
            raise
        self._add_final_observations([record for record in records if record.cut_off])
        samples: list[list[Sample]] = [[] for _ in items]
        for record in records:
            record.finish()
            samples[record.episode.start] += record.samples
        return samples

    def _play_turn(self, running: Sequence[_Record]) -> None:
        self._refuse_endless(running)
        self.check()
        answers = self._act(running)
        self.check()
        for record, answer in zip(running, answers, strict=True):
            record.open_turn(answer)
            if self.guide is not None:
                env = self.runner.env_of(record.episode.index)
                record.ask(self.guide, env, answer)
        results = self.runner.step(
            [record.episode for record in running],
            [record.actions(answer) for record, answer in zip(running, answers, strict=True)],
        )
        for record, result in zip(running, results, strict=True):
            record.close_turn(result)

    def _act(self, records: Sequence[_Record]) -> list[dict[str, Completion]]:
        """One answer per live agent of each episode; one batch per policy."""
        asked: dict[int, list[tuple[int, str]]] = {}
        for place, record in enumerate(records):
            for agent in record.questions:
                policy = self.policies[record.agent_index[agent]]
                asked.setdefault(id(policy), []).append((place, agent))
        answers: list[dict[str, Completion]] = [{} for _ in records]

        def answer(questions: list[tuple[int, str]]) -> list[Completion]:
            agent = questions[0][1]
            policy = self.policies[records[questions[0][0]].agent_index[agent]]
            with weights_named(agent, policy.model):
                return policy.act(
                    [records[place].questions[agent] for place, agent in questions],
                    self.params,
                    [(*self.stream, *records[place].stream(agent)) for place, agent in questions],
                )

        for questions, completions in zip(
            asked.values(), self._map(answer, list(asked.values())), strict=True
        ):
            for (place, agent), completion in zip(questions, completions, strict=True):
                answers[place][agent] = completion
        return answers

    def _map(self, func: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
        if not self.parallel or len(tasks) < 2:
            return [func(task) for task in tasks]
        with ThreadPoolExecutor(len(tasks)) as pool:
            return list(pool.map(func, tasks))

    def _refuse_endless(self, running: Sequence[_Record]) -> None:
        turns = max(record.episode.turn for record in running)
        if turns >= self.max_turns:
            raise ValueError(
                f"num_turns ({self.max_turns}) must cover the longest episode of the environment; "
                f"one is still running after {turns} turns; set num_turns higher."
            )

    def _add_final_observations(self, records: Sequence[_Record]) -> None:
        if not records:
            return
        answers = self._act(records) if self.bootstrap_actions else self._read(records)
        for record, answer in zip(records, answers, strict=True):
            record.add_final_observations(answer)

    def _read(self, records: Sequence[_Record]) -> list[dict[str, Completion]]:
        """What the agents would answer from, without an answer."""
        return [
            {
                agent: self.policies[record.agent_index[agent]].read(prompt, self.params)
                for agent, prompt in record.questions.items()
            }
            for record in records
        ]


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where agents were cut off: the turn that would have followed, and what the team saw then."""

    turn: int
    seen: dict[str, str]


class _Record:
    """The samples of one episode while it is played."""

    def __init__(self, episode: Episode, item_idx: int, idle_texts: dict[str, str]) -> None:
        self.episode = episode
        self.item_idx = item_idx
        self.idle_texts = idle_texts
        self.agents = list(idle_texts)
        self.agent_index = {agent: index for index, agent in enumerate(self.agents)}
        self.samples: list[Sample] = []
        self.turn = 0
        self._latest: dict[str, Sample] = {}
        self._final: dict[str, _Cut] = {}

    @property
    def questions(self) -> dict[str, str]:
        """The prompts to answer: of the live agents whose turn it is, and after the end of those
        that were cut off."""
        if self.episode.agents:
            shown = self.episode.observations
            return {agent: shown[agent] for agent in self.episode.agents if not self._waits(agent)}
        return {agent: cut.seen[agent] for agent, cut in self._final.items()}

    def actions(self, answer: dict[str, Completion]) -> dict[str, str]:
        """What each live agent says; who waits, as little as it may."""
        said = {agent: completion.text for agent, completion in answer.items()}
        return {agent: said.get(agent, self.idle_texts[agent]) for agent in self.episode.agents}

    def _waits(self, agent: str) -> bool:
        return waits(self.episode.infos.get(agent, {}))

    @property
    def cut_off(self) -> bool:
        return bool(self._final)

    def stream(self, agent: str) -> tuple[int, int, int, int]:
        """What tells this answer's random numbers from all others of the run."""
        return (self.item_idx, self.episode.generation, self.turn, self.agent_index[agent])

    def open_turn(self, answer: dict[str, Completion]) -> None:
        """A sample of each agent that answers. One that waits is seen by the team, no more."""
        seen = {agent: self.episode.observations[agent] for agent in self.episode.agents}
        joint = self._joint(seen, answer)
        for agent, completion in answer.items():
            sample = self._sample(agent, joint, completion)
            if agent in self._latest:
                self._latest[agent].next = sample
            self._latest[agent] = sample
            self.samples.append(sample)

    def ask(self, guide: TextGuide, env: ParallelEnv, answer: dict[str, Completion]) -> None:
        """Have the samples of the turn that was just opened guided."""
        infos = self.episode.infos
        row = next((infos[a]["row"] for a in answer if "row" in infos.get(a, {})), None)
        which = f"item {self.item_idx}" if row is None else f"row {row}"
        advantages = guide(
            env,
            {agent: self.episode.observations[agent] for agent in self.episode.agents},
            self.actions(answer),
            infos,
            list(answer),
            f"{which}, turn {self.turn}",
        )
        for agent, advantage in advantages.items():
            self._latest[agent].guidance = advantage

    def close_turn(self, result: StepResult) -> None:
        """Credit each agent's latest sample: with what it earned by answering, and with what came
        in while it waited."""
        for agent, sample in self._latest.items():
            if agent not in result.rewards:
                continue
            reward = float(result.rewards[agent])
            info = result.infos.get(agent, {})
            abstained = bool(info.get("abstained", False))
            if sample.turn_idx == self.turn:
                sample.reward, sample.abstained = reward, abstained
                sample.reward_error = info.get(REWARD_ERROR)
            elif not abstained:
                sample.reward, sample.abstained = sample.reward + reward, False
            if result.truncations.get(agent) and not result.terminations.get(agent):
                self._cut_off(agent, result)
        self.turn += 1

    def _cut_off(self, agent: str, result: StepResult) -> None:
        if agent not in result.observations:
            raise ValueError(
                f"the environment truncated {agent} in turn {self.turn} without an observation for "
                "it; it must show what a value can be bootstrapped from."
            )
        self._final[agent] = _Cut(self.turn + 1, dict(result.observations))

    def add_final_observations(self, answer: dict[str, Completion]) -> None:
        """Give each agent that was cut off a next step to bootstrap from."""
        for agent, cut in self._final.items():
            joint = self._joint(cut.seen, self._answers_beside(cut.turn, answer))
            final = self._sample(agent, joint, answer[agent])
            final.is_final_observation = True
            self._latest[agent].next = final

    def _answers_beside(self, turn: int, answer: dict[str, Completion]) -> dict[str, Completion]:
        """What the team answered in the turn after agents were cut off: those who went on, what
        they played; those cut off together, their answers to what they saw last."""
        played = {s.agent: s.action for s in self.samples if s.turn_idx == turn}
        return played | {a: c for a, c in answer.items() if self._final[a].turn == turn}

    def finish(self) -> None:
        for agent in self.agents:
            own = [sample for sample in self.samples if sample.agent == agent]
            rewards = [0.0 if sample.abstained else sample.reward for sample in own]
            for sample, return_ in zip(own, expected_returns(rewards), strict=True):
                sample.return_ = return_

    def _joint(self, observations: dict[str, str], answer: dict[str, Completion]) -> Joint:
        return Joint(
            prompts=tuple(observations.get(agent, "") for agent in self.agents),
            completions=tuple(answer[a].text if a in answer else "" for a in self.agents),
            actions=tuple(answer.get(agent) for agent in self.agents),
        )

    def _sample(self, agent: str, joint: Joint, action: Completion) -> Sample:
        return Sample(
            agent=agent,
            agent_idx=self.agent_index[agent],
            turn_idx=self.turn,
            generation_idx=self.episode.generation,
            item_idx=self.item_idx,
            item=self.episode.infos.get(agent, {}).get("item", {}),
            joint=joint,
            action=action,
        )
