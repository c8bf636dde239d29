"""Replay of actor-attention-critic: what is kept of the steps, and what is drawn of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Space
from numpy.typing import NDArray
from torch import Tensor

from marlogue.agents.attention_memory import SHARE, available_memory
from marlogue.agents.teams import TeamSpec
from marlogue.algorithms.aac_config import AACConfig, RewardSharing
from marlogue.algorithms.aac_diagnostics import priority_figures
from marlogue.algorithms.aac_rows import Preparation
from marlogue.algorithms.annealing import as_anneal
from marlogue.algorithms.normalizers import ObservationNormalizer, RewardScaler
from marlogue.algorithms.prioritized_replay import PrioritizedReplayBuffer
from marlogue.algorithms.replay import ReplayBuffer
from marlogue.algorithms.replay_data import GuidanceKind, ReplayLayout, TeamStep, Transitions
from marlogue.algorithms.replay_files import load_replay, save_replay, saved_layout
from marlogue.algorithms.sequence_replay import SequenceReplay, Sequences
from marlogue.algorithms.team_views import TeamView, VectorStep, team_step

Array = NDArray[Any]
Kinds = tuple[tuple[Space[Any], Space[Any]], ...]


class Statistics:
    """Running means and deviations of what the team sees and earns.

    Args:
        args: the configuration.
        team: the agents.
        kinds: types of agents (see `TeamSpec.kinds`) in the order of their statistics; None for
            those of ``team``.

    Attributes:
        kinds: the same.
        observations: None when observations are left as they are.
        rewards: None when rewards are.
    """

    def __init__(self, args: AACConfig, team: TeamSpec, kinds: Kinds | None = None) -> None:
        self.kinds = team.kinds if kinds is None else kinds
        self.observations: ObservationNormalizer | None = None
        self.rewards: RewardScaler | None = None
        if args.normalize_observations:
            self.observations = ObservationNormalizer(
                _groups(team, self.kinds), team.observation_size, num_groups=len(self.kinds)
            )
        if args.scale_rewards:
            self.rewards = RewardScaler(args.num_envs, team.num_agents, args.discount)

    def update(self, step: TeamStep, over: Array, envs: Array) -> None:
        """Take in a step of these environments."""
        if self.observations is not None:
            self.observations.update(step.observations, step.present)
        if self.rewards is not None:
            self.rewards.update(step.rewards, step.present, over, envs)

    def forget(self, envs: Array | None = None) -> None:
        """The episodes of some environments (None: all) broke off."""
        if self.rewards is not None:
            self.rewards.forget(envs)

    def for_team(self, args: AACConfig, team: TeamSpec) -> Statistics:
        """The same statistics for another team.

        Raises:
            ValueError: when it has more types of agents.
        """
        fresh = Statistics(args, team, self.kinds)
        if self.observations is not None and fresh.observations is not None:
            fresh.observations.load_state_dict(self.observations.state_dict())
        if self.rewards is not None and fresh.rewards is not None:
            fresh.rewards.load_state_dict(self.rewards.state_dict())
        return fresh

    def preparation(self) -> Preparation:
        """What is done to a batch with them, as they are when it is done."""
        return Preparation(self._observed, self._earned)

    def _observed(self, observations: Tensor) -> Tensor:
        return observations if self.observations is None else self.observations.tensor(observations)

    def _earned(self, rewards: Tensor) -> Tensor:
        return rewards if self.rewards is None else self.rewards(rewards)


def _groups(team: TeamSpec, kinds: Kinds) -> Array:
    """[N], whose statistics each agent's are: those of its type. Types that are not known (of
    agents whose bounds grow with their number) are taken in their order."""
    if len(team.kinds) > len(kinds):
        raise ValueError(
            f"the team (of {len(team.kinds)} types of agents) must have the types that "
            f"normalize_observations has statistics of ({len(kinds)}); begin with an environment "
            "that has all of them, or set normalize_observations=False."
        )
    if all(kind in kinds for kind in team.kinds):
        return np.array([kinds.index(team.kinds[own]) for own in team.types])
    return np.array(team.types)


class Memory:
    """The replay of a team.

    Args:
        args: the configuration.
        team: the agents.
        hidden_size: of the actors' memory; 0 for none.
        seed: seed of the draws.
    """

    def __init__(self, args: AACConfig, team: TeamSpec, hidden_size: int, seed: int) -> None:
        self.args = args
        self.team = team
        self.hidden_size = hidden_size
        self.seed = seed
        self._buffer: ReplayBuffer | None = None  # made when it is known what guidance is like

    def __len__(self) -> int:
        """Steps that can be drawn."""
        return 0 if self._buffer is None else len(self._buffer)

    def add(
        self, view: TeamView, actions: Array, step: VectorStep, hidden: Array | None
    ) -> TeamStep:
        """Record a step.

        Returns:
            What was recorded: rows for ``step.kept_envs``, rewards shared as configured.
        """
        rows = team_step(view, actions, step, hidden, availability=self.team.discrete)
        shared = share_rewards(rows.rewards, rows.present, self.args.reward_sharing)
        rows = rows._replace(rewards=shared)
        if step.lost.all():  # and it is not known what guidance is like
            self.cut(step.lost_envs)
            return rows
        if self._buffer is None:
            self._buffer = self._made(_kind(step.guidance))
        self._buffer.add(rows, step.kept_envs)
        self.cut(step.lost_envs)
        return rows

    def cut(self, envs: Array | None = None) -> None:
        """The episodes of some environments (None: all) broke off."""
        if self._buffer is not None:
            self._buffer.cut(envs)

    def draw(self, progress: float, device: torch.device) -> Transitions | Sequences:
        """A batch, at a share of the training."""
        assert self._buffer is not None
        if isinstance(self._buffer, PrioritizedReplayBuffer):
            self._buffer.progress = progress
        if not self.args.recurrent:
            return self._buffer.sample(self.args.batch_size, device)
        stretches = SequenceReplay(self._buffer, self.args.sequence_length, self.args.burn_in)
        return stretches.sample(self.args.batch_size, device)

    def learnt(self, batch: Transitions | Sequences, errors: Tensor) -> None:
        """Set the priorities of a batch from its TD errors [B]."""
        if isinstance(self._buffer, PrioritizedReplayBuffer):
            self._buffer.update_priorities(batch.serials, errors.cpu().numpy())

    def figures(self) -> dict[str, float]:
        """For the log."""
        if not isinstance(self._buffer, PrioritizedReplayBuffer):
            return {}
        return priority_figures(self._buffer.held_priorities())

    def save(self, folder: Path) -> None:
        """Save all that is held; nothing before the first step."""
        folder.mkdir()
        if self._buffer is not None:
            save_replay(self._buffer, folder)

    def load(self, folder: Path) -> None:
        """Go on from what :meth:`save` saved.

        Raises:
            ValueError: when it is of another team or configuration; nothing is loaded then.
        """
        saved = saved_layout(folder)
        if saved is None:
            self._buffer = None
            return
        buffer = self._made(saved.guidance)
        load_replay(buffer, folder)
        self._buffer = buffer

    def _made(self, guidance: GuidanceKind) -> ReplayBuffer:
        layout = ReplayLayout.of(
            self.team,
            availability=self.team.discrete,
            guidance=guidance,
            hidden_size=self.hidden_size,
        )
        args = self.args
        _check_room(layout, args)
        common: dict[str, Any] = {
            "num_envs": args.num_envs,
            "n_step": args.n_step,
            "discount": args.discount,
            "seed": self.seed,
        }
        if args.replay == "uniform":
            return ReplayBuffer(args.replay_size, layout, **common)
        return PrioritizedReplayBuffer(
            args.replay_size,
            layout,
            alpha=args.priority_alpha,
            beta=as_anneal(args.priority_beta),
            **common,
        )


def _kind(guidance: Array | None) -> GuidanceKind:
    """What a step's guidance is: [E, N] advantages or [E, N, A] values."""
    if guidance is None:
        return "none"
    return "advantage" if guidance.ndim == 2 else "values"


def _check_room(layout: ReplayLayout, args: AACConfig) -> None:
    """Raise a MemoryError when replay will not fit into what is free, rather than be ended by the
    system when it is nearly full."""
    slots = min(args.replay_size, 2 * args.total_steps)  # at most two observations a step
    need, free = slots * layout.bytes_per_slot(), available_memory(torch.device("cpu"))
    if free is not None and need > SHARE * free:
        raise MemoryError(
            f"replay_size ({args.replay_size:,}) will take {need / 2**30:,.1f} GiB for "
            f"{layout.num_agents} agents, of {free / 2**30:,.1f} GiB that are free; set it to at "
            f"most {int(SHARE * free / layout.bytes_per_slot()):,}."
        )


def share_rewards(rewards: Array, present: Array, sharing: RewardSharing) -> Array:
    """What each agent learns from: rewards [E, N], of those present [E, N]."""
    if sharing == "own":
        return rewards
    totals = np.where(present, rewards, 0.0).sum(-1, keepdims=True)
    if sharing == "mean":
        totals = totals / np.maximum(present.sum(-1, keepdims=True), 1)
    return np.where(present, totals, 0.0).astype(np.float32)
