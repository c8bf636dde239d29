"""What can go wrong in silence: each watcher knows one such thing, and what to do about it.

A watcher is shown the figures of each update, and speaks when it is sure: every threshold here is
one that a run which learns does not reach (the examples and learning tests stay silent).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from marlogue.algorithms.update_figures import GroupFigures, Returns, UpdateFigures

#: Groups of an agent and turn that are looked at together for signal.
SIGNAL_GROUPS = 32
#: Share of them without signal above which little is learnt from the rewards. A sparse reward in
#: small groups comes near: the rest of the share is what it learns from.
NO_SIGNAL = 0.9
#: Updates over which a critic is judged; fewer are too noisy with some ten samples each.
VARIANCE_UPDATES = 50
#: Explained variance below which it is worse than a constant, not merely new (about 0).
WORST_VARIANCE = -0.2
#: Updates whose targets spread less than this share of the widest spread seen say nothing of the
#: critic: the task is solved there, and its last errors are all there is.
SPREAD = 0.1
#: Share of the first entropy per token below which a policy tries nothing new, and updates.
ENTROPY_SHARE, ENTROPY_UPDATES = 0.05, 5
#: Updates in which every completion was cut, and the fewest completions in them.
CUT_UPDATES, CUT_COMPLETIONS = 20, 100
#: Below so many tokens, answers are cut on purpose: one word of a list, a number.
CUT_TOKENS = 8
#: KL per token, in multiples of the first entropy per token: a policy that only settled on what the
#: reference says most gets to once that entropy, one that says what it never would gets beyond.
KL_ENTROPIES, KL_LEAST, KL_UPDATES = 2.0, 1.0, 3


class Watcher(ABC):
    """Looks for one thing, and says it once."""

    name: ClassVar[str]
    """Of the thing, in the state."""

    @abstractmethod
    def see(self, update: UpdateFigures, returns: Returns) -> str | None:
        """What to warn of after this update, if anything."""

    def state_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {name: value for name, value in vars(self).items() if name.startswith("seen_")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        vars(self).update(state)


class EqualReturns(Watcher):
    """Groups in which every sample got the same: their advantages are the critic's errors."""

    name = "equal returns"

    def __init__(self) -> None:
        self.seen_silent: list[bool] = []

    @override
    def see(self, update: UpdateFigures, returns: Returns) -> str | None:
        for group in update.groups:
            if group.size > 1 and math.isfinite(group.mean):
                silent = is_silent(group) and not returns.near_best(group)
                self.seen_silent = [*self.seen_silent, silent][-SIGNAL_GROUPS:]
        count = sum(self.seen_silent)
        if len(self.seen_silent) < SIGNAL_GROUPS or count < NO_SIGNAL * SIGNAL_GROUPS:
            return None
        return (
            f"in {count} of the last {SIGNAL_GROUPS} groups (one agent and turn of an update) all "
            "samples got the same return, below the best that was seen: their advantages are the "
            "errors of the critic alone. Look at the transcripts: is the reward too hard to get, "
            "or does it not depend on the answers? Give partial rewards, raise temperature, or "
            "collect more samples per update (rollout_buffer_size, num_generations)."
        )


class WorseThanAConstant(Watcher):
    """A critic that predicts worse than the mean of the targets would."""

    name = "explained variance"

    def __init__(self) -> None:
        self.seen_updates: list[list[float]] = []
        self.seen_widest = 0.0

    @override
    def see(self, update: UpdateFigures, returns: Returns) -> str | None:
        known = [g for g in update.groups if g.size > 1 and math.isfinite(g.target_variance)]
        samples = sum(group.size for group in known)
        if not samples:
            return None
        targets = sum(group.size * group.target_variance for group in known)
        errors = sum(group.size * group.error_variance for group in known)
        spread = math.sqrt(targets / samples)
        self.seen_widest = max(self.seen_widest, spread)
        if spread <= SPREAD * self.seen_widest:
            return None
        self.seen_updates = [*self.seen_updates, [errors, targets]][-VARIANCE_UPDATES:]
        left, whole = (sum(column) for column in zip(*self.seen_updates, strict=True))
        explained = 1 - left / whole
        if len(self.seen_updates) < VARIANCE_UPDATES or explained >= WORST_VARIANCE:
            return None
        return (
            f"the critic's explained variance over the last {VARIANCE_UPDATES} updates is "
            f"{explained:.2f}: it predicts worse than a constant would, and adds noise to the "
            "advantages. Lower critic_learning_rate or value_loss_coef if value_loss jumps, raise "
            "the former if it hardly moves, and see whether rewards are far from the size of 1 "
            "(reward_processor)."
        )


