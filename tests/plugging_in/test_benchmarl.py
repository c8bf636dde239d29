"""BenchMARL: experiments on text environments seen through views."""

import pickle
import re
import runpy
import subprocess
import sys

import pytest

from marlogue.envs import coordination_v0
from marlogue.wrappers import (
    ActionMask,
    CandidateActions,
    EmbedObservations,
    HashedNgrams,
    NumericState,
)
from tests.support.command_line import ROOT
from tests.support.envs import text_env
from tests.support.libraries import needs

torch = needs("torch")
needs("benchmarl")
from benchmarl.algorithms import IppoConfig, IqlConfig, MappoConfig, QmixConfig  # noqa: E402
from benchmarl.experiment import Callback, Experiment  # noqa: E402
from benchmarl.models import MlpConfig  # noqa: E402

from marlogue.wrappers.benchmarl import task  # noqa: E402

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

SCRIPT = str(ROOT / "examples/plugging_in/benchmarl_mappo.py")
SETTINGS = runpy.run_path(SCRIPT)["settings"]
WORDS = list(coordination_v0.ANSWERS.values())


def numeric(env, candidates=WORDS, **kwargs):
    chosen = CandidateActions(env, candidates, **kwargs)
    return NumericState(EmbedObservations(chosen, HashedNgrams(16)))


def coordination(**kwargs):
    return numeric(coordination_v0.parallel_env(**kwargs))


class Kept(Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.rollouts = [], []

    def on_batch_collected(self, batch):
        self.batches.append(batch.clone())

    def on_evaluation_end(self, rollouts):
        self.rollouts.append(rollouts)


def experiment(the_task, folder, algorithm=MappoConfig, callbacks=(), **settings):
    config = SETTINGS(str(folder), 2)
    config.on_policy_collected_frames_per_batch = config.on_policy_minibatch_size = 16
    config.off_policy_collected_frames_per_batch = 16
    config.on_policy_n_minibatch_iters = config.off_policy_n_optimizer_steps = 2
    config.checkpoint_at_end = False
    for name, value in settings.items():
        setattr(config, name, value)
    return Experiment(
        task=the_task,
        algorithm_config=algorithm.get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        seed=0,
        config=config,
        callbacks=list(callbacks),
    )


@pytest.mark.parametrize("algorithm", ["mappo", "vdn"])
def test_the_example_learns(algorithm, tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, algorithm],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    before, after = map(float, re.findall(r"before: (\S+), after: (\S+)", done.stdout)[0])
    assert before < 0.3
    assert after > 0.8
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_state_masks_and_infos(tmp_path):
    rows = [{"prompt": str(n), "words": WORDS[: n + 1]} for n in range(4)]
    env = numeric(text_env(dataset=rows, num_turns=2), "words", num_candidates=4)
    the_task = task("masked", env, info_keys=["row"])
    kept = Kept()
    made = experiment(the_task, tmp_path, callbacks=[kept])
    assert list(made.state_spec["state"].shape) == [32]
    assert list(made.action_mask_spec["agents", "action_mask"].shape) == [2, 4]
    assert list(made.info_spec["agents", "info", "row"].shape) == [2]
    assert made.group_map == {"agents": ["agent_0", "agent_1"]}
    made.run()
    for batch in kept.batches:
        rows_played = batch["agents", "info", "row"]
        assert (batch["agents", "action"] <= rows_played).all()
        assert (rows_played > 0).any()
    # The environments share the rows: side by side they play different ones.
    assert len(set(kept.batches[0]["agents", "info", "row"][:, 0, 0].tolist())) == 4


def test_random_actions_at_first_keep_to_the_masks(tmp_path):
    rows = [{"prompt": str(n), "words": WORDS[: n + 1]} for n in range(4)]
    env = numeric(text_env(dataset=rows, num_turns=2), "words", num_candidates=4)
    kept = Kept()
    groups = {"first": ["agent_0"], "second": ["agent_1"]}
    the_task = task("random", env, group_map=groups, info_keys=["row"])
    made = experiment(the_task, tmp_path, IqlConfig, [kept], off_policy_init_random_frames=32)
    made.run()
    assert len(kept.batches) == 2
    for batch in kept.batches:
        for group in groups:
            chosen, played = batch[group, "action"], batch[group, "info", "row"]
            assert (chosen <= played).all()
            assert len(set(chosen.flatten().tolist())) > 2


def test_without_state_and_masks_and_in_groups(tmp_path):
    env = EmbedObservations(
        CandidateActions(coordination_v0.parallel_env(), WORDS), HashedNgrams(16)
    )
    groups = {"first": ["agent_0"], "second": ["agent_1"]}
    made = experiment(task("groups", env, group_map=groups), tmp_path, IppoConfig)
    assert made.state_spec is None
    assert made.info_spec is None
    assert made.group_map == groups
    before = {name: critic_and_actor(made, name) for name in groups}
    made.run()
    for name in groups:
        assert not torch.equal(before[name], critic_and_actor(made, name))


def critic_and_actor(made, group):
    return torch.cat([part.detach().flatten().clone() for part in made.losses[group].parameters()])


def test_qmix_and_evaluation(tmp_path):
    kept = Kept()
    made = experiment(
        task("two_turns", coordination(num_turns=2)),
        tmp_path,
        QmixConfig,
        [kept],
        evaluation=True,
        evaluation_interval=16,
        evaluation_episodes=4,
        create_json=True,
    )
    made.run()
    assert len(kept.rollouts) == 2
    for rollouts in kept.rollouts:
        assert [len(rollout) for rollout in rollouts] == [2] * 4
    assert list(tmp_path.glob("*/*.json"))


def test_the_task_goes_through_checkpoints(tmp_path):
    shuffled = task("kept", lambda: coordination(shuffle=True))
    made = experiment(shuffled, tmp_path, checkpoint_at_end=True)
    made.run()
    (checkpoint,) = tmp_path.glob("*/checkpoints/*.pt")
    again = Experiment.reload_from_file(str(checkpoint))
    assert again.total_frames == made.total_frames == 32
    assert again.task == made.task
    twin = pickle.loads(pickle.dumps(shuffled))
    assert twin == shuffled
    assert twin.get_env_fun(1, False, 0, "cpu")().rollout(1)["next", "done"].all()


def test_the_same_seed_gives_the_same_experiment(tmp_path):
    def played():
        kept = Kept()
        experiment(task("seeded", coordination(shuffle=True)), tmp_path, callbacks=[kept]).run()
        return torch.cat([batch["agents", "observation"] for batch in kept.batches])

    assert torch.equal(played(), played())


@pytest.mark.parametrize(
    ("env", "settings", "error", "message"),
    [
        (coordination_v0.parallel_env, {}, TypeError, "holds text"),
        (lambda: ActionMask(coordination()), {}, TypeError, "needs vectors.*leave ActionMask out"),
        (coordination, {"max_steps": 0}, ValueError, r"max_steps \(0\) must be 1 or more"),
        (coordination, {"max_steps": "9"}, TypeError, r"max_steps \('9'\) must be an integer"),
        (coordination, {"group_map": {"a": ["agent_0"]}}, ValueError, "must hold each"),
    ],
)
def test_bad_input(env, settings, error, message):
    with pytest.raises(error, match=message):
        task("bad", env, **settings)
