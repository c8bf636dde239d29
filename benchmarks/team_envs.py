"""Steps per CPU second of spread_v0 and pursuit_v0, beside mpe2 and SISL at the same sizes.

    python benchmarks/team_envs.py [--seconds 3] [--agents 3 30 100 300]

Needs the extras `mpe` and `sisl`. Random actions, one thread; CPU time, so that other programs on
the machine count little.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from pettingzoo import ParallelEnv

from marlogue.envs import pursuit_v0, spread_v0

warnings.filterwarnings("ignore", category=DeprecationWarning)


def rate(env: ParallelEnv, seconds: float) -> float:
    """Steps per CPU second, resets included; at least one step is made."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    steps, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds or not steps:
        if not env.agents:
            env.reset()
        env.step({agent: int(rng.integers(5)) for agent in env.agents})
        steps += 1
    env.close()
    return steps / spent


def pairs(num_agents: int) -> dict[str, tuple[ParallelEnv, ParallelEnv]]:
    """Ours and theirs."""
    from mpe2 import simple_spread_v3
    from pettingzoo.sisl import pursuit_v5

    nearest = {"observe": "nearest", "half_width": None}
    pursuit = pursuit_v0.parallel_env(num_agents=num_agents, num_evaders=None, size=None)
    sisl = pursuit_v5.parallel_env(
        n_pursuers=num_agents,
        n_evaders=pursuit.num_evaders,
        x_size=pursuit.size[0],
        y_size=pursuit.size[1],
    )
    return {
        "spread": (
            spread_v0.parallel_env(num_agents=num_agents),
            simple_spread_v3.parallel_env(N=num_agents),
        ),
        "spread, nearest": (
            spread_v0.parallel_env(num_agents=num_agents, **nearest),
            simple_spread_v3.parallel_env(N=num_agents),
        ),
        "pursuit": (pursuit, sisl),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time for each")
    parser.add_argument("--agents", type=int, nargs="+", default=[3, 30, 100, 300])
    args = parser.parse_args()
    print(f"{'agents':>6}  {'environment':16}{'ours':>9}{'theirs':>9}{'times':>9}")
    for num_agents in args.agents:
        for name, (ours, theirs) in pairs(num_agents).items():
            quick, slow = rate(ours, args.seconds), rate(theirs, args.seconds)
            row = f"{num_agents:6}  {name:16}{quick:9.0f}{slow:9.2f}{quick / slow:9.0f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
