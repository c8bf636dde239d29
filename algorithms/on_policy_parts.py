"""Parts of the on-policy trainers: who plays their episodes, and how."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch

from marlogue.algorithms.collect import Collector
from marlogue.algorithms.config import ActorCriticConfig
from marlogue.algorithms.environments import Environments
from marlogue.algorithms.evaluation import Evaluator
from marlogue.algorithms.streams import EVAL, TRAIN
from marlogue.algorithms.team_guidance import Guidance
from marlogue.algorithms.text_guidance import TextGuide
from marlogue.algorithms.transcript_lines import write_unfinished
from marlogue.envs import BatchRunner

if TYPE_CHECKING:
    from marlogue.algorithms.on_policy import OnPolicyTrainer


def make_collector(trainer: OnPolicyTrainer) -> Collector:
    """Plays the episodes that are learnt from."""
    args = trainer.args
    return Collector(
        trainer.environments.train_runner,
        trainer.agents,
        args.sampling(),
        max_turns=args.num_turns,
        stream=(args.seed, TRAIN),
        bootstrap_actions=args.critic_type == "q",
        parallel=args.parallel_training == "mp",
        guide=trainer.guide,
        salvage=partial(write_unfinished, trainer.logdir, "training"),
        check=trainer.keeper.interruption.check,
    )


def make_evaluator(trainer: OnPolicyTrainer) -> Evaluator:
    """Plays evaluations."""
    args, env = trainer.args, trainer.environments.eval
    assert env is not None
    collector = Collector(
        BatchRunner(env),
        trainer.agents,
        args.sampling(args.eval_temperature),
        max_turns=args.num_turns,
        stream=(args.seed, EVAL),
        parallel=args.parallel_training == "mp",
        salvage=partial(write_unfinished, trainer.logdir, "evaluation"),
        check=trainer.keeper.interruption.check,
    )
    return Evaluator(
        env,
        collector,
        num_samples=args.eval_num_samples,
        batch_size=args.eval_batch_size,
        seed=args.seed,
    )


def make_guide(guidance: Guidance | bool | None, environments: Environments) -> TextGuide | None:
    """What asks the guidance; None for none.

    Raises:
        ValueError: when the environment is to have one of its own and has none.
    """
    if guidance is None or guidance is False:
        return None
    guide = TextGuide(guidance)
    guide.of(environments.train_runner.env_of(0))  # fails now where there is none
    return guide


def compute_in(dtype: str, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """The precision of computation as a context."""
    if dtype == "float32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def warn_of_truncated_sampling(args: ActorCriticConfig) -> None:
    """What is sampled otherwise than it is scored biases the policy gradient."""
    if args.sampling().restricts:
        warnings.warn(
            "top_p, top_k or min_new_tokens restrict what is sampled, but the score is that of "
            "the whole distribution: the policy gradient is then biased. Set top_p=1.0, "
            "top_k=None and min_new_tokens=0 for an unbiased one.",
            stacklevel=5,
        )
