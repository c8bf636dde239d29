"""Runs from the command line: train, and what is done with a saved team."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from marlogue.algorithms import load_team
from tests.support.command_line import ROOT, Run

REWARD = """\
from marlogue.envs import coordination_v0

def score(first, second, batch_items):
    return coordination_v0.reward(first, second, batch_items=batch_items)

class Scaled:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, first, second, batch_items):
        return [self.factor * r for r in score(first, second, batch_items)]

def times_ten(reward):
    return 10 * reward

def tell(item):
    return item["prompt"]

def say_again(prompt, num_agents):
    return [prompt] * num_agents

def length(samples):
    return {"seen": float(len(samples))}

def hint(state, actions, infos):
    return [float(len(state[agent])) for agent in actions]

def text(prompts, completions=None):
    return " ".join(prompts)
"""


def python_m(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "marlogue", *words],
        cwd=cwd, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def test_train_prints_reward_and_tensorboard(run: Run, here: Path) -> None:
    ran = run("train", "--config", "tiny.yaml", "--logdir", "runs/a")
    assert ran.status == 0
    assert ran.err == ""  # a run that goes well has nothing to warn of
    lines = ran.out.splitlines()
    assert lines[0] == "MAAC: training agent_0, agent_1 on 8 items"
    assert lines[1].startswith("mean reward before training: 0.")
    assert lines[1].endswith("(4 training rows)")
    assert lines[-2].startswith("mean reward after training:  0.")
    assert lines[-1].endswith("tensorboard --logdir runs/a")
    written = {path.name for path in (here / "runs/a").iterdir()}
    assert {"config.yaml", "progress.csv", "progress.json", "transcripts.jsonl"} <= written
    kept = yaml.safe_load((here / "runs/a/config.yaml").read_text())
    assert kept["args"]["max_steps"] == 8
    assert "team" not in kept


def test_runs_do_not_mix(run: Run, here: Path) -> None:
    for expected in ("runs/a", "runs/a-2", "runs/a-3"):
        ran = run("train", "--config", "tiny.yaml", "--max_steps", "2", "--logdir", "runs/a")
        assert ran.out.rstrip().endswith(f"--logdir {expected}")


def test_evaluations_of_the_trainer_are_not_repeated(run: Run) -> None:
    ran = run("train", "--config", "tiny.yaml", "--eval_interval", "4", "--logdir", "runs/a")
    rows = [json.loads(line) for line in Path("runs/a/progress.json").read_text().splitlines()]
    assert sum("eval/team/turn_1/reward_mean" in row for row in rows) == 3  # items 0, 4 and the end
    assert ran.out.count("mean reward before training") == 1
    assert ran.out.count("mean reward after training") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--critic_type", "q", "--critic_update", "joint"],
        ["--critic_architecture", "attention", "--credit", "agent", "--critic_type", "q"],
        ["--algorithm", "iac"],
        ["--algorithm", "iac", "--use_separate_critic", "false", "--critic_model", "null"],
        ["--env.kwargs.num_turns", "2", "--num_generations", "1", "--max_steps", "4"],
        ["--env.rows", "0:2", "--eval_env.name", "coordination_v0", "--eval_env.rows", "2:"],
    ],
)
def test_variants_train(run: Run, words: list[str]) -> None:
    ran = run("train", "--config", "tiny.yaml", *words)
    assert ran.status == 0, ran.err
    assert "mean reward after training" in ran.out


def test_callables_of_the_users_own_file(run: Run, here: Path) -> None:
    (here / "my_task.py").write_text(REWARD)
    (here / "my_hooks.py").write_text(
        "from marlogue.algorithms import Callback\n"
        "class Count(Callback):\n"
        "    def __init__(self, word='updates'):\n"
        "        self.word, self.n = word, 0\n"
        "    def on_update(self, trainer):\n"
        "        self.n += 1\n"
        "    def on_train_end(self, trainer):\n"
        "        print(f'{self.word}: {self.n}')\n"
    )
    config = yaml.safe_load((here / "tiny.yaml").read_text())
    config |= {
        "env": None,
        "train_dataset": {"name": "marlogue.envs.coordination_v0.dataset"},
        "reward_func": "my_task.score",
        "reward_processor": "my_task.times_ten",
        "formatters": ["my_task.tell", "my_task.tell"],
        "external_transition": "my_task.say_again",
        "guidance": "my_task.hint",
        "metrics_callback": "my_task.length",
        "joint_formatter": "my_task.text",
        "callbacks": ["my_hooks.Count", {"name": "my_hooks.Count", "kwargs": {"word": "again"}}],
        "logdir": "runs/a",
    }
    config["args"]["guidance_weight"] = {"start": 0.5, "end": 0.5}
    (here / "mine.yaml").write_text(yaml.safe_dump(config))
    ran = run("train", "--config", "mine.yaml")
    assert ran.status == 0, ran.err
    assert "updates: 2\nagain: 2\n" in ran.out
    rows = [json.loads(line) for line in (here / "runs/a/progress.json").read_text().splitlines()]
    assert any(row.get("seen") == 4.0 for row in rows)  # 2 agents, 2 generations
    assert any(row.get("train/guidance_weight") == 0.5 for row in rows)


def test_what_a_call_makes_can_be_a_callback(run: Run, here: Path) -> None:
    (here / "my_task.py").write_text(REWARD)
    words = [
        "--env", "null", "--train_dataset.name", "marlogue.envs.coordination_v0.dataset",
        "--reward_func", "{name: my_task.Scaled, kwargs: {factor: 3}}",
        "--reward_processor", "{name: marlogue.RewardProcessors.shift, kwargs: {value: 5.0}}",
    ]  # fmt: skip
    ran = run("train", "--config", "tiny.yaml", *words)
    assert ran.status == 0, ran.err
    before = float(ran.out.split("before training: ")[1].split()[0])
    assert 5.0 <= before <= 8.0


def test_modules_beside_the_configuration_are_found(run: Run, here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub/beside_it.py").write_text(
        "from marlogue.envs import coordination_v0\n"
        "def make(**kwargs):\n    return coordination_v0.parallel_env(**kwargs)\n"
    )
    text = (here / "tiny.yaml").read_text().replace("coordination_v0", "beside_it.make")
    (here / "sub/run.yaml").write_text(text)
    assert run("train", "--config", "sub/run.yaml").status == 0


def test_exceptions_of_callbacks_keep_their_traceback(here: Path) -> None:
    (here / "my_task.py").write_text(
        "def score(first, second):\n    return [None + 1]\n"
        "def make():\n    raise ValueError('not today')\n"
    )
    words = ["train", "--config", "tiny.yaml", "--env", "null", "--reward_func", "my_task.score"]
    done = python_m(
        *words, "--train_dataset.name", "marlogue.envs.coordination_v0.dataset", cwd=here
    )
    assert done.returncode == 1
    assert 'my_task.py", line 2, in score' in done.stderr
    assert "TypeError: unsupported operand" in done.stderr
    assert "while calling reward_func (score) for row 0, turn 0" in done.stderr
    # A ValueError of the user's own, too, although one of ours would be a message only.
    done = python_m("train", "--config", "tiny.yaml", "--env", "my_task.make", cwd=here)
    assert done.returncode == 1
    assert 'my_task.py", line 4, in make' in done.stderr


def test_a_broken_module_keeps_its_traceback(run: Run, here: Path) -> None:
    (here / "broken_module.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        run("train", "--config", "tiny.yaml", "--env", "broken_module.make")


def test_a_saved_team_evaluates_rolls_out_and_chats(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--max_steps", "60", "--eval_temperature", "0", "--output_dir", "team"]
    trained = run("train", "--config", "tiny.yaml", *words)
    after = trained.out.split("after training:  ")[1].split()[0]
    assert len(load_team("team")) == 2
    # The configuration lies with the team: the folder is all that is needed.
    evaluated = run("evaluate", "--team", "team")
    assert f"team/turn_1/reward_mean {float(after):>20.3f}"[:24] in evaluated.out
    assert float(evaluated.out.split("team/turn_1/reward_mean")[1].split()[0]) == pytest.approx(
        float(after), abs=5e-4
    )
    untrained = run("evaluate", "--config", "tiny.yaml", "--eval_temperature", "0")
    assert untrained.out != evaluated.out

    rolled = run("rollout", "--team=team", "--rows", "0,3", "--generations", "2")
    assert [line for line in rolled.out.splitlines() if line.startswith("===")] == [
        f"=== row {row}, generation {generation} ===" for row in (0, 3) for generation in (0, 1)
    ]
    assert "agent_1 is asked: night" in rolled.out
    assert rolled.out == run("rollout", "--team=team", "--rows", "0,3", "--generations", "2").out
    assert "row (9) must be within" in run("rollout", "--team", "team", "--rows", "9").err
    assert "rows (x) must be row numbers" in run("rollout", "--team", "team", "--rows", "x").err

    monkeypatch.setattr(sys, "stdin", io.StringIO("noon\ndusk\n\n"))
    answered = run("chat", "--team", "team").out.splitlines()
    assert [line.partition(":")[0] for line in answered[1:]] == ["agent_0", "agent_1"] * 2


def test_front_door(tmp_path: Path) -> None:
    started = time.monotonic()
    done = python_m("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "rollout" in done.stdout
    assert time.monotonic() - started < 20  # a tenth of a second where nobody else is working
    code = "import sys\nfrom marlogue.cli import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print({'torch', 'transformers', 'jsonargparse'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.rstrip().endswith("set()")
    assert "0.1" in python_m("--version", cwd=tmp_path).stdout
    assert python_m("trian", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("examples/*.yaml")))
def test_configurations_of_the_examples_are_read(run: Run, name: str) -> None:
    file = ROOT / "examples" / name
    ran = run("train", "--config", file, "--print_config")
    assert ran.status == 0, ran.err
    shown = yaml.safe_load(ran.out)
    assert (
        shown["args"]["max_new_tokens" if shown["algorithm"] != "aac" else "num_envs"] <= 200
    )  # the default is 256
