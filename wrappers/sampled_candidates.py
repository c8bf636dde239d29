"""Candidates that a language model proposes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from marlogue.envs.task import whole_number
from marlogue.wrappers.candidate_sources import CandidateSource, Request
from marlogue.wrappers.partners import Answers
from marlogue.wrappers.recent import Recent

if TYPE_CHECKING:
    from marlogue.agents.sampling import SamplingParams


class SampledCandidates(CandidateSource):
    """K texts that a language model says to the prompt; the prompts of a turn go in one batch.

    The texts depend on the seed, the prompt and the weights only: an agent that is shown the same
    prompt again has the same choice in the same order, whoever else is in the batch, and so have
    two agents of one policy. They are different from each other unless `tries` times K draws did
    not give K different ones; then some occur again.

    Texts are remembered, so the policy is taken to stay as it is; call `forget` after training it.
    A learner sees the prompt, not the texts: it can only tell the candidates of a prompt apart by
    having met that prompt. Where prompts hardly ever come again, use candidates that mean the
    same everywhere, or put them into the observation with `show=True` of `CandidateActions`.

    Args:
        policy: an `LLMPolicy` for all agents, or a dict from agent to one.
        num_candidates: K.
        params: how to sample (`marlogue.agents.SamplingParams`).
        seed: names the random numbers, together with the prompt.
        tries: bounds the draws.
        remember: of how many prompts the texts are remembered.

    Raises:
        TypeError: when an argument has a wrong type.
        ValueError: when a number is out of range, or nothing different can be sampled since the
            temperature is 0.
    """

    reads_prompts = True

    def __init__(
        self,
        policy: Answers | Mapping[str, Answers],
        num_candidates: int,
        params: SamplingParams,
        *,
        seed: int = 0,
        tries: int = 4,
        remember: int = 4096,
    ) -> None:
        self.policy = policy
        for agent, one in policy.items() if isinstance(policy, Mapping) else [("all", policy)]:
            if not isinstance(one, Answers):
                raise TypeError(f"policy ({one!r}, of {agent}) must be a marlogue.agents.LLMPolicy")
        self.num_candidates: int = whole_number("num_candidates", num_candidates)
        if not hasattr(params, "temperature"):
            raise TypeError(f"params ({params!r}) must be marlogue.agents.SamplingParams")
        if params.temperature == 0 and self.num_candidates > 1:
            raise ValueError(
                f"temperature (0) must be above 0 for {self.num_candidates} different candidates; "
                "set it to 1.0"
            )
        self.params = params
        self.seed = whole_number("seed", seed, 0)
        self.tries = whole_number("tries", tries)
        self._recent: Recent[tuple[str, str], list[str]] = Recent(remember)

    def forget(self) -> None:
        """Sample anew from now on; to be called when the policy's weights have changed."""
        self._recent.clear()

    @override
    def propose(self, requests: Sequence[Request]) -> list[list[str]]:
        keys = [(self._owner(request.agent), request.prompt) for request in requests]
        texts = {key: self._recent.get(key) for key in keys}
        missing: dict[int, list[tuple[str, str]]] = {}
        for key, known in texts.items():
            if known is None:
                missing.setdefault(id(self._policy(key[0])), []).append(key)
        for new in missing.values():
            sampled = self._sample(self._policy(new[0][0]), [prompt for _, prompt in new])
            for key in new:
                texts[key] = sampled[key[1]]
                self._recent.put(key, sampled[key[1]])
        return [list(texts[key] or ()) for key in keys]

    def _owner(self, agent: str) -> str:
        """The agent whose policy it is; "" where there is one for all."""
        return agent if isinstance(self.policy, Mapping) else ""

    def _policy(self, owner: str) -> Answers:
        if not isinstance(self.policy, Mapping):
            return self.policy
        if owner not in self.policy:
            raise ValueError(
                f"policy must hold one for {owner}; it holds those of {', '.join(self.policy)}"
            )
        return self.policy[owner]

    def _sample(self, policy: Answers, prompts: Sequence[str]) -> dict[str, list[str]]:
        """K texts for each prompt."""
        found: dict[str, dict[str, None]] = {prompt: {} for prompt in prompts}
        drawn = dict.fromkeys(prompts, 0)
        for _ in range(self.tries):
            batch: list[str] = []
            streams: list[tuple[int, ...]] = []
            for prompt, texts in found.items():
                lacking = self.num_candidates - len(texts)
                batch += [prompt] * lacking
                name = _number(prompt)
                streams += [(self.seed, name, drawn[prompt] + k) for k in range(lacking)]
                drawn[prompt] += lacking
            if not batch:
                break
            completions = policy.act(batch, self.params, streams)
            for prompt, completion in zip(batch, completions, strict=True):
                found[prompt].setdefault(completion.text)
        return {prompt: self._repeated(list(texts)) for prompt, texts in found.items()}

    def _repeated(self, texts: list[str]) -> list[str]:
        return [texts[k % len(texts)] for k in range(self.num_candidates)]


def _number(prompt: str) -> int:
    """A number that stands for a text, the same in every process."""
    encoded = prompt.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")
