"""Teams of numbers from the command line: actor-attention-critic."""

import json
import re
from pathlib import Path

import cloudpickle
import pytest
import yaml

from marlogue.cli.data import EnvSource, env_maker
from marlogue.cli.errors import UsageError
from tests.support.command_line import Run

NUMERIC = ["--config", "numeric.yaml"]
FAST = [*NUMERIC, "--total_steps", "60"]
TASK = """\
from marlogue.algorithms import Callback
from marlogue.envs import spread_v0

def crowd(**kwargs):
    return spread_v0.parallel_env(observe="nearest", half_width=None, **kwargs)

class Tell(Callback):
    def on_episode(self, trainer, episode):
        print(f"{len(episode.returns)} played {episode.length} steps")

def to_the_left(state, actions, infos):
    return {agent: [0.0, 1.0, 0.0, 0.0, 0.0] for agent in actions}

class Towards:
    def __init__(self, action):
        self.action = action
    def __call__(self, state, actions, infos):
        return [float(taken == self.action) for taken in actions.values()]
"""


def after(out: str) -> str:
    found = re.search(r"mean return after training:  (\S+)", out)
    assert found, out
    return found[1]


def test_train_prints_returns_and_where_to_look(run: Run, here: Path) -> None:
    ran = run("train", *NUMERIC, "--logdir", "runs/a", "--output_dir", "runs/a/team")
    assert ran.status == 0, ran.err
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0] == "AAC: training agent_0, agent_1, agent_2 for 150 steps"
    assert re.fullmatch(r"mean return before training: -\d+\.\d{3} \(3 episodes\)", lines[1])
    progress = re.fullmatch(
        r"  update +(\d+)  steps (\d+)/150  mean return -\d+\.\d{3}  \d+ s", lines[2]
    )
    assert progress
    assert int(progress[2]) == 50 + 10 * (int(progress[1]) - 1)
    assert after(ran.out) in lines[-4]
    assert lines[-3].endswith("marlogue evaluate --team runs/a/team")
    assert lines[-2].endswith("marlogue attention runs/a")
    assert lines[-1].endswith("tensorboard --logdir runs/a")
    for folder in ("runs/a", "runs/a/team"):
        kept = yaml.safe_load((here / folder / "config.yaml").read_text())
        assert kept["args"]["hidden_size"] == 16
        assert "agent_model" not in kept
    assert run("attention", "runs/a").status == 0
    assert run("train", *FAST, "--logdir", "runs/a").out.rstrip().endswith("--logdir runs/a-2")


def test_a_saved_team_is_evaluated(run: Run, here: Path) -> None:
    trained = run("train", *NUMERIC, "--output_dir", "team")
    ran = run("evaluate", "--team", "team")
    assert ran.status == 0, ran.err
    figures = dict(line.split() for line in ran.out.splitlines())
    assert float(figures["team/return_mean"]) == pytest.approx(float(after(trained.out)), abs=1e-3)
    assert figures["team/length_mean"] == "10.0000"
    untrained = run("evaluate", *NUMERIC)
    before = float(dict(line.split() for line in untrained.out.splitlines())["team/return_mean"])
    assert f"before training: {before:.3f}" in trained.out
    longer = {"name": "spread_v0", "kwargs": {"max_cycles": 20}}
    apart = ["--team", "team", "--eval_env", json.dumps(longer)]
    assert re.search(r"team/length_mean +20\.0000", run("evaluate", *apart).out)
    assert ran.out == run("evaluate", *apart, "--split", "train").out

    for command in ("rollout", "chat"):
        refused = run(command, "--team", "team")
        assert refused.status == 2
        assert "algorithm (aac) must be maac or iac: a team of networks says" in refused.err
    other = run("evaluate", "--team", "team", "--hidden_size", "32")
    assert other.status == 2
    assert "critic in team has" in other.err
    assert "split (test) must be" in run("evaluate", "--team", "team", "--split", "test").err