class EntropyCollapse(Watcher):
    """A policy that says one thing only, and not the best one."""

    name = "entropy"

    def __init__(self) -> None:
        self.seen_first = math.nan
        self.seen_low = 0

    @override
    def see(self, update: UpdateFigures, returns: Returns) -> str | None:
        if not math.isfinite(update.entropy):
            return None
        if math.isnan(self.seen_first):
            self.seen_first = update.entropy
        # Of each agent's first turn: later ones may hold only the episodes that go wrong.
        firsts = {group.place.rpartition("/")[0]: group for group in reversed(update.groups)}
        solved = all(returns.near_best(group) for group in firsts.values())
        low = update.entropy < ENTROPY_SHARE * self.seen_first and not solved
        self.seen_low = self.seen_low + 1 if low else 0
        if self.seen_low < ENTROPY_UPDATES:
            return None
        return (
            f"the entropy per token has been under {ENTROPY_SHARE:.0%} of its first value for "
            f"{ENTROPY_UPDATES} updates ({update.entropy:.2g} nats, {self.seen_first:.2g} at "
            "first), and returns are below the best that were seen: the policy tries nothing new. "
            "Lower agent_learning_rate, raise temperature, or set reference_kl_enabled."
        )


class AlwaysCut(Watcher):
    """Completions that never end by themselves.

    Args:
        max_new_tokens: at which they are cut.
    """

    name = "cut completions"

    def __init__(self, max_new_tokens: int) -> None:
        self.max_new_tokens = max_new_tokens
        self.seen_updates = 0
        self.seen_completions = 0

    @override
    def see(self, update: UpdateFigures, returns: Returns) -> str | None:
        if self.max_new_tokens < CUT_TOKENS:
            return None
        whole = update.cut == 1.0
        self.seen_updates = self.seen_updates + 1 if whole else 0
        self.seen_completions = self.seen_completions + update.size if whole else 0
        if self.seen_updates < CUT_UPDATES or self.seen_completions < CUT_COMPLETIONS:
            return None
        return (
            f"all {self.seen_completions} completions of the last {self.seen_updates} updates were "
            f"cut at max_new_tokens ({self.max_new_tokens}): what is rewarded is never a whole "
            "answer. Raise max_new_tokens, ask for short answers in the prompt, or see whether the "
            "model knows its end token (chat_template)."
        )


class ReferenceRunaway(Watcher):
    """A policy far from what its reference would ever say."""

    name = "reference kl"

    def __init__(self) -> None:
        self.seen_first = math.nan
        self.seen_far = 0

    @override
    def see(self, update: UpdateFigures, returns: Returns) -> str | None:
        if math.isnan(self.seen_first):
            self.seen_first = update.entropy
        entropy = 0.0 if math.isnan(self.seen_first) else self.seen_first
        bound = max(KL_LEAST, KL_ENTROPIES * entropy)
        self.seen_far = self.seen_far + 1 if update.token_kl > bound else 0
        if self.seen_far < KL_UPDATES:
            return None
        return (
            f"the KL to the reference is {update.token_kl:.3g} nats per token (in {KL_UPDATES} "
            f"updates in a row above {bound:.3g}, {KL_ENTROPIES:g} times the first entropy): the "
            "policy says what its reference never would. Raise reference_kl_coef, lower "
            "agent_learning_rate, or set max_reference_kl to stop there."
        )


def is_silent(group: GroupFigures) -> bool:
    """Whether every sample of a group of several got the same return."""
    return group.size > 1 and group.low == group.high
