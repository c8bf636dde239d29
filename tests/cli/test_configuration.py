"""What a configuration is read as, and what is said of one that cannot be used."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import Run


def effective(run: Run, *words: object) -> dict:
    """The configuration as ``--print_config`` shows it."""
    ran = run("train", *words, "--print_config")
    assert ran.status == 0, ran.err
    return yaml.safe_load(ran.out)


@pytest.mark.parametrize("written", ["1e-6", "1.0e-6", "0.000001", "1E-06"])
def test_scientific_notation_is_a_number(run: Run, here: Path, written: str) -> None:
    # C80: YAML 1.1 takes 1e-6 for a string.
    (here / "run.yaml").write_text(f"args: {{agent_learning_rate: {written}}}")
    for words in (["--config", "run.yaml"], ["--args.agent_learning_rate", written]):
        shown = effective(run, *words)["args"]["agent_learning_rate"]
        assert isinstance(shown, float)
        assert shown == 1e-6


def test_scientific_notation_within_kwargs(run: Run, here: Path) -> None:
    (here / "run.yaml").write_text("env: {name: story_length_v0, kwargs: {threshold: 1e-6}}")
    assert effective(run, "--config", "run.yaml")["env"]["kwargs"]["threshold"] == 1e-6


@pytest.mark.parametrize("option", ["--args.use_separate_critic", "--use_separate_critic"])
@pytest.mark.parametrize("style", ["apart", "equals"])
def test_false_is_false(run: Run, option: str, style: str) -> None:
    words = [option, "false"] if style == "apart" else [f"{option}=false"]
    shown = effective(run, "--algorithm", "iac", *words)
    assert shown["args"]["use_separate_critic"] is False


def test_later_options_win(run: Run, here: Path) -> None:
    (here / "one.yaml").write_text("algorithm: iac\nargs: {seed: 1, discount: 0.5}")
    (here / "two.yaml").write_text("args: {seed: 2}")
    shown = effective(run, "--config", "one.yaml", "--config", "two.yaml", "--top_k", "7")
    assert shown["algorithm"] == "iac"
    assert shown["args"]["seed"] == 2
    assert shown["args"]["discount"] == 0.5
    assert shown["args"]["top_k"] == 7


@pytest.mark.parametrize("rows", ["1:", ":3", "0:2", "1:30", "[0, 2]"])
def test_slices_of_rows_need_no_quotes_here(run: Run, rows: str) -> None:
    ran = run("train", "--config", "tiny.yaml", "--max_steps", "1", "--env.rows", rows)
    assert ran.status == 0, ran.err
    assert run("train", "--config", "tiny.yaml", "--max_steps", "1", f"--env.rows={rows}").err == ""


def test_a_number_that_changes(run: Run, here: Path) -> None:
    (here / "run.yaml").write_text("args: {guidance_weight: {start: 0.5, end: 0}}")
    shown = effective(run, "--config", "run.yaml")["args"]["guidance_weight"]
    assert shown == {"start": 0.5, "end": 0.0, "until": 1.0, "shape": "linear"}
    assert effective(run, "--guidance_weight", "0.25")["args"]["guidance_weight"] == 0.25
    refused = run("train", "--guidance_weight", "{strt: 0.5}")
    assert refused.status == 2
    assert "args.guidance_weight ({'strt': 0.5}) must be" in refused.err
    assert "a mapping without strt, which is no key of it" in refused.err


def test_printed_configuration_is_one(run: Run, here: Path) -> None:
    printed = run("train", "--config", "tiny.yaml", "--seed", "5", "--print_config").out
    (here / "printed.yaml").write_text(printed)
    assert run("train", "--config", "printed.yaml", "--print_config").out == printed


def test_options_reach_into_an_environment(run: Run) -> None:
    shown = effective(run, "--config", "tiny.yaml", "--env.kwargs.num_turns", "2")["env"]
    assert shown["name"] == "coordination_v0"  # written as a bare name in the file
    assert shown["kwargs"] == {"num_turns": 2}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("agrs: {}", "bad.yaml: the key agrs is unknown; did you mean args?"),
        (
            "args: {agent_learning_rte: 1e-6}",
            "args.agent_learning_rte is unknown; did you mean args.agent_learning_rate?",
        ),
        ("agent_learning_rate: 1e-6", "did you mean args.agent_learning_rate?"),
        ("env: {nam: x}", "the key env.nam is unknown; did you mean env.name?"),
        ("agents: [{name: x, kwarg: {}}]", "the key agents.kwarg is unknown"),
        ("args: {value_clip_range: 0.1}", "args.value_clip_range belongs to iac, not to maac"),
        ("args: 3", "args (3) must hold the fields"),
        ("args: {discount: hot}", "args.discount (hot) must be float"),
        ("args: {top_k: 1.5}", "args.top_k (1.5) must be int or null"),
        ("args: {shuffle: flase}", "args.shuffle (flase) must be bool"),
        ("args: {critic_type: w}", "args.critic_type (w) must be Literal['v', 'q']"),
        ("args: {discount: -3}", "discount (-3.0) must be at least 0 and at most 1"),
        ("args: {num_turns: 2, num_generations: 2}", "num_generations (2) must be 1 when"),
        ("algorithm: ppo", "algorithm (ppo) must be one of maac, iac"),
        ("env: 3", "env (3) must be"),
        ("a: [", "is no YAML"),
        ("- a", "must hold keys and values"),
    ],
)
def test_what_cannot_be_used_is_named(run: Run, here: Path, content: str, expected: str) -> None:
    (here / "bad.yaml").write_text(content)
    ran = run("train", "--config", "bad.yaml")
    assert ran.status == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--agent_learning_rat", "1"], "did you mean --agent_learning_rate?"),
        (["--args.agent_learning_rat=1"], "did you mean args.agent_learning_rate?"),
        (["--confg", "x"], "did you mean --config?"),
        (["--use_separate_critic", "false"], "belongs to iac, not to maac"),
        (["--env.kwargs.num_turn", "2"], "num_turn is unknown; did you mean num_turns?"),
        (["--env", "coordination_v1"], "did you mean coordination_v0?"),
        (["--env", "nowhere.thing"], "no module nowhere was found"),
        (["--env", "marlogue.envs.coordination_v0.parallel_evn"], "did you mean parallel_env?"),
        (["--env", "marlogue.envs.coordination_v0.dataset"], "made a list"),
        (["--env.rows", "[9]"], "must choose rows that are there: 0 to 3"),
        (["--env.rows", "a:b"], "must be a slice"),
        (["--env", "null"], "env must be given, or train_dataset and reward_func"),
        (["--callbacks", "[marlogue.envs.TextEnv]"], "callbacks[0]"),
        (["--callbacks", "[marlogue.algorithms.MAACConfig]"], "must be a marlogue.algorithms."),
        (["--agents", "null"], "either agent_model"),
        (["--model_config", "{chat_templat: true}"], "did you mean 'chat_template'?"),
        (
            ["--agents", "[{name: marlogue.tiny_model, kwargs: {word: [a]}}, x]"],
            "did you mean words?",
        ),
        (["--reward_func", "marlogue.envs.coordination_v0.reward"], "env already has what"),
    ],
)
def test_what_cannot_be_used_is_named_on_the_command_line(
    run: Run, words: list[str], expected: str
) -> None:
    ran = run("train", "--config", "tiny.yaml", *words)
    assert ran.status == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err


def test_missing_files_are_named(run: Run) -> None:
    assert "config (none.yaml) cannot be read" in run("train", "--config", "none.yaml").err
    words = ["--env", "null", "--train_dataset", "none.jsonl"]
    assert "train_dataset (none.jsonl)" in run("train", "--config", "tiny.yaml", *words).err
    assert "team (none)" in run("evaluate", "--team", "none").err


def test_help_lists_every_field(run: Run) -> None:
    ran = run("train", "--help")
    assert ran.status == 0
    for word in ("--args.agent_learning_rate", "--env", "--reward_func", "AdamW learning rate"):
        assert word in ran.out


def test_data_sources(run: Run, here: Path) -> None:
    rows = [{"prompt": word, "answer": word} for word in ("dawn", "noon", "dusk")]
    (here / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (here / "rows.csv").write_text("prompt,answer\ndawn,red\nnoon,gold\n")
    words = ["--env", "null", "--reward_func", "marlogue.envs.coordination_v0.reward"]
    for source, items in (
        ("rows.jsonl", 3),
        ("rows.csv", 2),
        ("{path: rows.jsonl, rows: '1:'}", 2),
        ("{path: rows.jsonl, rows: [2]}", 1),
        ("{name: marlogue.envs.coordination_v0.dataset, rows: ':3'}", 3),
    ):
        ran = run(
            "train", "--config", "tiny.yaml", *words, "--max_steps", "null",
            "--train_dataset", source,
        )  # fmt: skip
        assert ran.status == 0, ran.err
        assert f"on {items} items" in ran.out