def test_evaluations_of_the_trainer_are_not_repeated(run: Run) -> None:
    words = ["--eval_interval", "75", "--attention_images", "false", "--logdir", "a"]
    ran = run("train", *NUMERIC, *words)
    rows = [json.loads(line) for line in Path("a/progress.json").read_text().splitlines()]
    evaluated = [row["eval/team/return_mean"] for row in rows if "eval/team/return_mean" in row]
    assert len(evaluated) == 3
    assert f"before training: {evaluated[0]:.3f} (" in ran.out
    assert after(ran.out) == f"{evaluated[-1]:.3f}"


def test_curriculum_guidance_and_callbacks_of_the_users_own_file(run: Run, here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub/my_crowd.py").write_text(TASK)
    config = yaml.safe_load((here / "numeric.yaml").read_text())
    config |= {
        "env": {"name": "my_crowd.crowd", "kwargs": {"max_cycles": 10}},
        "curriculum": [{"until": 0.5, "num_agents": 3}, {"num_agents": 5, "max_cycles": 6}],
        "guidance": "my_crowd.to_the_left",
        "callbacks": ["my_crowd.Tell"],
        "logdir": "runs/a",
    }
    config["args"] |= {"guidance_weight": {"start": 0.5, "end": 0.5}, "attention_images": False}
    (here / "sub/mine.yaml").write_text(yaml.safe_dump(config))
    ran = run("train", "--config", "sub/mine.yaml", "--guidance_weight", "0.25")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("AAC: training agent_0, agent_1, agent_2 for 150 steps in 2 stages\n")
    told = re.findall(r"(\d) played (\d+) steps", ran.out)
    assert set(told[:7]) == {("3", "10")}
    assert set(told[8:]) == {("5", "6")}
    rows = [json.loads(line) for line in (here / "runs/a/progress.json").read_text().splitlines()]
    assert any(row.get("guidance/weight") == 0.25 for row in rows)
    words = ["--guidance", "{name: my_crowd.Towards, kwargs: {action: 1}}", "--callbacks", "null"]
    assert run("train", "--config", "sub/mine.yaml", *words).status == 0


@pytest.mark.slow
def test_environments_in_other_processes(run: Run, here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub/my_other_crowd.py").write_text(TASK)
    text = (here / "numeric.yaml").read_text().replace("spread_v0", "my_other_crowd.crowd")
    (here / "sub/mine.yaml").write_text(text)
    words = ["--num_envs", "2", "--guidance", "my_other_crowd.to_the_left"]
    here_played = run("train", "--config", "sub/mine.yaml", *words)
    apart = run("train", "--config", "sub/mine.yaml", *words, "--env_backend", "subprocess")
    assert apart.status == 0, apart.err
    assert after(apart.out) == after(here_played.out)


def test_guidance_of_the_environment(run: Run) -> None:
    words = ["--env", "cloud_scheduling_v0", "--env.kwargs.num_agents", "4"]
    ran = run("train", *FAST, *words, "--env.kwargs.max_steps", "10", "--guidance", "true")
    assert ran.status == 0, ran.err
    assert "training scheduler_0, scheduler_1, scheduler_2, scheduler_3 for" in ran.out
    assert run("train", *FAST, "--guidance", "false").status == 0


def test_many_agents_are_counted(run: Run) -> None:
    ran = run("train", *FAST, "--env.kwargs.num_agents", "20")
    assert ran.out.startswith("AAC: training 20 agents (agent_0 to agent_19) for 60 steps\n")


def test_what_makes_an_environment_can_be_sent_away() -> None:
    maker = env_maker(EnvSource("spread_v0", {"num_agents": 4, "max_cycles": 7}), "env")
    assert maker is not None
    again = cloudpickle.loads(cloudpickle.dumps(maker))
    env = again(num_agents=5)
    assert len(env.possible_agents) == 5
    assert env.unwrapped is not again(num_agents=5).unwrapped
    with pytest.raises(UsageError, match="did you mean num_agents"):
        again(num_agent=5)
    assert env_maker(None, "env") is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--agent_model", "x"], "--agent_model belongs to maac and iac, not to aac; leave it out"),
        (["--train_dataset.name", "x.y"], "--train_dataset.name belongs to maac and iac"),
        (["--max_new_tokens", "3"], "args.max_new_tokens belongs to maac and iac, not to aac"),
        (["--args.value_clip_range", "3"], "args.value_clip_range belongs to iac, not to aac"),
        (["--env", "spred_v0"], "the environment spred_v0 is unknown; did you mean spread_v0?"),
        (["--env", "story_length_v0"], "is a task of texts; set algorithm: maac or iac"),
        (["--env.kwargs.num_agent", "3"], "num_agent is unknown; did you mean num_agents?"),
        (["--env.rows", "0:3"], "env.rows needs an environment with a dataset"),
        (["--env", "null"], "env must be given"),
        (["--env", "marlogue.envs.coordination_v0.parallel_env"], "must hold a fixed number of"),
        (["--eval_env", "pursuit_v0"], "must be those that the networks were made for"),
        (["--curriculum", "3"], "curriculum (3) must be list or null"),
        (["--curriculum", "[{until: 2}, {}]"], "curriculum[0]['until'] (2) must be above 0"),
        (["--curriculum", "[{num_agent: 3}]"], "did you mean num_agents?"),
        (
            ["--curriculum", "[{until: 0.5}, {num_agents: 4}]"],
            "let observations have the same size at every number of agents",
        ),
        (["--guidance", "true"], "guidance (True) must be found in the environment"),
        (["--guidance", "marlogue.envs.spread_v0.nothing"], "nothing is unknown"),
        (["--guidance_weight", "{strt: 1}"], "a mapping without strt, which is no key of it"),
        (["--guidance_weight", "2"], "guidance_weight.start (2.0) must be at least 0"),
        (["--epsilon", "hot"], "args.epsilon (hot) must be float or mapping"),
        (["--attention_position", "[2, 33]"], "attention_position ([2, 33]) must hold indices"),
        (
            ["--attention", "local", "--attention_graph", "[[1], [0]]"],
            "attention_graph (of 2 agents) must have a list for each of the 3 agents",
        ),
        (["--algorithm", "maac"], "args.total_steps belongs to aac, not to maac"),
    ],
)
def test_what_cannot_be_used_is_named(run: Run, words: list[str], expected: str) -> None:
    ran = run("train", *NUMERIC, *words)
    assert ran.status == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err


