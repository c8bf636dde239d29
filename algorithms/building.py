"""From a trainer's arguments to agents, critics, devices and references."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents import (
    Critic,
    LLMPolicy,
    ValueHead,
    load_causal_lm,
    load_tokenizer,
    load_trunk,
    with_float32_weights,
)
from marlogue.algorithms.config import ActorCriticConfig, Devices
from marlogue.algorithms.streams import VALUE_HEAD, derived_seed

ModelSource = str | Path | PreTrainedModel
AgentSource = ModelSource | LLMPolicy
CriticSource = ModelSource | Critic
Tokenizers = PreTrainedTokenizerBase | Sequence[PreTrainedTokenizerBase] | None

_MODEL_CONFIG_KEYS = (
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "model_kwargs",
    "critic_model_kwargs",
    "critic_value_head_hidden_dim",
    "chat_template",
    "system_prompt",
)


def check_model_config(model_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of ``model_config``.

    Keys: ``dtype`` and ``attn_implementation`` of ``from_pretrained``; ``model_kwargs`` and
    ``critic_model_kwargs``, more of its arguments for agents and critics;
    ``critic_value_head_hidden_dim``; ``chat_template`` (True, or a template) and ``system_prompt``
    (a text, or one per agent) of the agents.

    Raises:
        ValueError: for an unknown key.
    """
    config = dict(model_config or {})
    for key in config:
        if key not in _MODEL_CONFIG_KEYS:
            near = difflib.get_close_matches(key, _MODEL_CONFIG_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {_MODEL_CONFIG_KEYS}."
            raise ValueError(f"model_config has the unknown key {key!r}; {hint}")
    return config


def resolve_devices(devices: Devices, count: int, name: str) -> list[torch.device]:
    """One device per model: the default one, one for all, or a list.

    Raises:
        ValueError: when a list has another length.
    """
    if devices is None:
        devices = "cuda" if torch.cuda.is_available() else "cpu"
    listed = [devices] * count if isinstance(devices, str) else list(devices)
    if len(listed) == 1:
        listed *= count
    if len(listed) != count:
        raise ValueError(
            f"{name} ({listed}) must name one device, or one for each of {count} models."
        )
    return [torch.device(device) for device in listed]


def build_policies(
    args: ActorCriticConfig,
    *,
    agent_model: ModelSource | None,
    agents: Sequence[AgentSource] | None,
    tokenizer: Tokenizers,
    model_config: Mapping[str, Any],
) -> list[LLMPolicy]:
    """One policy per agent.

    Raises:
        ValueError: naming the argument that is missing, contradicts another, or gives one model
            object to several agents.
    """
    sources = _agent_sources(agent_model, agents, args.num_agents)
    tokenizers = _tokenizers(sources, tokenizer)
    system_prompts = _per_agent(model_config.get("system_prompt"), len(sources))
    devices = resolve_devices(args.agent_devices, len(sources), "agent_devices")
    policies = []
    for source, own_tokenizer, system_prompt, device in zip(
        sources, tokenizers, system_prompts, devices, strict=True
    ):
        if isinstance(source, LLMPolicy):
            with_float32_weights(source.model).to(device)  # type: ignore[arg-type]
            source.backend.sync(source.model)
            policies.append(source)
            continue
        assert own_tokenizer is not None
        model = load_causal_lm(source, _model_kwargs(model_config, "model_kwargs"))
        policies.append(
            LLMPolicy(
                model.to(device),  # type: ignore[arg-type]
                own_tokenizer,
                chat_template=model_config.get("chat_template", False),
                system_prompt=system_prompt,
                max_prompt_tokens=args.max_prompt_tokens,
                prompt_overflow=args.prompt_overflow,
                generation_batch_size=args.generation_batch_size,
                generation_dtype=torch.bfloat16 if args.dtype == "bfloat16" else None,
            )
        )
    return policies


def build_references(args: ActorCriticConfig, policies: Sequence[LLMPolicy]) -> list[LLMPolicy]:
    """Frozen copies of the policies as they are now; they share no storage with them."""
    devices: list[torch.device] = [policy.device for policy in policies]
    if args.reference_devices is not None:
        devices = resolve_devices(args.reference_devices, len(policies), "reference_devices")
    references = []
    for policy, device in zip(policies, devices, strict=True):
        model = deepcopy(policy.model).requires_grad_(False).eval()
        references.append(LLMPolicy(model.to(device), policy.tokenizer))
    return references


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
    model = load_trunk(source, _model_kwargs(model_config, "critic_model_kwargs"))
    return Critic(
        model.to(device),  # type: ignore[arg-type]
        _critic_tokenizer(source, model, policy.tokenizer),
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


def _agent_sources(
    agent_model: ModelSource | None, agents: Sequence[AgentSource] | None, count: int
) -> list[AgentSource]:
    if (agent_model is None) == (agents is None):
        raise ValueError(
            "either agent_model (one for all agents) or agents (a list) must be given, and not "
            "both."
        )
    if agents is None:
        assert agent_model is not None
        if count > 1 and not isinstance(agent_model, str | Path):
            raise ValueError(
                f"agent_model must be an identifier when there are {count} agents: one model "
                "object can't learn to be several; pass agents=[...] with a model each."
            )
        return [agent_model] * count
    if isinstance(agents, str | Path) or not isinstance(agents, Sequence):
        raise ValueError(f"agents ({agents!r}) must be a list with one model per agent.")
    if len(agents) != count:
        raise ValueError(f"agents ({len(agents)} given) must be one per agent ({count}).")
    seen: dict[int, int] = {}
    for index, source in enumerate(agents):
        if isinstance(source, str | Path):
            continue
        model = source.model if isinstance(source, LLMPolicy) else source
        if id(model) in seen:
            raise ValueError(
                f"agents[{index}] is the same model object as agents[{seen[id(model)]}]; pass a "
                "model for each agent (copy.deepcopy makes one)."
            )
        seen[id(model)] = index
    return list(agents)


def _tokenizers(
    sources: Sequence[AgentSource], tokenizer: Tokenizers
) -> list[PreTrainedTokenizerBase | None]:
    """A tokenizer per agent; policies bring their own."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return [tokenizer] * len(sources)
    if tokenizer is not None:
        given = list(tokenizer)
        if len(given) != len(sources):
            raise ValueError(f"tokenizer ({len(given)} given) must be one per agent.")
        return list(given)
    loaded: dict[str, PreTrainedTokenizerBase] = {}
    result: list[PreTrainedTokenizerBase | None] = []
    for index, source in enumerate(sources):
        if isinstance(source, LLMPolicy):
            result.append(None)
        elif isinstance(source, str | Path):
            name = str(source)
            if name not in loaded:
                loaded[name] = load_tokenizer(name)
            result.append(loaded[name])
        else:
            raise ValueError(
                f"tokenizer must be given with model objects; agent {index} is a "
                f"{type(source).__name__}."
            )
    return result


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
        raise ValueError(f"critics ({len(sources)} given) must be {count}.")
    return sources


def _critic_tokenizer(
    source: ModelSource, model: PreTrainedModel, agents_own: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """The tokenizer of an identifier; a model object reads what the agent reads."""
    if isinstance(source, str | Path):
        own = load_tokenizer(source)
        return agents_own if same_vocabulary(own, agents_own) else own
    size = model.config.get_text_config().vocab_size
    if size < len(agents_own):
        raise ValueError(
            f"the critic's vocabulary ({size}) must cover the agent's tokenizer "
            f"({len(agents_own)}); pass marlogue.agents.Critic(model, tokenizer) with the critic's "
            "own tokenizer."
        )
    return agents_own


def _model_kwargs(model_config: Mapping[str, Any], nested: str) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    dtype = model_config.get("dtype", model_config.get("torch_dtype"))
    if dtype is not None:
        kwargs["dtype"] = dtype
    if model_config.get("attn_implementation") is not None:
        kwargs["attn_implementation"] = model_config["attn_implementation"]
    more = dict(model_config.get(nested) or {})
    if "torch_dtype" in more:
        more["dtype"] = more.pop("torch_dtype")
    return kwargs | more


def _per_agent(value: str | Sequence[str] | None, count: int) -> list[str | None]:
    if value is None or isinstance(value, str):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"system_prompt ({len(value)} given) must be one, or one per agent.")
    return list(value)
