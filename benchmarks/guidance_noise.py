"""How noisy each agent's gradient is, with and without descent guidance, as the team grows.

    OMP_NUM_THREADS=1 python benchmarks/guidance_noise.py [--quick] [--policy uniform|soft]

On `cloud_scheduling_v0`, for each agent the gradient of one step's objective by the logits of its
policy. Noise is the estimator's variance, summed over the logits of all agents that have a job,
divided by the squared norm of its exact mean, both summed over states; what is drawn is the joint
action, with the state and the jobs fixed. The estimators of agent i:

- ``guided``: ``sum_a pi(a) (G_i(a) - mean G_i) grad log pi(a)``, G the environment's guidance (the
  exact distance), which depends on what the other agents do;
- ``guided, sampled``: the same at the agent's own drawn action, ``G_i(a_i) - mean G_i`` times the
  score (the form of the paper);
- ``counterfactual``: ``Q_i(a_i) - sum_b pi(b) Q_i(b)`` times the score (Foerster et al. 2018), Q_i
  minus the true cost of this step with action b in place of a_i, the others as drawn;
- ``REINFORCE``: ``(V - cost)`` times the score, with the exact V = E cost as its baseline.

The last two estimate the gradient of minus the team's cost, the first two that of minus half the
squared distance to the fluid reference. Both means are exact: G is linear in what the others
send, and whether a server is overloaded depends on the few agents that reach it, whose choices are
enumerated. One step's cost favours REINFORCE: a return over many steps has all their noise, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marlogue.envs.cloud_cluster import overload, placed, shares
from marlogue.envs.cloud_scheduling_v0 import CloudScheduling, parallel_env

Floats = NDArray[np.float64]

SIZES = (5, 20, 50, 200, 1500)
ESTIMATORS = ("guided", "guided, sampled", "counterfactual", "REINFORCE")
#: Steps between two states, so that they differ, and states of an episode.
APART, STATES = 20, 5


@dataclass
class Moment:
    """One state: loads, the jobs to send, and the policies.

    Shapes: N agents and servers, A candidates, R resources.
    """

    env: CloudScheduling
    probs: Floats  # [N, A]

    def __post_init__(self) -> None:
        cluster = self.env.cluster
        self.load, self.candidates = self.env.load, cluster.candidates
        self.steps = self.env.jobs[:, None] / cluster.capacities[self.candidates]  # [N, A, R]
        self.rows = np.arange(len(self.load))
        self.share = shares(cluster.capacities)
        self.busy = self.env.jobs.any(1)

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """A joint action [N]."""
        chosen: NDArray[np.int64] = (
            self.probs.cumsum(1) > generator.uniform(size=(len(self.rows), 1))
        ).argmax(1)
        return chosen

    def sent(self, chosen: NDArray[np.int64]) -> Floats:
        """The loads with the jobs in them, [N, R]."""
        rows = self.rows
        return placed(self.load, self.steps[rows, chosen], self.candidates[rows, chosen])

    def cost(self, chosen: NDArray[np.int64]) -> float:
        """The team's cost of this step."""
        return float(self.share @ overload(self.sent(chosen)))

    def guidance(self, chosen: NDArray[np.int64]) -> Floats:
        """[N, A], G of the environment."""
        actions = dict(zip(self.env.possible_agents, chosen.tolist(), strict=True))
        return self.env.guidance(self.load, actions)

    def own_values(self, chosen: NDArray[np.int64]) -> Floats:
        """[N, A]: minus the cost of each own action, the others as drawn, up to what is the same
        for all of an agent's actions."""
        own = (np.arange(self.probs.shape[1]) == chosen[:, None])[..., None] * self.steps
        others = self.sent(chosen)[self.candidates] - own
        added = _worst(others + self.steps) - _worst(others)
        return -self.share[self.candidates] * added

    def mean_guidance(self) -> Floats:
        """[N, A], the exact mean of G over the others' actions: G at the others' mean loads."""
        expected = self.probs[..., None] * self.steps
        flat = expected.reshape(-1, expected.shape[2])
        mean = placed(self.load, flat, self.candidates.ravel())
        others = mean[self.candidates] - expected
        weight = self.env.cluster.capacities * len(mean) / self.env.cluster.capacities.sum(0)
        away = others - self.env.reference[self.candidates]
        return -(weight[self.candidates] * (away + self.steps / 2) * self.steps).sum(2)

    def mean_own_values(self) -> tuple[Floats, float]:
        """The exact means of `own_values` [N, A] and of the cost: every subset of the agents that
        reach a server, with its probability."""
        count, choices = self.probs.shape
        # [S, K]: the agents that reach each server, and by which action. On the ring K = A.
        order = np.argsort(self.candidates.ravel(), kind="stable").reshape(count, choices)
        agents, actions = np.divmod(order, choices)
        chance, step = self.probs[agents, actions], self.steps[agents, actions]
        subsets = (np.arange(2**choices)[:, None] >> np.arange(choices)) & 1  # [2^K, K]
        loads = self.load[:, None] + np.einsum("mk,skr->smr", subsets, step)
        waiting = _worst(loads)  # [S, 2^K]
        each = np.where(subsets[None], chance[:, None], 1 - chance[:, None])  # [S, 2^K, K]
        values = np.zeros((count, choices))
        for k in range(choices):
            others = np.delete(each, k, 2).prod(2)
            sends = np.where(subsets[:, k], 1.0, -1.0)
            added = (others * sends * waiting).sum(1)
            values[agents[:, k], actions[:, k]] = -self.share * added
        return values, float(self.share @ (each.prod(2) * waiting).sum(1))


def _worst(load: Floats) -> Floats:
    """Waiting demand [...] of loads [..., R]."""
    return np.maximum(load.max(-1) - 1.0, 0.0)


