"""MaskablePPO of sb3-contrib on TeamVecEnv: masks that differ from row to row."""

import numpy as np
import pytest

from tests.support.command_line import ROOT
from tests.support.example_runs import returns_of
from tests.support.libraries import needs

sb3_contrib = needs("sb3_contrib")
pytestmark = pytest.mark.optional

from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported  # noqa: E402
from stable_baselines3.common.vec_env import VecMonitor  # noqa: E402

from marlogue.envs import coordination_v0  # noqa: E402
from marlogue.wrappers import (  # noqa: E402
    ActionMask,
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
)
from marlogue.wrappers.sb3 import TeamVecEnv  # noqa: E402
from marlogue.wrappers.token_by_token import TokenByToken  # noqa: E402
from marlogue.wrappers.vocabulary import Words  # noqa: E402

WORDS = list(coordination_v0.ANSWERS.values())


def team(**kwargs):
    """Row k offers k + 1 words."""
    rows = [
        {**row, "words": WORDS[: index + 1]} for index, row in enumerate(coordination_v0.dataset())
    ]
    texts = coordination_v0.parallel_env(dataset=rows, **kwargs)
    return EmbedObservations(CandidateActions(texts, "words", num_candidates=4), HashedNgrams(32))


def test_masks_belong_to_the_observations_that_were_returned_last():
    env = VecMonitor(TeamVecEnv(team(), 2))
    assert is_masking_supported(env)  # it is asked before the first reset, too
    env.seed(0)
    env.reset()
    expected = np.tri(4, dtype=bool)[[0, 0, 1, 1]]
    assert np.array_equal(get_action_masks(env), expected)
    env.step(np.zeros(4, int))  # all begin anew, on rows 2 and 3
    masks = get_action_masks(env)
    assert masks.dtype == np.bool_
    assert np.array_equal(masks, np.tri(4, dtype=bool)[[2, 2, 3, 3]])
    assert env.env_method("action_masks", indices=[1])[0].tolist() == [True, True, True, False]


def test_asking_for_masks_first_does_not_move_the_rows():
    asked, other = TeamVecEnv(team(), 2), TeamVecEnv(team(), 2)
    assert asked.has_attr("action_masks")
    assert np.array_equal(asked.reset(), other.reset())


def test_without_masks_it_says_so():
    texts = coordination_v0.parallel_env()
    words = TokenByToken(texts, Words(WORDS, end="."), 2)
    assert TeamVecEnv(EmbedObservations(words, HashedNgrams(8))).has_attr("action_masks")

    class Maskless(EmbedObservations):
        def observe(self, agent, observation, info):
            info.pop("action_mask")
            return super().observe(agent, observation, info)

    env = TeamVecEnv(Maskless(words, HashedNgrams(8)))
    with pytest.raises(ValueError, match="does not support action masking"):
        sb3_contrib.MaskablePPO("MlpPolicy", env, n_steps=8, device="cpu").learn(16)


@pytest.mark.parametrize(
    ("policy", "make"),
    [
        ("MlpPolicy", lambda: team(num_turns=2)),
        ("MultiInputPolicy", lambda: ActionMask(team())),
        (
            "MlpPolicy",
            lambda: EmbedObservations(
                TokenByToken(coordination_v0.parallel_env(), Words(WORDS, end="."), 3),
                HashedNgrams(16),
            ),
        ),
    ],
)
def test_it_trains_and_never_chooses_what_is_masked(policy, make):
    env = TeamVecEnv(make, 4)  # a masked action would be refused
    model = sb3_contrib.MaskablePPO(policy, env, n_steps=16, batch_size=32, seed=0, device="cpu")
    before = model.policy.action_net.weight.clone()
    model.learn(256)
    assert model.num_timesteps == 256
    assert (model.policy.action_net.weight != before).any()


def test_it_learns_the_task():
    before, after = returns_of(ROOT / "examples" / "plugging_in" / "sb3_maskable_ppo.py")
    assert before < 0.45
    assert after > 0.85
