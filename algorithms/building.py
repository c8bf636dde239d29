"""From a trainer's arguments to agents, devices and references."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marlogue.agents import (
    LLMPolicy,
    load_causal_lm,
    load_tokenizer,
    with_float32_weights,
)
from marlogue.agents.trust import TRUST
from marlogue.algorithms.config import ActorCriticConfig, Devices, default_of

ModelSource = str | Path | PreTrainedModel
AgentSource = ModelSource | LLMPolicy
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
    if model_config is not None and not isinstance(model_config, Mapping):
        raise TypeError(f"model_config ({model_config!r}) must be a dict.")
    config = dict(model_config or {})
    for key in config:
        if key not in _MODEL_CONFIG_KEYS:
            near = difflib.get_close_matches(key, _MODEL_CONFIG_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {_MODEL_CONFIG_KEYS}."
            raise ValueError(f"model_config has the unknown key {key!r}; {hint}")
    for key in ("dtype", "torch_dtype"):
        if key in config and not _is_dtype(config[key]):
            raise ValueError(
                f"model_config[{key!r}] ({config[key]!r}) must be 'auto' or a dtype of torch such "
                "as 'float32'."
            )
    return config


def _is_dtype(value: Any) -> bool:
    if isinstance(value, str):
        return value == "auto" or isinstance(getattr(torch, value, None), torch.dtype)
    return value is None or isinstance(value, torch.dtype)


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
    return [_available(device, name) for device in listed]


def _available(device: str, name: str) -> torch.device:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"{name} ({device!r}) is no device of this machine: {error}") from error
    return torch.device(device)


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
    loading = model_kwargs(model_config, "model_kwargs")
    tokenizers = _tokenizers(sources, tokenizer, loading.get(TRUST, False))
    system_prompts = _per_agent(model_config.get("system_prompt"), len(sources))
    devices = resolve_devices(args.agent_devices, len(sources), "agent_devices")
    if any(isinstance(source, LLMPolicy) for source in sources):
        _refuse_what_policies_bring(args, tokenizer, model_config)
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
        model = load_causal_lm(source, loading)
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


def _refuse_what_policies_bring(
    args: ActorCriticConfig, tokenizer: Tokenizers, model_config: Mapping[str, Any]
) -> None:
    """An ``LLMPolicy`` says itself how it reads and generates; what would say otherwise is an
    error rather than ignored."""
    names = ("max_prompt_tokens", "prompt_overflow", "generation_batch_size", "dtype")
    said = [name for name in names if getattr(args, name) != default_of(args, name)]
    said += [name for name in ("chat_template", "system_prompt") if model_config.get(name)]
    said += [] if tokenizer is None else ["tokenizer"]
    if said:
        raise ValueError(
            f"{', '.join(said)} must be left out when agents are LLMPolicy objects, which bring "
            "their own; set it there."
        )


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
    sources: Sequence[AgentSource], tokenizer: Tokenizers, trust_remote_code: bool
) -> list[PreTrainedTokenizerBase | None]:
    """A tokenizer per agent; policies bring their own."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return [tokenizer] * len(sources)
    if tokenizer is not None:
        if not isinstance(tokenizer, list | tuple):
            raise TypeError(
                f"tokenizer ({tokenizer!r}) must be a tokenizer object, or a list of them; "
                "AutoTokenizer.from_pretrained loads one."
            )
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
                loaded[name] = load_tokenizer(name, trust_remote_code=trust_remote_code)
            result.append(loaded[name])
        else:
            raise ValueError(
                f"tokenizer must be given with model objects; agent {index} is a "
                f"{type(source).__name__}."
            )
    return result


def model_kwargs(model_config: Mapping[str, Any], nested: str) -> dict[str, Any]:
    """Arguments of ``from_pretrained``: the common ones, and those under the key ``nested``."""
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
