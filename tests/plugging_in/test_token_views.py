"""PPO of Stable-Baselines3 learns a task whose texts it reads and writes as tokens."""

import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from marlogue.envs import coordination_v0
from marlogue.wrappers import (
    EmbedObservations,
    HashedNgrams,
    TokenActions,
    TokenByToken,
    TokenObservations,
    Words,
)
from marlogue.wrappers.sb3 import TeamVecEnv

SAID = Words(list(coordination_v0.ANSWERS.values()), end="<end>")
READ = Words(coordination_v0.VOCABULARY)


def all_at_once():
    texts = coordination_v0.parallel_env()
    return TokenObservations(TokenActions(texts, SAID, 2), READ, 2)


def one_by_one():
    words = TokenByToken(coordination_v0.parallel_env(), SAID, 2, ignore_masked=True)
    return EmbedObservations(words, HashedNgrams(64))


@pytest.mark.parametrize("make", [all_at_once, one_by_one])
def test_ppo_learns(make):
    env = VecMonitor(TeamVecEnv(make(), num_episodes=8))
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=16,
        batch_size=128,
        n_epochs=6,
        learning_rate=3e-3,
        gamma=1.0,
        ent_coef=0.01,
        seed=0,
        device="cpu",
    )
    before, _ = evaluate_policy(model, env, n_eval_episodes=200, deterministic=False)
    model.learn(4096)
    after, _ = evaluate_policy(model, env, n_eval_episodes=200, deterministic=False)
    # Of five tokens one is right and one says nothing: 0.5 p + 0.5 p^2 with p = 0.2 is 0.12.
    assert before < 0.3
    assert after > 0.8
