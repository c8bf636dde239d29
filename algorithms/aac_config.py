"""The configuration of actor-attention-critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from marlogue.agents.rules import check_fields, device, one_of, real, truth, whole, wholes
from marlogue.algorithms.aac_config_checks import check_together
from marlogue.algorithms.aac_losses import ACTOR_GRADIENTS
from marlogue.algorithms.annealing import Anneal, AnnealLike, annealed
from marlogue.algorithms.config import SCHEDULES
from marlogue.algorithms.guidance import GUIDANCE_WEIGHT
from marlogue.algorithms.keeping_config import KeepingConfig
from marlogue.algorithms.prioritized_replay import BETA

#: What an agent learns from: its own reward, or the mean or the sum of all that act.
RewardSharing = Literal["own", "mean", "sum"]


@dataclass(kw_only=True)
class AACConfig(KeepingConfig):
    """Configuration of :class:`marlogue.algorithms.AACTrainer`, beside
    :class:`marlogue.algorithms.keeping_config.KeepingConfig`.

    A step is one joint action in one environment; it is the unit of ``total_steps``, of all
    intervals, of warm-ups and schedules. Fields that change over a training (an ``Anneal``) can be
    given as a number or as ``{start, end, until, shape}`` too.

    Args:
        total_steps: steps of the training.
        num_envs: E, environments that are played at once.
        env_backend: where they are: "serial" in this process, "subprocess", or "ray".
        num_workers: processes or Ray actors; None for one per environment, at most one per core.
        max_restarts: dead workers that are replaced before the training gives up.
        critic_architecture: "attention"; "mean" (all others alike) or "concat" (Lowe et al. 2017)
            to compare with.
        attention: "full", "linear" (cost linear in N) or "local" (the nearest, or a graph).
        attention_neighbours: K nearest of local attention.
        attention_position: indices of the position in an observation: for local attention by
            distance, and for pictures of who attends to whom (the first two).
        attention_graph: for local attention that never changes: for each agent in order the
            indices of those it attends to.
        num_heads: H.
        hidden_size: width of the critic.
        critic_layers: layers of the critic's encoders, and hidden layers of its heads.
        num_queries: M, agents per sample whose losses are taken, drawn anew each time; None for
            all. The strongest lever on time where N is large.
        team_head: how agents' local values make a team's: "sum" or "monotonic".
        actor_hidden_sizes: widths of the actors' layers.
        actor_trunk: "mlp", or "gru" for actors that remember.
        sharing: who shares weights: "all" agents, those of one "type", or "none".
        id_embedding: size of a learned vector that names an agent to the networks.
        layer_norm: normalise hidden layers.
        actor_gradient: "expected", "counterfactual", "shared_value" (discrete actions) or
            "pathwise" (continuous); None for "expected" or "pathwise". See
            :mod:`marlogue.algorithms.aac_losses`.
        deterministic: pathwise gradients of the policy's mode (as in MADDPG) instead of a sample;
            policies then act by their mode, too, and ``noise`` alone explores.
        reward_sharing: what an agent learns from: its "own" reward, or the "mean" or "sum" of all
            that act, where the team has one aim.
        discount: gamma, per step.
        n_step: steps of a target before a value takes over.
        temperature: alpha, weight of the policies' entropy.
        learn_temperature: adjust it to ``target_entropy``, beginning at ``temperature``.
        target_entropy: in nats, of each agent; None for 0.3 log(number of actions), or minus the
            size of a continuous action.
        agent_learning_rate: of the actors.
        critic_learning_rate: of the critic; None for the actors'.
        lr_scheduler_type: name of a transformers schedule, for both.
        warmup_steps: steps over which learning rates rise from 0.
        max_grad_norm: clip each gradient to this norm; None for no clipping.
        huber: beyond this TD error the critic's loss is linear; None for never.
        max_bad_steps: a step in which a number is not finite is skipped; after so many in a row (of
            the critic, or of the actors) the run stops.
        tau: share of the networks that goes into the target networks after each update.
        batch_size: B.
        train_interval: steps between trainings.
        updates_per_train: updates in each of them.
        policy_delay: critic updates for one update of the actors.
        learning_starts: steps before the first update; until then actions are random where
            ``random_start`` says so.
        random_start: uniformly random actions before ``learning_starts``.
        replay: "uniform", or "prioritized" (Schaul et al. 2016).
        replay_size: observations held.
        priority_alpha: exponent of the priorities.
        priority_beta: exponent of the importance weights over the training.
        sequence_length: steps of a stretch that recurrent actors are trained on.
        burn_in: steps before it that warm their memory up.
        epsilon: share of uniformly random actions (discrete) over the training.
        noise: standard deviation of Gaussian noise on actions (continuous) over the training.
        normalize_observations: subtract running means and divide by standard deviations, per
            type of agent.
        scale_rewards: divide rewards by the running standard deviation of their discounted sums;
            then alpha and learning rates mean the same whatever the rewards' size.
        consistency_coef: weight of the loss that makes the agents' local values add up (or mix) to
            the team's value; trains ``team_head``.
        local_value_coef: weight of the local values' own TD errors.
        attention_entropy_coef: weight of the mean attention entropy in the critic's objective;
            above 0 attention stays broad, below it becomes sharp.
        guidance_weight: w of descent guidance over the training. Let it end at 0 where the
            reference may be wrong: any weight that stays moves the optimum.
        advantage_normalization: scale learned values to unit spread over an agent's actions before
            they meet the guidance, so that w is its share whatever the rewards' size. Where an
            agent's own action hardly moves the team's reward, that turns noise into a signal.
        memory_limit: bytes that a pass of the attention critic may take; None for what is free.
        overflow: what happens to a larger one: "error", or "recompute" (in parts).
        eval_interval: steps between evaluations; 0 for none.
        eval_episodes: episodes of an evaluation.
        eval_greedy: play the most probable actions in evaluations.
        logging_steps: steps between two writes of the log.
        attention_images: draw attention maps for TensorBoard with each evaluation (with the extra
            ``plot``) and keep its first episode's attention in the run's folder.
        device: of the networks; None for a GPU where there is one.
        save_steps: steps between two checkpoints; see :class:`KeepingConfig`.
        seed: makes the run reproducible.
        verbose: print the table of metrics and a progress bar.

    Raises:
        ValueError: when a field has a wrong type or range, or fields contradict each other.
    """

    total_steps: int = whole(50_000, at_least=1)
    num_envs: int = whole(1, at_least=1)
    env_backend: Literal["serial", "subprocess", "ray"] = one_of(
        "serial", ("serial", "subprocess", "ray")
    )
    num_workers: int | None = whole(None, at_least=1, optional=True)
    max_restarts: int = whole(10, at_least=0)
    critic_architecture: Literal["attention", "mean", "concat"] = one_of(
        "attention", ("attention", "mean", "concat")
    )
    attention: Literal["full", "linear", "local"] = one_of("full", ("full", "linear", "local"))
    attention_neighbours: int = whole(8, at_least=1)
    attention_position: Sequence[int] | None = wholes(None, at_least=0, optional=True)
    attention_graph: Sequence[Sequence[int]] | None = None
    num_heads: int = whole(4, at_least=1)
    hidden_size: int = whole(128, at_least=1)
    critic_layers: int = whole(1, at_least=1)
    num_queries: int | None = whole(None, at_least=1, optional=True)
    team_head: Literal["sum", "monotonic"] = one_of("sum", ("sum", "monotonic"))
    actor_hidden_sizes: Sequence[int] = wholes((128, 128), at_least=1)
    actor_trunk: Literal["mlp", "gru"] = one_of("mlp", ("mlp", "gru"))
    sharing: Literal["all", "type", "none"] = one_of("type", ("all", "type", "none"))
    id_embedding: int = whole(0, at_least=0)
    layer_norm: bool = truth(False)
    actor_gradient: Literal["expected", "counterfactual", "shared_value", "pathwise"] | None = (
        one_of(None, ACTOR_GRADIENTS)
    )
    deterministic: bool = truth(False)
    reward_sharing: Literal["own", "mean", "sum"] = one_of("own", ("own", "mean", "sum"))
    discount: float = real(0.95, at_least=0, at_most=1)
    n_step: int = whole(1, at_least=1)
    temperature: float = real(0.01, above=0)
    learn_temperature: bool = truth(False)
    target_entropy: float | None = real(None, optional=True)
    agent_learning_rate: float = real(1e-3, at_least=0)
    critic_learning_rate: float | None = real(None, at_least=0, optional=True)
    lr_scheduler_type: str = one_of("constant", SCHEDULES)
    warmup_steps: int = whole(0, at_least=0)
    max_grad_norm: float | None = real(10.0, above=0, optional=True)
    huber: float | None = real(None, above=0, optional=True)
    tau: float = real(0.01, above=0, at_most=1)
    max_bad_steps: int = whole(3, at_least=1)
    batch_size: int = whole(256, at_least=1)
    train_interval: int = whole(10, at_least=1)
    updates_per_train: int = whole(1, at_least=1)
    policy_delay: int = whole(1, at_least=1)
    learning_starts: int = whole(1_000, at_least=0)
    random_start: bool = truth(True)
    replay: Literal["uniform", "prioritized"] = one_of("uniform", ("uniform", "prioritized"))
    replay_size: int = whole(100_000, at_least=2)
    priority_alpha: float = real(0.6, at_least=0)
    priority_beta: AnnealLike = annealed(BETA, at_least=0, at_most=1)
    sequence_length: int = whole(16, at_least=1)
    burn_in: int = whole(8, at_least=0)
    epsilon: AnnealLike = annealed(Anneal(0.0, 0.0), at_least=0, at_most=1)
    noise: AnnealLike = annealed(Anneal(0.1, 0.1), at_least=0)
    normalize_observations: bool = truth(False)
    scale_rewards: bool = truth(True)
    consistency_coef: float = real(0.0, at_least=0)
    local_value_coef: float = real(0.0, at_least=0)
    attention_entropy_coef: float = real(0.0)
    guidance_weight: AnnealLike = annealed(GUIDANCE_WEIGHT, at_least=0, at_most=1)
    advantage_normalization: bool = truth(False)
    memory_limit: int | None = whole(None, at_least=1, optional=True)
    overflow: Literal["error", "recompute"] = one_of("error", ("error", "recompute"))
    eval_interval: int = whole(5_000, at_least=0)
    eval_episodes: int = whole(20, at_least=1)
    eval_greedy: bool = truth(True)
    logging_steps: int = whole(1_000, at_least=1)
    attention_images: bool = truth(True)
    device: str | None = device()
    save_steps: int | None = whole(10_000, at_least=1, optional=True)
    seed: int = whole(0, at_least=0)
    verbose: bool = truth(True)

    def __post_init__(self) -> None:
        check_fields(self)
        check_together(self)

    @property
    def recurrent(self) -> bool:
        """Whether the actors remember."""
        return self.actor_trunk == "gru"

    @property
    def has_local_values(self) -> bool:
        """Whether a loss is taken of the agents' local values."""
        return self.consistency_coef > 0 or self.local_value_coef > 0


def chosen_gradient(args: AACConfig, discrete: bool) -> str:
    """The name of the actor gradient, by default the one that fits the actions.

    Raises:
        ValueError: when one was chosen that does not.
    """
    fitting = ("expected", "counterfactual", "shared_value") if discrete else ("pathwise",)
    name = args.actor_gradient or fitting[0]
    if name not in fitting:
        kind = "discrete" if discrete else "continuous"
        raise ValueError(
            f"actor_gradient ({name!r}) must be one of {', '.join(map(repr, fitting))}, since the "
            f"environment's actions are {kind}; leave it out for {fitting[0]!r}."
        )
    if args.deterministic and discrete:
        raise ValueError(
            "deterministic (True) is for continuous actions; set deterministic=False and for "
            "evaluations eval_greedy=True."
        )
    return name


def plain(args: AACConfig) -> dict[str, Any]:
    """The fields with what JSON and YAML can hold."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(args).items()
    }
