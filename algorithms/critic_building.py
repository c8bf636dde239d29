"""From a trainer's arguments to critics and value heads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents import (
    Critic,
    LLMPolicy,
    TextAttentionCritic,
    ValueHead,
    load_tokenizer,
    load_trunk,
    with_float32_weights,
)
from marlogue.agents.trust import TRUST
from marlogue.algorithms.building import ModelSource, model_kwargs, resolve_devices
from marlogue.algorithms.config import ActorCriticConfig, MAACConfig, default_of
from marlogue.algorithms.histories import OwnText
from marlogue.algorithms.streams import ATTENTION, VALUE_HEAD, derived_seed

CriticSource = ModelSource | Critic


def build_critics(
    args: ActorCriticConfig,
    *,
    critic_model: CriticSource | None,
    critics: Sequence[CriticSource] | None,
    count: int,
    policies: Sequence[LLMPolicy],
    model_config: Mapping[str, Any],
    value_head_hidden_dim: int | None,
) -> list[Critic]:
    """``count`` critics; the same object several times where one preloaded critic is shared.

    Raises:
        ValueError: naming the argument that is missing or does not fit.
    """
    sources = _critic_sources(critic_model, critics, count)
    _check_critic_models(sources, policies)
    devices = resolve_devices(args.critic_devices, count, "critic_devices")
    if args.critic_devices is None and args.agent_devices is not None:
        devices = [policies[min(k, len(policies) - 1)].device for k in range(count)]
    built: list[Critic] = []
    for index, (source, device) in enumerate(zip(sources, devices, strict=True)):
        before = next((k for k in range(index) if sources[k] is source), None)
        if before is not None and not isinstance(source, str | Path):
            built.append(built[before])
            continue
        built.append(
            _build_critic(
                source, policies[index], device, args, model_config, value_head_hidden_dim, index
            )
        )
    return built


def _check_critic_models(sources: Sequence[CriticSource], policies: Sequence[LLMPolicy]) -> None:
    """Weights have one owner: no critic on an agent's model, no two critics on one model."""
    owners = {id(policy.model): f"agent {index}" for index, policy in enumerate(policies)}
    for index, source in enumerate(sources):
        if isinstance(source, str | Path):
            continue
        if any(source is other for other in sources[:index]):
            warnings.warn(
                f"critics[{index}] is a preloaded critic that several agents share; pass a model "
                "for each, or an identifier, for critics of their own.",
                stacklevel=7,
            )
            continue
        model = source.model if isinstance(source, Critic) else source
        if id(model) in owners:
            raise ValueError(
                f"critics[{index}] must be a model of its own, but is the model of "
                f"{owners[id(model)]}; pass a copy, or use IAC with use_separate_critic=False."
            )
        owners[id(model)] = f"critics[{index}]"


def _build_critic(
    source: CriticSource,
    policy: LLMPolicy,
    device: torch.device,
    args: ActorCriticConfig,
    model_config: Mapping[str, Any],
    value_head_hidden_dim: int | None,
    index: int,
) -> Critic:
    if isinstance(source, Critic):
        with_float32_weights(source.model).to(device)  # type: ignore[arg-type]
        source.value_head.to(device)
        return source
    loading = model_kwargs(model_config, "critic_model_kwargs")
    model = load_trunk(source, loading)
    return Critic(
        model.to(device),  # type: ignore[arg-type]
        _critic_tokenizer(source, model, policy.tokenizer, loading.get(TRUST, False)),
        value_head_hidden_dim=value_head_hidden_dim,
        generator=head_generator(args.seed, index),
    )


def add_value_heads(policies: Sequence[LLMPolicy], hidden_dim: int | None, seed: int) -> None:
    """Give each policy a value head on its own trunk, unless it has one."""
    for index, policy in enumerate(policies):
        if policy.value_head is None:
            head = ValueHead(policy.trunk.width, hidden_dim, generator=head_generator(seed, index))
            policy.value_head = head.to(policy.device)


def head_generator(seed: int, index: int) -> torch.Generator:
    """Source of a new value head's weights: of the run's seed, never the global generator."""
    return torch.Generator().manual_seed(derived_seed(seed, VALUE_HEAD, index))


def same_vocabulary(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether the ids of one mean the same to the other."""
    return one is other or one.get_vocab() == other.get_vocab()


def own_text(args: ActorCriticConfig, critic: Critic, policies: Sequence[LLMPolicy]) -> OwnText:
    """What a critic reads of each agent."""
    shares_ids = [same_vocabulary(critic.tokenizer, policy.tokenizer) for policy in policies]
    return OwnText(args.critic_type, critic.tokenizer, shares_ids)


def with_attention(critic: Critic, args: MAACConfig, num_agents: int) -> TextAttentionCritic:
    """The critic with attention between its trunk and its value head; one that has it stays.

    Raises:
        ValueError: when it was made for another team or with other heads than the configuration
            says, or the heads do not divide its width.
    """
    if not isinstance(critic, TextAttentionCritic):
        return TextAttentionCritic(
            critic.model,
            critic.tokenizer,
            num_agents,
            num_heads=args.attention_heads,
            value_head=critic.value_head,
            generator=torch.Generator().manual_seed(derived_seed(args.seed, ATTENTION)),
        )
    wanted = {"num_agents": num_agents, "attention_heads": args.attention_heads}
    own = {
        "num_agents": critic.attention.num_agents,
        "attention_heads": critic.attention.others.num_heads,
    }
    for name, value in wanted.items():
        if own[name] != value and (name == "num_agents" or value != default_of(args, name)):
            raise ValueError(
                f"{name} ({value}) must be that of the critic ({own[name]}); make a "
                "TextAttentionCritic that fits, or pass a model."
            )
    critic.attention.to(critic.device)
    return critic


def _critic_sources(
    critic_model: CriticSource | None, critics: Sequence[CriticSource] | None, count: int
) -> list[CriticSource]:
    if (critic_model is None) == (critics is None):
        raise ValueError(
            "either critic_model or critics (a list) must be given, and not both; for a critic "
            "like the agents, pass the agents' identifier."
        )
    if critics is None:
        assert critic_model is not None
        sources: list[CriticSource] = [critic_model]
    elif isinstance(critics, str | Path) or not isinstance(critics, Sequence):
        raise ValueError(f"critics ({critics!r}) must be a list of models.")
    else:
        sources = list(critics)
    if len(sources) == 1:
        sources *= count
    if len(sources) != count:
        why = (
            "MAAC has one centralised critic; IAC has one per agent"
            if count == 1
            else ("one per agent, or a single one for all")
        )
        raise ValueError(f"critics ({len(sources)} given) must be {count}: {why}.")
    return sources


def _critic_tokenizer(
    source: ModelSource,
    model: PreTrainedModel,
    agents_own: PreTrainedTokenizerBase,
    trust_remote_code: bool,
) -> PreTrainedTokenizerBase:
    """The tokenizer of an identifier; a model object reads what the agent reads."""
    if isinstance(source, str | Path):
        own = load_tokenizer(source, trust_remote_code=trust_remote_code)
        return agents_own if same_vocabulary(own, agents_own) else own
    size = model.config.get_text_config().vocab_size
    if size < len(agents_own):
        raise ValueError(
            f"the critic's vocabulary ({size}) must cover the agent's tokenizer "
            f"({len(agents_own)}); pass marlogue.agents.Critic(model, tokenizer) with the critic's "
            "own tokenizer."
        )
    return agents_own
