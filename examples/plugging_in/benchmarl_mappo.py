"""MAPPO, or another of BenchMARL's algorithms, on a text environment.

    pip install "marlogue[benchmarl]"
    python examples/plugging_in/benchmarl_mappo.py [mappo|ippo|vdn|qmix]

Two agents read a cue and choose among four words; both are to choose the one that stands for it.
Chance earns 0.16 per episode. Prints the mean return before and after; about 20 seconds on a CPU.
"""

import sys
import tempfile

from benchmarl.algorithms import IppoConfig, MappoConfig, QmixConfig, VdnConfig
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models import MlpConfig

from marlogue.envs import coordination_v0
from marlogue.wrappers import CandidateActions, EmbedObservations, HashedNgrams, NumericState
from marlogue.wrappers.benchmarl import task

WORDS = list(coordination_v0.ANSWERS.values())
ALGORITHMS = {"mappo": MappoConfig, "ippo": IppoConfig, "vdn": VdnConfig, "qmix": QmixConfig}


def make_env():
    env = CandidateActions(coordination_v0.parallel_env(shuffle=True), WORDS)
    return NumericState(EmbedObservations(env, HashedNgrams(64)))


class Returns(Callback):
    """Keeps the mean return of each batch of episodes."""

    def __init__(self):
        super().__init__()
        self.collected = []

    def on_batch_collected(self, batch):
        rewards = batch["next", "agents", "reward"]  # [envs, steps, agents, 1]
        episodes = batch["next", "done"].sum().item()
        self.collected.append(rewards.mean(-2).sum().item() / episodes)


def settings(folder, iterations):
    config = ExperimentConfig.get_from_yaml()
    config.loggers, config.create_json, config.evaluation = [], False, False
    config.save_folder, config.checkpoint_at_end = folder, True
    config.max_n_frames, config.max_n_iters = None, iterations
    config.lr, config.gamma = 0.01, 0.99
    config.on_policy_collected_frames_per_batch = 128
    config.on_policy_n_envs_per_worker, config.on_policy_minibatch_size = 8, 128
    config.on_policy_n_minibatch_iters = 10
    config.off_policy_collected_frames_per_batch, config.off_policy_n_envs_per_worker = 64, 8
    config.off_policy_memory_size = 10_000
    config.off_policy_train_batch_size, config.off_policy_n_optimizer_steps = 64, 20
    config.exploration_eps_end, config.exploration_anneal_frames = 0.02, 64 * iterations // 2
    return config


def main(algorithm="mappo", iterations=8, seed=0):
    model = MlpConfig.get_from_yaml()
    model.num_cells = [64]
    returns = Returns()
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task=task("coordination", make_env),
            algorithm_config=ALGORITHMS[algorithm].get_from_yaml(),
            model_config=model,
            seed=seed,
            config=settings(folder, iterations),
            callbacks=[returns],
        )
        experiment.run()
    first, last = returns.collected[0], returns.collected[-1]
    print(f"mean return of an episode before: {first:.2f}, after: {last:.2f}")
    return returns.collected


if __name__ == "__main__":
    main(*sys.argv[1:])