def expected_gradient(probs: Floats, values: Floats) -> Floats:
    """By the logits, of ``sum_a pi(a) value(a)``."""
    return probs * (values - (probs * values).sum(1, keepdims=True))


def score_gradient(probs: Floats, chosen: NDArray[np.int64], gains: Floats) -> Floats:
    """By the logits, of ``log pi(a_i)``, times a gain [N]."""
    taken = np.arange(probs.shape[1]) == chosen[:, None]
    return (taken - probs) * gains[:, None]


def estimates(moment: Moment, chosen: NDArray[np.int64], value: float) -> list[Floats]:
    """One draw of each of ESTIMATORS, [N, A] each."""
    probs, rows = moment.probs, moment.rows
    guidance, own = moment.guidance(chosen), moment.own_values(chosen)
    gains = guidance - (probs * guidance).sum(1, keepdims=True)
    credit = own - (probs * own).sum(1, keepdims=True)
    team = np.full(len(rows), value - moment.cost(chosen))
    return [
        expected_gradient(probs, guidance),
        score_gradient(probs, chosen, gains[rows, chosen]),
        score_gradient(probs, chosen, credit[rows, chosen]),
        score_gradient(probs, chosen, team),
    ]


def policy(env: CloudScheduling, kind: str) -> Floats:
    """The probabilities [N, A]: uniform; or soft, a policy half way to the guidance's choice."""
    if kind == "uniform":
        return np.full(env.cluster.candidates.shape, 1 / env.cluster.candidates.shape[1])
    values = env.guidance(env.load, {})
    centred = values - values.mean(1, keepdims=True)
    logits = 2 * centred / max(centred.std(), 1e-9)
    chances = np.exp(logits - logits.max(1, keepdims=True))
    return chances / chances.sum(1, keepdims=True)


def moments(num_agents: int, seed: int, kind: str) -> Iterator[Moment]:
    """States on the way of the policy itself, on one cluster."""
    env = parallel_env(num_agents, cluster_seed=seed, max_steps=APART * (STATES + 1))
    env.reset(seed=seed)
    generator = np.random.default_rng(seed)
    for step in range(1, APART * STATES + 1):
        moment = Moment(env, policy(env, kind))
        if step % APART == 0:
            yield moment
        actions = moment.draw(generator).tolist()
        env.step(dict(zip(env.possible_agents, actions, strict=True)))


def measure(num_agents: int, seed: int, draws: int, kind: str) -> Floats:
    """[3, 4]: sums over the states of a cluster, for each of ESTIMATORS: of variances, of squared
    norms, and of the squared norms of the errors of the draws' means, times the draws."""
    sums = np.zeros((3, len(ESTIMATORS)))
    generator = np.random.default_rng([num_agents, seed])
    for moment in moments(num_agents, seed, kind):
        own, value = moment.mean_own_values()
        pulled = expected_gradient(moment.probs, moment.mean_guidance())
        paid = expected_gradient(moment.probs, own)
        exact = np.stack([pulled, pulled, paid, paid])[:, moment.busy]
        total, spread = np.zeros_like(exact), np.zeros(len(ESTIMATORS))
        for _ in range(draws):
            drawn = np.stack(estimates(moment, moment.draw(generator), value))[:, moment.busy]
            total += drawn - exact
            spread += ((drawn - exact) ** 2).sum((1, 2))
        sums += [spread / draws, (exact**2).sum((1, 2)), (total**2).sum((1, 2)) / draws]
    return sums


@dataclass
class Noise:
    """Of each of ESTIMATORS: the noise, its standard error over clusters (0 for a single one),
    and how far the draws' means are from the exact means: 1 when as far as chance has it."""

    ratio: Floats
    error: Floats
    off: Floats


def summary(sums: Floats) -> Noise:
    """Of the sums of several clusters, [C, 3, 4]."""
    variance, squared, missed = sums.sum(0)
    ratio = variance / squared
    apart = sums[:, 0] - ratio * sums[:, 1]
    return Noise(ratio, np.sqrt((apart**2).sum(0)) / squared, missed / variance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--policy", choices=("uniform", "soft"), default="uniform")
    parser.add_argument("--agents", type=int, default=4500, help="agents of all clusters together")
    parser.add_argument("--clusters", type=int, default=100, help="clusters at most")
    parser.add_argument("--draws", type=int, default=50, help="joint actions of each state")
    parser.add_argument("--quick", action="store_true", help="a quarter of all three")
    args = parser.parse_args()
    shrink = 4 if args.quick else 1
    print(
        f"{args.policy} policies: variance / squared norm of the exact gradient (standard error)\n"
    )
    print("| N | clusters | " + " | ".join(ESTIMATORS) + " | worst mean | CPU s |")
    print("| --- " * (len(ESTIMATORS) + 4) + "|")
    noise: dict[int, Floats] = {}
    for size in map(int, args.sizes.split(",")):
        begun = time.process_time()
        clusters = max(1, min(args.agents // size, args.clusters) // shrink)
        sums = [measure(size, seed, args.draws // shrink, args.policy) for seed in range(clusters)]
        found = summary(np.stack(sums))
        noise[size] = found.ratio
        cells = [f"{r:.4g} ({e:.1g})" for r, e in zip(found.ratio, found.error, strict=True)]
        row = [size, clusters, *cells, f"{found.off.max():.2f}"]
        row.append(f"{time.process_time() - begun:.0f}")
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    first, last = min(noise), max(noise)
    print(f"\nGrowth from N = {first} to N = {last}:")
    for name, factor in zip(ESTIMATORS, noise[last] / noise[first], strict=True):
        print(f"- {name}: {factor:.3g}")


if __name__ == "__main__":
    main()
