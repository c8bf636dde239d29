"""Which fields of a configuration of actor-attention-critic contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marlogue.algorithms.aac_config import AACConfig


def check_together(args: AACConfig) -> None:
    """Raise a ValueError when some fields leave another one without effect, or make no sense
    together."""
    _check_graph(args)
    _check_attention(args)
    _check_recurrence(args)
    _check_learning(args)


def _check_attention(args: AACConfig) -> None:
    if args.critic_architecture != "attention":
        for name, unused in (("attention", "full"), ("attention_entropy_coef", 0)):
            if getattr(args, name) != unused:
                raise ValueError(
                    f"{name} ({getattr(args, name)!r}) acts only with "
                    f"critic_architecture='attention'; it is {args.critic_architecture!r}."
                )
    graph, position = args.attention_graph, args.attention_position
    if args.attention == "local" and (graph is None) == (position is None):
        raise ValueError(
            "attention ('local') needs either attention_position (indices of the position in "
            "an observation) or attention_graph (for each agent those it attends to); give one "
            "of them."
        )
    if args.attention != "local" and graph is not None:
        raise ValueError(
            f"attention ({args.attention!r}) must be 'local' for attention_graph to act; set "
            "attention='local', or leave the graph out."
        )
    if args.critic_architecture == "concat" and args.has_local_values:
        raise ValueError(
            "critic_architecture ('concat') has no local values; set consistency_coef=0 and "
            "local_value_coef=0, or another critic_architecture."
        )
    if args.hidden_size % args.num_heads:
        raise ValueError(
            f"hidden_size ({args.hidden_size}) must be a multiple of num_heads ({args.num_heads})."
        )


def _check_graph(args: AACConfig) -> None:
    """For each agent a list of numbers; which they may be is seen with the team."""
    graph = args.attention_graph
    if graph is None:
        return
    lists = graph if isinstance(graph, list | tuple) else [graph]
    for agent, listed in enumerate(lists):
        numbers = listed if isinstance(listed, list | tuple) else [None]
        if any(type(other) is not int for other in numbers):
            raise ValueError(
                f"attention_graph ({listed!r} for agent {agent}) must be a list that has for "
                "each agent the list of the indices of those it attends to."
            )


def _check_recurrence(args: AACConfig) -> None:
    if not args.recurrent:
        return
    if args.num_queries is not None:
        raise ValueError(
            f"num_queries ({args.num_queries}) must be None with actor_trunk='gru', whose "
            "targets follow every agent along an episode."
        )


def _check_learning(args: AACConfig) -> None:
    if args.target_entropy is not None and not args.learn_temperature:
        raise ValueError(
            f"target_entropy ({args.target_entropy}) acts only with learn_temperature=True; "
            "set it, or leave target_entropy out."
        )
    if args.team_head == "monotonic" and not args.consistency_coef:
        raise ValueError(
            "team_head ('monotonic') is trained by the consistency loss alone; set "
            "consistency_coef above 0, or team_head='sum'."
        )
    if args.learning_starts >= args.total_steps:
        raise ValueError(
            f"learning_starts ({args.learning_starts}) must be below total_steps "
            f"({args.total_steps}), or nothing is learnt; set learning_starts lower."
        )
    if args.deterministic and args.learn_temperature:
        raise ValueError(
            "learn_temperature (True) adjusts the entropy of what policies draw; with "
            "deterministic (True) they draw nothing: set one of them to False."
        )
    if args.replay_size < 4 * args.num_envs:
        raise ValueError(
            f"replay_size ({args.replay_size}) must hold four observations of each of the "
            f"num_envs ({args.num_envs}) environments; set replay_size higher."
        )
    if args.warmup_steps and args.lr_scheduler_type == "constant":
        raise ValueError(
            f"warmup_steps ({args.warmup_steps}) does nothing with lr_scheduler_type="
            "'constant'; set 'constant_with_warmup', or another schedule."
        )
