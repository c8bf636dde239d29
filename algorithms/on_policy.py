"""The loop of the on-policy learners: collect, judge, update, log."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from marlogue.agents import Critic, LLMPolicy, update_mode
from marlogue.algorithms.actor import Actor
from marlogue.algorithms.bad_batches import BadBatches
from marlogue.algorithms.bad_numbers import BadNumbers
from marlogue.algorithms.building import (
    AgentSource,
    ModelSource,
    Tokenizers,
    build_policies,
    build_references,
    check_model_config,
)
from marlogue.algorithms.callbacks import Callback
from marlogue.algorithms.collect import Item
from marlogue.algorithms.config import ActorCriticConfig
from marlogue.algorithms.critic_building import CriticSource
from marlogue.algorithms.critic_sides import CriticSide
from marlogue.algorithms.environments import Environments, make_environments
from marlogue.algorithms.groups import Group, make_groups
from marlogue.algorithms.items import EnvOrFactory, Items
from marlogue.algorithms.judges import TrunkTerm
from marlogue.algorithms.keeping import Keeper
from marlogue.algorithms.kept_trainer import KeptTrainer
from marlogue.algorithms.metrics import MetricsCallback
from marlogue.algorithms.on_policy_parts import (
    compute_in,
    make_collector,
    make_evaluator,
    make_guide,
    warn_of_truncated_sampling,
)
from marlogue.algorithms.on_policy_state import describe, load_state, optimizers_of, save_state
from marlogue.algorithms.open_update import OpenUpdate
from marlogue.algorithms.optimizer import Optimizer
from marlogue.algorithms.outside import Outside
from marlogue.algorithms.rates import Rates
from marlogue.algorithms.reference_store import ReferenceStore
from marlogue.algorithms.reporter import Reporter
from marlogue.algorithms.running import checked_callbacks, checked_logdir
from marlogue.algorithms.sample import Sample
from marlogue.algorithms.saving import load_weights, modules_of, save_team
from marlogue.algorithms.streams import SHUFFLE
from marlogue.algorithms.team_guidance import Guidance
from marlogue.algorithms.watch import Watch
from marlogue.envs import TextEnv


class OnPolicyTrainer(KeptTrainer):
    """What MAAC and IAC share; see :class:`MAACTrainer` and :class:`IACTrainer`.

    Per iteration: episodes are played until the buffers are full (all together, since the
    policies don't change meanwhile); values, targets and advantages are fixed; then, agent by
    agent and turn by turn, each minibatch makes one step of the actor and one of its critic.

    A subclass builds its critics in :meth:`_make_critic_side`.
    """

    config_class: type[ActorCriticConfig]
    args: ActorCriticConfig
    critics: list[Critic]

    def __init__(
        self,
        *,
        args: ActorCriticConfig | None = None,
        agent_model: ModelSource | None = None,
        agents: Sequence[AgentSource] | None = None,
        critic_model: CriticSource | None = None,
        critics: Sequence[CriticSource] | None = None,
        tokenizer: Tokenizers = None,
        reward_func: Callable[..., Any] | None = None,
        reward_processor: Callable[[float], float] | None = None,
        formatters: Callable[..., str] | Sequence[Callable[..., str]] | None = None,
        external_transition: Callable[..., Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        env: EnvOrFactory | None = None,
        eval_env: EnvOrFactory | None = None,
        guidance: Guidance | bool | None = None,
        model_config: Mapping[str, Any] | None = None,
        metrics_callback: MetricsCallback | None = None,
        wandb_config: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        logdir: str | Path | None = None,
    ) -> None:
        args = self.config_class() if args is None else args
        if not isinstance(args, self.config_class):
            raise TypeError(
                f"args (a {type(args).__name__}) must be a {self.config_class.__name__}."
            )
        self.callbacks = checked_callbacks(callbacks)
        self.logdir = checked_logdir(logdir)
        self.environments: Environments = make_environments(
            args,
            env=env,
            eval_env=eval_env,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            reward_func=reward_func,
            reward_processor=reward_processor,
            formatters=formatters,
            external_transition=external_transition,
        )
        self.args = args = self.environments.args
        self.model_config = check_model_config(model_config)
        self.items = Items(
            self.environments.train,
            epochs=args.num_train_epochs,
            max_steps=args.max_steps,
            shuffle=args.shuffle or self.environments.shuffles,
            seed=args.seed,
        )
        self.guide = make_guide(guidance, self.environments)
        self.rates = Rates(args, self.items.total, guided=self.guide is not None)
        self.agents: list[LLMPolicy] = build_policies(
            args,
            agent_model=agent_model,
            agents=agents,
            tokenizer=tokenizer,
            model_config=self.model_config,
        )
        self.references: list[LLMPolicy] = (
            build_references(args, self.agents) if args.reference_kl_enabled else []
        )
        keep = None if self.logdir is None else BadBatches(self.logdir, self)
        self.bad_numbers = BadNumbers(args.max_bad_steps, keep)
        self.watch = Watch(args, guided=self.guide is not None)
        self.critic_side = self._make_critic_side(critic_model, critics)
        self.actors = [self._make_actor(index) for index in range(len(self.agents))]
        self.reference_store = ReferenceStore(
            self.references, sources=agents or [agent_model], logdir=self.logdir
        )
        self.keeper = Keeper(self, args, "eval/team/turn_1/expected_return")
        self.reporter = Reporter(
            logdir=self.logdir,
            wandb_config=wandb_config,
            metrics_callback=metrics_callback,
            logging_steps=args.logging_steps,
        )
        self.buffers: list[list[Sample]] = [[] for _ in self.agents]
        self.open_update: OpenUpdate | None = None
        self.updates = 0
        self.items_done = self.items.state_dict()
        self.outside = Outside(self.users_objects, self.environments.drops())
        self._epochs = 0  # the first one whose rest may have to be learnt from
        self._evaluated = -1  # items that were done at the latest evaluation
        warn_of_truncated_sampling(args)

    # -- what a subclass says ---------------------------------------------------------------

    @abstractmethod
    def _make_critic_side(
        self, critic_model: CriticSource | None, critics: Sequence[CriticSource] | None
    ) -> CriticSide:
        """Build ``self.critics`` and say who judges whom."""

    def _trunk_term(self, agent_idx: int) -> TrunkTerm | None:
        """The value loss on the actor's own trunk, where there is one."""
        return None

    # -- training ---------------------------------------------------------------------------

    def train(self) -> None:
        """Train for the configured epochs or steps.

        Raises:
            Whatever a callback, the reward function or the transition raises, with a note of
            where it happened. Figures and transcripts so far are on disk by then, and so is what
            had been learnt: in a checkpoint, or in ``logdir/interrupted`` (the message says where).
            RunInterrupted: after a signal.
            RunFolderError, ResumeError, CheckpointError: when the folder or the checkpoint is that
            of another training, or damaged.
            RuntimeError: when it has been trained already.
        """
        if self.items.taken:
            raise RuntimeError(
                "this trainer has been trained already; build a new one, and load_model into it "
                "to go on from there (or set resume='auto' to go on with an interrupted run)."
            )
        self.outside.check()  # what cannot be saved is an error now, not in a day
        config = {"algorithm": type(self).__name__, **asdict(self.args)}
        with self.environments, self.keeper.opened():
            total = self.items.total
            with self.reporter.run(config, total) as progress, self.keeper.guarding():
                progress.update(self.position)
                self._hook("on_train_start")
                self._train(progress)
                self._hook("on_train_end")
        if not self.updates:
            warnings.warn(
                "nothing was learnt: no sample was left to train on (did the reward function "
                "abstain from all?).",
                stacklevel=2,
            )

    def _train(self, progress: tqdm[Any]) -> None:
        self._finish_update()
        if self.items.epoch > self._epochs or self.items.over:  # stopped after the last item of one
            self._end_epoch()
        for epoch in self.items.epochs():
            while batch := list(islice(epoch, self._items_until_update())):
                self._learn_from(batch, progress)
                self.keeper.save_if_due()
            self._end_epoch()
        self.reporter.report(self.buffers)
        if self.args.eval_interval and self._evaluated < self.items.taken:
            self._evaluate_after(self.items.taken)
        self.keeper.finished()

    def _end_epoch(self) -> None:
        self._update([k for k, buffer in enumerate(self.buffers) if buffer])
        self._epochs = self.items.epoch

    def evaluate(self) -> dict[str, float]:
        """Play the first ``eval_num_samples`` rows of the evaluation dataset, one answer each.

        Neither weights nor random numbers of the training are touched.

        Returns:
            Means per agent and turn and of the team, under ``eval/``; empty without an
            evaluation dataset.
        """
        metrics = self._evaluation()
        if metrics:
            self._hook("on_evaluation", metrics)
        return metrics

    def _evaluation(self) -> dict[str, float]:
        """Evaluate, without the hooks."""
        if self.environments.eval is None or self.args.eval_num_samples == 0:
            return {}
        metrics = make_evaluator(self).run(self.reporter.metrics_callback)
        self.reporter.evaluated(metrics)
        self.keeper.evaluated(metrics)
        return metrics

    def _items_until_update(self) -> int:
        """How many items can be played before any buffer can be full: each gives an agent at
        most ``num_generations * num_turns`` samples."""
        fullest = max(len(buffer) for buffer in self.buffers)
        room = self.args.rollout_buffer_size - fullest
        return max(1, -(-room // (self.args.num_generations * self.args.num_turns)))

    def _learn_from(self, items: Sequence[Item], progress: tqdm[Any]) -> None:
        self._evaluate_if_due(items[0])
        with self.outside.broken_off_without_trace():
            samples_by_item = self._collect(items)
        with self.keeper.half_done():
            for item, samples in zip(items, samples_by_item, strict=True):
                self._evaluate_if_due(item)  # the policies are still those before this item
                self._receive(samples)
                progress.update()
            self.items_done = self.items.state_dict()
        full = self.args.rollout_buffer_size
        self._update([k for k, buffer in enumerate(self.buffers) if len(buffer) >= full])

    def _evaluate_if_due(self, item: Item) -> None:
        interval = self.args.eval_interval
        if interval and item.index % interval == 0 and item.index > self._evaluated:
            self._evaluate_after(item.index)

    def _evaluate_after(self, items: int) -> None:
        with self.outside.broken_off_without_trace():
            metrics = self._evaluation()
        self._evaluated = items  # it is in the log, whatever the hooks do
        if metrics:
            self._hook("on_evaluation", metrics)

    def _collect(self, items: Sequence[Item]) -> list[list[Sample]]:
        started = time.perf_counter()
        samples_by_item = make_collector(self).collect(items, self.args.num_generations)
        samples = [sample for samples in samples_by_item for sample in samples]
        self.reporter.rate("generation", samples, started)
        for index, actor in enumerate(self.actors):
            own = [sample for sample in samples if sample.agent_idx == index]
            if own and actor.reference is not None:
                with update_mode(actor.policy.model, actor.reference.model):
                    actor.penalize(own, self.args.reference_kl_coef)
        self.critic_side.expect(samples)
        return samples_by_item

    def _receive(self, samples: list[Sample]) -> None:
        """Take an item's samples into the buffers."""
        for sample in samples:
            if not sample.abstained:
                self.buffers[sample.agent_idx].append(sample)
        self.reporter.collected(samples)
        self._hook("on_item", samples)

    def _update(self, agents: Sequence[int]) -> None:
        """Learn from the buffers of these agents, in order, and empty them."""
        if not agents:
            return
        actors = [actor.optimizer for actor in self.actors]
        rates = self.rates.next(self.items.taken, actors, self.critic_side.optimizers)
        self.reporter.latest(rates)
        groups: list[Group] = []
        for agent in agents:
            stream = (self.args.seed, SHUFFLE, self.updates)
            groups += make_groups(agent, self.buffers[agent], self.args.batch_size, stream)
            self.buffers[agent] = []
        self.open_update = OpenUpdate(groups)
        self._finish_update()

    def _finish_update(self) -> None:
        """Learn what is left of the update that is under way, if there is one."""
        update = self.open_update
        if update is None:
            return
        started = time.perf_counter()
        models = [agent.model for agent in self.agents] + [c.model for c in self.critics]
        with update_mode(*models, checkpointing=self.args.gradient_checkpointing):
            if not update.begun:
                with self.keeper.half_done():
                    discount = self.args.discount
                    told = self.critic_side.begin(update.groups, discount, self.updates)
                    self.reporter.step(told)
                    update.begun = True
            for group, number in update.remaining():
                self.keeper.interruption.check()
                with self.keeper.half_done():
                    self._learn_minibatch(group, number)
        with self.keeper.half_done():
            for agent in update.agents:
                self.agents[agent].backend.sync(self.agents[agent].model)
            self.open_update = None
            self.updates += 1
            self.reporter.rate("update", update.samples, started)
            self._tell_of(update.samples)
        self.watch.check()

    def _tell_of(self, learnt: Sequence[Sample]) -> None:
        """After an update, with the samples that were learnt from."""
        self.reporter.learnt(learnt)
        self.reporter.step(self.watch.updated(learnt, optimizers_of(self)))
        self.reporter.latest(self.bad_numbers.figures())
        self.reporter.report(self.buffers)
        self._hook("on_update")

    def _learn_minibatch(self, group: Group, number: int) -> None:
        """Step one agent's critic and actor, with a minibatch of one turn.

        The critic's step comes before the actor's: they share no parameters and every target and
        advantage is fixed, so the order changes nothing, and where the values have not been
        predicted yet they come with the critic's first forward pass.
        """
        prefix = f"{self.environments.agents[group.agent_idx]}/turn_{group.turn_idx + 1}"
        minibatch = group.minibatches[number]
        try:
            if number == 0:
                self.critic_side.prepare(group)
                group.set_targets(self.args.discount)
            metrics = self.critic_side.step(group, minibatch)
            if number == 0:
                metrics |= self._set_advantages(group)
            model, actor = f"agent_{group.agent_idx}", self.actors[group.agent_idx]
            metrics |= self.bad_numbers.attempt(model, minibatch, "advantage", actor.step)
        except FloatingPointError as error:
            error.add_note(f"while updating {prefix.replace('/', ', ')}")
            raise
        self.reporter.step(metrics, prefix)
        self.reporter.step(metrics, f"team/turn_{group.turn_idx + 1}")

    def _set_advantages(self, group: Group) -> dict[str, float]:
        group.set_advantages(self.args.advantage_normalization)
        self.bad_numbers.leave_out(group.samples)
        return {} if self.guide is None else group.mix_guidance(self.rates.guidance_weight)

    # -- parts ------------------------------------------------------------------------------

    def _make_actor(self, index: int) -> Actor:
        policy = self.agents[index]
        head = policy.value_head
        parameters = list(policy.model.parameters())
        term = self._trunk_term(index)
        if term is not None and head is not None:
            parameters += list(head.parameters())
        return Actor(
            policy,
            Optimizer(parameters, self.args.agent_learning_rate, self.args.max_grad_norm),
            temperature=self.args.scoring_temperature,
            micro_batch_size=self.args.micro_batch_size,
            compute=self._compute(policy.device),
            trunk_term=term,
            reference=self.references[index] if self.references else None,
        )

    def _compute(self, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
        return compute_in(self.args.dtype, device)

    @property
    def env_step(self) -> int:
        """Joint actions scored so far: the x-axis of the log."""
        return self.reporter.env_step

    @property
    def critic_learning_rate(self) -> float:
        """The critics' learning rate before the schedule; by default that of the agents."""
        own = self.args.critic_learning_rate
        return self.args.agent_learning_rate if own is None else own

    # -- saving -----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Items that are done."""
        return int(self.items_done["taken"])

    def trained_modules(self) -> Mapping[str, nn.Module]:
        """Models of agents and critics, with their heads."""
        parts: dict[str, LLMPolicy | Critic] = {f"agent_{k}": a for k, a in enumerate(self.agents)}
        parts |= {f"critic_{k}": critic for k, critic in enumerate(self.critics)}
        return {
            f"{name}, {what}": module
            for name, part in parts.items()
            for what, module in modules_of(part).items()
        }

    def describe(self) -> dict[str, Any]:
        """What is trained; see :mod:`marlogue.algorithms.on_policy_state`."""
        return describe(self)

    def save_state(self, folder: Path) -> None:
        """As in the class above; see :mod:`marlogue.algorithms.on_policy_state`."""
        save_state(self, folder)

    def load_state(self, folder: Path) -> None:
        """As in the class above."""
        load_state(self, folder)

    def counters(self) -> dict[str, Any]:
        """Plain numbers that are part of the state."""
        return {
            "updates": self.updates,
            "epochs": self._epochs,
            "evaluated": self._evaluated,
            "rates": self.rates.state_dict(),
            "bad_numbers": self.bad_numbers.state_dict(),
            "watch": self.watch.state_dict(),
        }

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        """Take over what :meth:`counters` gave."""
        self.updates = counters["updates"]
        self._epochs = counters["epochs"]
        self._evaluated = counters["evaluated"]
        self.rates.load_state_dict(counters["rates"])
        self.bad_numbers.load_state_dict(counters["bad_numbers"])
        self.watch.load_state_dict(counters["watch"])

    def users_objects(self) -> list[Any]:
        """What the user has given and may have a state of its own."""
        played = self.environments.train_runner.env_of(0)
        callbacks = played.task.callbacks if isinstance(played, TextEnv) else []
        own = [self.reporter.metrics_callback, None if self.guide is None else self.guide.given]
        return [*callbacks, *own, *self.callbacks]

    def save_model(self, output_dir: str | Path) -> None:
        """Save agents, critics, value heads and tokenizers.

        Every ``agent_I`` is a folder that ``from_pretrained`` loads; see
        :func:`marlogue.algorithms.saving.save_team`.
        """
        save_team(self.agents, self.critics, Path(output_dir))

    def load_model(self, output_dir: str | Path) -> None:
        """Load the weights that :meth:`save_model` saved into this trainer's models.

        Raises:
            ValueError: when the folder holds another team.
        """
        load_weights(self.agents, self.critics, Path(output_dir))
        for agent in self.agents:
            agent.backend.sync(agent.model)
