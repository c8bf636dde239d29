"""MAPPO on a text environment, made of TorchRL's own modules.

    pip install "marlogue[torchrl]"
    python examples/plugging_in/torchrl_mappo.py

Two agents read a cue and choose among four words; both are to choose the one that stands for it.
The policy sees its agent's embedded prompt, the critic the global state. Chance earns 0.16 per
episode. Prints the mean return before and after; about 10 seconds on a CPU.
"""

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.modules import MaskedCategorical, MultiAgentMLP, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from marlogue.envs import coordination_v0
from marlogue.wrappers import CandidateActions, EmbedObservations, HashedNgrams, NumericState
from marlogue.wrappers.torchrl import torchrl_env

WORDS = list(coordination_v0.ANSWERS.values())
EPISODES = 128  # per iteration


def make_env():
    env = CandidateActions(coordination_v0.parallel_env(shuffle=True), WORDS)
    return NumericState(EmbedObservations(env, HashedNgrams(64)))


def main(iterations=8, seed=0):
    torch.manual_seed(seed)
    env = torchrl_env(make_env, num_envs=8)
    env.set_seed(seed)
    policy = ProbabilisticActor(
        TensorDictModule(
            MultiAgentMLP(64, 4, 2, centralized=False, share_params=True, depth=1, num_cells=64),
            in_keys=[("agents", "observation")],
            out_keys=[("agents", "logits")],
        ),
        in_keys={"logits": ("agents", "logits"), "mask": ("agents", "action_mask")},
        out_keys=[("agents", "action")],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        log_prob_key=("agents", "log_prob"),
    )
    state_value = nn.Sequential(nn.Linear(2 * 64, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = TensorDictModule(
        nn.Sequential(state_value, nn.Unflatten(-1, (2, 1))),  # one for each agent
        in_keys=["state"],
        out_keys=[("agents", "state_value")],
    )
    loss_module = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=0.01)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    for module in (loss_module, gae):
        keys = {name: ("agents", name) for name in ("reward", "done", "terminated", "advantage")}
        module.set_keys(value=("agents", "state_value"), value_target=("agents", "target"), **keys)
    loss_module.set_keys(action=("agents", "action"), sample_log_prob=("agents", "log_prob"))
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-2)

    returns = []
    collector = Collector(
        env, policy, frames_per_batch=EPISODES, total_frames=EPISODES * iterations
    )
    for batch in collector:
        rewards = batch["next", "agents", "reward"]  # [envs, steps, agents, 1]
        episodes = batch["next", "done"].sum().item()
        returns.append(rewards.mean(-2).sum().item() / episodes)
        with torch.no_grad():
            gae(batch)
        for _ in range(10):
            losses = loss_module(batch.reshape(-1))
            loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        collector.update_policy_weights_()
    collector.shutdown()
    print(f"mean return of an episode before: {returns[0]:.2f}, after: {returns[-1]:.2f}")
    return returns


if __name__ == "__main__":
    main()
