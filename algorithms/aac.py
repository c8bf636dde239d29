"""AAC: actor-attention-critic for teams with numeric observations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from torch import nn
from tqdm.auto import tqdm

from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.aac_acting import Explorer
from marlogue.algorithms.aac_bad_batches import AACBadBatches
from marlogue.algorithms.aac_config import AACConfig, plain
from marlogue.algorithms.aac_diagnostics import episode_figures
from marlogue.algorithms.aac_evaluation import evaluated
from marlogue.algorithms.aac_memory import Memory, Statistics
from marlogue.algorithms.aac_networks import AACNetworks, check_attention
from marlogue.algorithms.aac_parts import (
    chosen_device,
    latest_figures,
    make_players,
    make_vector,
    team_of,
)
from marlogue.algorithms.aac_pictures import left_in
from marlogue.algorithms.aac_play import Play, SavedPlay
from marlogue.algorithms.aac_saving import load_networks, save_networks
from marlogue.algorithms.aac_state import describe, load_state, save_state
from marlogue.algorithms.aac_update import AACLearner
from marlogue.algorithms.annealing import as_anneal
from marlogue.algorithms.callbacks import Callback
from marlogue.algorithms.curriculum import Stage, make_stages
from marlogue.algorithms.items import EnvOrFactory
from marlogue.algorithms.keeping import Keeper
from marlogue.algorithms.kept_trainer import KeptTrainer
from marlogue.algorithms.optimizer import make_schedule
from marlogue.algorithms.outside import Outside
from marlogue.algorithms.random_state import random_state, set_random_state
from marlogue.algorithms.replay_data import Array
from marlogue.algorithms.reporter import Reporter
from marlogue.algorithms.running import checked_callbacks, checked_logdir
from marlogue.algorithms.streams import DRAW, NETWORKS, REPLAY, derived_seed
from marlogue.algorithms.team_backends import check_backend
from marlogue.algorithms.team_checks import check_whole
from marlogue.algorithms.team_guidance import Guidance
from marlogue.algorithms.team_vector import TeamVector
from marlogue.algorithms.team_views import VectorStep
from marlogue.envs.copies import copier


class AACTrainer(KeptTrainer):
    """Actor-Attention-Critic (Iqbal and Sha 2019, "Actor-Attention-Critic for Multi-Agent
    Reinforcement Learning"), off-policy, for any PettingZoo ``ParallelEnv`` with numeric
    observations and discrete or continuous actions.

    The critic of agent i sees its own observation, and through attention what the others see and
    do (:class:`marlogue.agents.AttentionCritic`); the policies see their own observation alone.
    Per update, from replay::

        y_i    = r_i + gamma (1 - terminated) (Qbar_i(o', a') - alpha log pi_i(a'_i | o'_i))
        critic:  mean (Q_i(o, a) - y_i)^2
        actor i: mean sum_a pi_i(a | o_i) (alpha log pi_i(a | o_i) - Q_i(o, (a, a_-i)))

    (continuous actions: ``alpha log pi_i(a_i) - Q_i(o, a)`` through the action; other forms by
    ``args.actor_gradient``). With descent guidance (Yang and Liu 2026, "Descent-Guided Policy
    Gradient") what is known about the system takes part in the actors' loss with a weight that is
    annealed.

    Args:
        args: the configuration.
        env: the environment, or a function that makes one (needed for a curriculum, and for
            several environments that cannot be copied).
        eval_env: for evaluation; None for ``env`` with the curriculum's last arguments.
        guidance: what is known about the system: True for the environment's own ``guidance``, or
            a function ``(state, actions, infos)``; see
            :class:`marlogue.algorithms.team_guidance.Guide`. None for none.
        curriculum: stages with arguments of ``env``; see
            :func:`marlogue.algorithms.curriculum.make_stages`. The networks carry over.
        callbacks: hooks; see :class:`marlogue.algorithms.Callback`.
        wandb_config: arguments of ``wandb.init``.
        logdir: where TensorBoard looks; None writes no file.

    Attributes:
        team: the agents, of the stage that is played.
        networks: actors, critic and their slow copies.
        steps: joint actions taken so far.
        updates: updates so far.
        restarts: workers that died and were replaced so far.
        play: what is being played; None before the training.
        resumed: what was being played when the state that was loaded was saved, until it goes on.

    Raises:
        ValueError, TypeError: an argument is missing or does not fit; the message names it.
    """

    def __init__(
        self,
        *,
        args: AACConfig | None = None,
        env: EnvOrFactory,
        eval_env: EnvOrFactory | None = None,
        guidance: Guidance | Literal[True] | None = None,
        curriculum: Sequence[Mapping[str, Any]] | None = None,
        callbacks: Sequence[Callback[Any]] = (),
        wandb_config: Mapping[str, Any] | None = None,
        logdir: str | Path | None = None,
    ) -> None:
        self.args = args = AACConfig() if args is None else args
        if not isinstance(args, AACConfig):
            raise TypeError(f"args (a {type(args).__name__}) must be an AACConfig.")
        self.callbacks = checked_callbacks(callbacks)
        self.logdir = checked_logdir(logdir)
        check_backend(args.env_backend, args.num_workers, args.num_envs)
        self.env, self.eval_env, self.guidance = env, eval_env, guidance
        self.stages = make_stages(curriculum)
        self.steps = 0
        self._schedule = make_schedule(args.lr_scheduler_type, args.warmup_steps, args.total_steps)
        teams = [team_of(self, self.env, stage.env_kwargs) for stage in self.stages]
        if eval_env is not None:
            teams.append(team_of(self, eval_env, {}))
        self.team: TeamSpec = teams[0]
        self.stage_teams = teams[: len(self.stages)]
        self.networks = AACNetworks.build(
            args,
            self.team,
            max_agents=max(len({*self.team.agents, *team.agents}) for team in teams),
            device=chosen_device(args.device),
            generator=torch.Generator().manual_seed(derived_seed(args.seed, NETWORKS)),
        )
        self.statistics = Statistics(args, self.team)
        # Errors now rather than in the middle of the training.
        for team in teams:
            check_attention(args, team)
            self.networks.for_team(team)
            self.statistics.for_team(args, team)
        self.learner = AACLearner(
            args,
            self.networks,
            self.statistics.preparation(),
            derived_seed(args.seed, DRAW),
        )
        if self.logdir is not None:
            self.learner.skipped.keep = AACBadBatches(self.logdir, self)
        self.reporter = Reporter(
            logdir=self.logdir,
            wandb_config=wandb_config,
            metrics_callback=None,
            logging_steps=args.logging_steps,
        )
        self.outside = Outside(self.users_objects, [])
        self.keeper = Keeper(self, args, "eval/team/return_mean")
        self.explorer = Explorer(args, self.team.discrete)
        self.memory: Memory | None = None
        self.play: Play | None = None
        self.resumed: SavedPlay | None = None
        self._remembered_from = 0  # steps at which the memory was empty
        self._restarts = 0  # in the stages before the one that is played
        self._begun: int | list[int] = 0  # the episode that each environment begins next
        self._evaluations = 0
        self._evaluated_at = -1

    @property
    def updates(self) -> int:
        """Updates so far."""
        return self.learner.updates

    @property
    def position(self) -> int:
        """Steps so far: what ``save_steps`` counts."""
        return self.steps

    @property
    def env_step(self) -> int:
        """Steps so far: the x-axis of the log."""
        return self.steps

    @property
    def restarts(self) -> int:
        """Workers that died and were replaced so far."""
        return self._restarts + (0 if self.play is None else self.play.vector.restarts)

    @property
    def progress(self) -> float:
        """Share of the training that is done, in [0, 1]."""
        return min(1.0, self.steps / self.args.total_steps)

    # -- training ---------------------------------------------------------------------------

    def train(self) -> None:
        """Train for the configured steps.

        Raises:
            Whatever the environment, the guidance or a callback raises, with a note of where it
            happened. Figures so far are on disk by then, and so is what had been learnt: in a
            checkpoint, or in ``logdir/interrupted`` (the message says where).
            RunInterrupted: after a signal.
        """
        if self.play is not None:
            raise RuntimeError(
                "this trainer has been trained already; build a new one, and load_model into it "
                "to go on from there (or set resume='auto' to go on with an interrupted run)."
            )
        config = {"algorithm": type(self).__name__, "num_transcripts": 0, **plain(self.args)}
        self.outside.check()  # what cannot be saved is an error now, not in a day
        with self.keeper.opened():
            total = self.args.total_steps
            with self.reporter.run(config, total, unit="step") as bar, self.keeper.guarding():
                bar.update(self.steps)
                self._hook("on_train_start")
                for number, stage in enumerate(self.stages):
                    self._train_in(number, stage, bar)
                self.reporter.report([])
                if self.args.eval_interval:
                    self._evaluate()
                self.keeper.finished()
                self._hook("on_train_end")

    def _train_in(self, number: int, stage: Stage, bar: tqdm[Any]) -> None:
        """Train in one stage's environments."""
        until = min(self.args.total_steps, round(stage.until * self.args.total_steps))
        resumed = self.resumed
        if resumed is not None and (number < resumed.stage or self.steps >= until):
            return  # the stage was over when the state was saved
        random = random_state()  # which environments may draw from, also while they are made
        with make_vector(self, stage) as vector:
            with self.keeper.half_done():
                play = self._enter(number, vector, random)
            while self.steps < until:
                self._evaluate_if_due()
                before = self.steps
                with self.keeper.half_done():
                    self._step(play)
                    self._learn(before)
                    bar.update(self.steps - before)
                    self.reporter.env_step = self.steps
                    self.reporter.report([])
                self.keeper.save_if_due()
            self._begun = vector.next_episodes

    def _step(self, play: Play) -> None:
        """One joint action in every environment."""
        assert self.memory is not None
        view, hidden = play.view, play.players.memory
        # Without a sample in its loss a policy's spread is never trained, and nothing to act on.
        chosen = play.players.act(view, greedy=self.args.deterministic)
        actions = self.explorer(chosen, view, self.team.action_mask().numpy(), self.steps)
        step = play.step(actions)
        rows = self.memory.add(view, actions, step, hidden)
        self.statistics.update(rows, step.over[step.kept_envs], step.kept_envs)
        self.statistics.forget(step.lost_envs)
        self.steps += len(step.kept_envs)
        self._tell_of_episodes(step)

    def _learn(self, before: int) -> None:
        """The updates that are due after the steps from ``before`` on."""
        args, memory = self.args, self.memory
        assert memory is not None
        # A batch of what a new stage's first steps were would be the same few steps many times.
        few = min(args.learning_starts, args.batch_size)
        if self.steps < max(args.learning_starts, self._remembered_from + few) or not len(memory):
            return
        due = self.steps // args.train_interval - before // args.train_interval
        if not due:
            return
        started = time.perf_counter()
        self.learner.set_progress(self._schedule(self.steps))
        weight = as_anneal(args.guidance_weight)(self.progress)
        for _ in range(due * args.updates_per_train):
            batch = memory.draw(self.progress, self.networks.device)
            updated = self.learner.update(batch, weight)
            if updated.errors is not None:
                memory.learnt(batch, updated.errors)
            self.reporter.step(updated.figures)
            self._hook("on_update")
        seconds = max(time.perf_counter() - started, 1e-9)
        count = due * args.updates_per_train
        self.reporter.step({"time/updates_per_second": count / seconds})
        self.reporter.latest(latest_figures(self, weight))

    # -- evaluation -------------------------------------------------------------------------

    def evaluate(
        self, env: EnvOrFactory | None = None, *, episodes: int | None = None, **env_kwargs: Any
    ) -> dict[str, float]:
        """Play episodes, with the same seeds every time.

        Neither weights nor random numbers of the training are touched. Without arguments it is one
        of the run's own evaluations: logged, its attention kept, shown to callbacks.

        Args:
            env: another environment than the trainer's, for instance with more agents; the
                networks have to fit its agents.
            episodes: how many; None for ``args.eval_episodes``.
            env_kwargs: arguments of the function that makes the environment; they go over the
                last stage's.

        Returns:
            Figures under ``eval/``: the mean return of the team (summed over its agents) and of
            each agent.
        """
        of_run = env is None and episodes is None and not env_kwargs
        metrics = self._evaluation(env, episodes, env_kwargs, of_run=of_run)
        if of_run:
            self._hook("on_evaluation", metrics)
        return metrics

    def _evaluation(
        self,
        env: EnvOrFactory | None,
        episodes: int | None,
        env_kwargs: Mapping[str, Any],
        *,
        of_run: bool,
    ) -> dict[str, float]:
        """Evaluate, without the hooks."""
        args = self.args
        chosen = next(one for one in (env, self.eval_env, self.env) if one is not None)
        kwargs = {**(self.stages[-1].env_kwargs if chosen is self.env else {}), **env_kwargs}
        if chosen is self.env and isinstance(chosen, ParallelEnv):
            chosen = copier(chosen)()  # the training may be in the middle of an episode of it
        episodes = args.eval_episodes if episodes is None else episodes
        check_whole("episodes", episodes, 1)
        metrics, watch = evaluated(
            chosen,
            args,
            self.networks,
            self.statistics,
            episodes=episodes,
            env_kwargs=kwargs,
            watched_after=self.steps if of_run and self.logdir is not None else None,
        )
        if not of_run:
            return metrics
        pictures = {}
        if watch is not None and self.logdir is not None:
            pictures = left_in(self.logdir, watch, self.steps)
        self.reporter.evaluated(metrics, pictures)
        self.keeper.evaluated(metrics)
        return metrics

    # -- parts ------------------------------------------------------------------------------

    def _enter(self, number: int, vector: TeamVector, random: Mapping[str, Any]) -> Play:
        """Begin a stage, or go on with the one that was saved, and with its random numbers."""
        resumed = self.resumed
        going_on = resumed is not None and resumed.stage == number
        if not going_on:
            self.use_team(vector.team)
            self._give_up()  # what the last stage's environments were playing
        play = Play(number, vector, make_players(self, vector))
        if resumed is not None and going_on:
            self._give_up(play.resume(resumed))
            set_random_state(random)
        else:
            play.begin(self._begun)
        self._restarts, self.play, self.resumed = self.restarts, play, None
        return play

    def use_team(self, team: TeamSpec) -> None:
        """Go on with the team of a stage."""
        if team != self.team:
            self.team = team
            self.networks = self.networks.for_team(team)
            self.statistics = self.statistics.for_team(self.args, team)
            self.learner.use(self.networks, self.statistics.preparation())
            self.memory = None
        if self.memory is None:
            width = self.networks.actors.initial_state(1).shape[-1]
            seed = derived_seed(self.args.seed, REPLAY)
            self.memory = Memory(self.args, team, width, seed)
            self._remembered_from = self.steps

    def _give_up(self, envs: Array | None = None) -> None:
        """The episodes of some environments (None: all) are not played to their end."""
        assert self.memory is not None
        self.memory.cut(envs)
        self.statistics.forget(envs)

    def _evaluate_if_due(self) -> None:
        """Evaluate when the latest steps reached a multiple of the interval; 0 is one."""
        interval = self.args.eval_interval
        if not interval or self.steps // interval < self._evaluations:
            return
        self._evaluate()
        self._evaluations = self.steps // interval + 1

    def _evaluate(self) -> None:
        """An evaluation of the run's own, once for each number of steps: a run that is prolonged
        was evaluated at its end."""
        if self._evaluated_at == self.steps:
            return
        with self.outside.broken_off_without_trace():
            metrics = self._evaluation(None, None, {}, of_run=True)
        self._evaluated_at = self.steps  # it is in the log, whatever the hooks do
        self._hook("on_evaluation", metrics)

    def _tell_of_episodes(self, step: VectorStep) -> None:
        for end in step.episodes:
            self.reporter.step(episode_figures(end.returns, end.length, self.team.agents))
            self._hook("on_episode", end)

    # -- saving -----------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """Numbers that a training goes on from; fit for JSON."""
        return {
            "steps": self.steps,
            "remembered_from": self._remembered_from,
            "restarts": self.restarts,
            "evaluations": self._evaluations,
            "evaluated_at": self._evaluated_at,
        }

    def load_counters(self, counters: Mapping[str, Any], begun: int | list[int]) -> None:
        """Go on from what :meth:`counters` gave; environments of the next stage begin with these
        episodes."""
        self.steps = self.reporter.env_step = counters["steps"]
        self._remembered_from = counters["remembered_from"]
        self._restarts = counters["restarts"]
        self._evaluations = counters["evaluations"]
        self._evaluated_at = counters["evaluated_at"]
        self._begun = begun

    def users_objects(self) -> list[Any]:
        """What is the user's own, and may have a state that is kept with that of the training."""
        return [*self.callbacks, self.guidance]

    def trained_modules(self) -> Mapping[str, nn.Module]:
        """Actors, critics, and their slow copies."""
        return self.networks.modules()

    def describe(self) -> dict[str, Any]:
        """What is trained; see :func:`marlogue.algorithms.run_description.description`."""
        return describe(self)

    def save_state(self, folder: Path) -> None:
        """Save all that the training depends on from here on; see
        :mod:`marlogue.algorithms.aac_state`."""
        save_state(self, folder)

    def load_state(self, folder: Path) -> None:
        """Load what :meth:`save_state` saved; :meth:`train` then goes on from it.

        Raises:
            ValueError: when it is that of another training.
        """
        load_state(self, folder)

    def save_model(self, output_dir: str | Path) -> None:
        """Save the networks and running statistics; see :mod:`marlogue.algorithms.aac_saving`."""
        statistics = self.statistics
        save_networks(
            Path(output_dir), self.args, self.networks, statistics.observations, statistics.rewards
        )

    def load_model(self, output_dir: str | Path) -> None:
        """Load what :meth:`save_model` saved into this trainer's networks.

        Raises:
            ValueError: when the folder holds other networks.
        """
        statistics = self.statistics
        load_networks(
            Path(output_dir), self.args, self.networks, statistics.observations, statistics.rewards
        )