def test_keys_in_a_file_belong_to_somebody(run: Run, here: Path) -> None:
    (here / "bad.yaml").write_text("algorithm: aac\ncritic_model: smollm2\n")
    assert (
        "bad.yaml: the key critic_model belongs to maac and iac"
        in run("train", "--config", "bad.yaml").err
    )
    (here / "bad.yaml").write_text("algorithm: iac\ncurriculum: []\n")
    assert (
        "the key curriculum belongs to aac, not to iac" in run("train", "--config", "bad.yaml").err
    )
    assert (
        "(spread_v0) is a task of vectors; set algorithm: aac"
        in run("train", "--config", "tiny.yaml", "--env", "spread_v0").err
    )


def test_printed_configuration_is_one(run: Run, here: Path) -> None:
    words = [*NUMERIC, "--epsilon", "{start: 0.5, end: 0}", "--env.kwargs.num_agents", "4"]
    printed = run("train", *words, "--print_config").out
    shown = yaml.safe_load(printed)
    assert shown["args"]["epsilon"] == {"start": 0.5, "end": 0.0, "until": 1.0, "shape": "linear"}
    assert shown["env"]["kwargs"] == {"max_cycles": 10, "num_agents": 4}
    (here / "printed.yaml").write_text(printed)
    assert run("train", "--config", "printed.yaml", "--print_config").out == printed
