"""Files that would run code are refused; the code is real, and does not run.

Each file, were it believed, would leave a marker.
"""

import ast
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from marlogue.agents import LLMPolicy, load_causal_lm, load_tokenizer, load_trunk, tiny_model
from marlogue.algorithms import AACConfig, AACTrainer, load_team
from marlogue.algorithms.checkpoints import (
    CheckpointStore,
    check_folder,
    write_folder,
)
from marlogue.algorithms.saving import load_critics
from marlogue.cli.data import load_rows
from marlogue.cli.errors import UsageError
from tests.support.command_line import ROOT
from tests.support.games import Cues
from tests.support.team import make_trainer
from tests.support.traps import Touch, change, make_code, make_model_code, make_pickle

LOADERS = [load_causal_lm, load_trunk]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model and its tokenizer."""
    model, tokenizer = tiny_model(["yes", "no"], seed=3, n_layer=1)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_pickle_would_run(folder: Path, marker: Path) -> None:
    """Or the tests below say nothing."""
    make_pickle(folder, marker)
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert marker.exists()


class TestModels:
    @pytest.mark.parametrize("load", LOADERS)
    def test_pickled_weights(self, load: Callable[..., Any], folder: Path, marker: Path) -> None:
        make_pickle(folder, marker)
        for kwargs in ({}, {"use_safetensors": None}):
            with pytest.raises(ValueError, match=r"in pytorch_model.bin. It is a pickle.*convert"):
                load(folder, kwargs)
        with pytest.raises(ValueError, match=r"use_safetensors \(False\) must be True"):
            load(folder, {"use_safetensors": False})
        # Weights of something else do not make it better.
        (folder / "value_head.safetensors").touch()
        with pytest.raises(ValueError, match="It is a pickle"):
            load(folder)
        (folder / "other_model.safetensors").touch()
        with pytest.raises(ValueError, match="no model could be loaded"):
            load(folder)
        assert not marker.exists()

    @pytest.mark.parametrize("load", LOADERS)
    def test_a_pickle_by_a_safe_name(
        self, load: Callable[..., Any], folder: Path, marker: Path
    ) -> None:
        (folder / "model.safetensors").write_bytes(pickle.dumps(Touch(marker)))
        with pytest.raises(ValueError, match="no model could be loaded"):
            load(folder)
        assert not marker.exists()

    def test_code_of_a_known_kind_of_model_is_not_asked(self, folder: Path, marker: Path) -> None:
        make_model_code(folder, marker)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert type(load_causal_lm(folder)).__module__.startswith("transformers.")
        assert not marker.exists()

    def test_code_of_an_unknown_kind_is_refused(self, folder: Path, marker: Path) -> None:
        make_model_code(folder, marker, model_type="own")
        for load in LOADERS:
            with pytest.raises(ValueError, match="code of its own, which is not run; if you trust"):
                load(folder)
        with pytest.raises(TypeError, match=r"trust_remote_code \('false'\) must be True or False"):
            load_causal_lm(folder, {"trust_remote_code": "false"})
        assert not marker.exists()
        with pytest.warns(UserWarning, match="trust_remote_code is set: code that comes with"):
            assert type(load_causal_lm(folder, {"trust_remote_code": True})).__name__ == "OwnModel"
        assert marker.exists()  # so the code would have run, had anything looked at it

    def test_a_kernel_from_a_hub_is_code(self, folder: Path) -> None:
        for changes in (
            {"attn_implementation": "some/kernel"},
            {"_attn_implementation": {"": "some/kernel"}},
            {"text_config": {"attn_implementation": "some/kernel"}},
        ):
            config = (folder / "config.json").read_text()
            change(folder / "config.json", **changes)
            for load in LOADERS:
                with pytest.raises(ValueError, match="kernel 'some/kernel', which would be code"):
                    load(folder)
            (folder / "config.json").write_text(config)
        change(folder / "config.json", attn_implementation="some/kernel")
        assert load_causal_lm(folder, {"attn_implementation": "eager"})

    def test_trainers_hand_it_on(self, folder: Path, marker: Path) -> None:
        make_model_code(folder, marker, model_type="own")
        with pytest.raises(ValueError, match="code of its own"):
            make_trainer("maac", agents=[folder, folder], tokenizer=None, critic_model=folder)
        assert not marker.exists()


class TestTokenizers:
    def test_a_class_of_its_own(self, folder: Path, marker: Path) -> None:
        make_code(folder, marker)
        both = ["own_code.OwnTokenizer", "own_code.OwnTokenizer"]
        change(
            folder / "tokenizer_config.json",
            auto_map={"AutoTokenizer": both},
            tokenizer_class="OwnTokenizer",
        )
        assert type(load_tokenizer(folder)).__name__ != "OwnTokenizer"
        assert not marker.exists()
        with pytest.warns(UserWarning, match="trust_remote_code is set"):
            trusted = load_tokenizer(folder, trust_remote_code=True)
        assert type(trusted).__name__ == "OwnTokenizer"
        assert marker.exists()

    @pytest.mark.parametrize(
        "expression",
        [
            "cycler.__init__.__globals__.os.system('touch {marker}')",
            "''.__class__.__mro__[1].__subclasses__()",
            "lipsum.__globals__['os'].popen('touch {marker}').read()",
            "(messages|map(attribute='__class__')|list)[0].__base__.__subclasses__()",
            "self.__init__.__globals__.__builtins__.__import__('os').system('touch {marker}')",
            "raise_exception.__globals__['os'].system('touch {marker}')",
            "messages.append(1)",
        ],
    )
    def test_chat_templates_run_in_a_sandbox(
        self, folder: Path, marker: Path, expression: str
    ) -> None:
        template = "{{ " + expression.replace("{marker}", str(marker)) + " }}"
        (folder / "chat_template.jinja").write_text(template)
        model, tokenizer = load_causal_lm(folder), load_tokenizer(folder)
        assert tokenizer.chat_template == template
        for chosen in (True, template):
            with pytest.raises(ValueError, match="chat_template"):
                LLMPolicy(model, tokenizer, chat_template=chosen)
        assert not marker.exists()


class TestTeams:
    @pytest.fixture
    def team(self, tmp_path: Path) -> Path:
        make_trainer("maac").save_model(tmp_path / "team")
        return tmp_path / "team"

    def test_pickles_in_a_team(self, team: Path, marker: Path) -> None:
        trainer = make_trainer("maac")
        for part in ("agent_0", "critic_0"):
            make_pickle(team / part, marker)
        for load in (load_team, load_critics, trainer.load_model):
            with pytest.raises(ValueError, match="It is a pickle"):
                load(team)
        assert not marker.exists()

    def test_a_pickled_head(self, team: Path, marker: Path) -> None:
        (team / "critic_0/value_head.safetensors").write_bytes(pickle.dumps(Touch(marker)))
        for load in (load_critics, make_trainer("maac").load_model):
            with pytest.raises(ValueError, match=r"value_head\.safetensors is damaged"):
                load(team)
        assert not marker.exists()

    def test_code_in_a_team(self, team: Path, marker: Path) -> None:
        for part in ("agent_0", "critic_0"):
            make_model_code(team / part, marker, model_type="own")
        for load in (load_team, load_critics):
            with pytest.raises(ValueError, match="code of its own"):
                load(team)
        assert not marker.exists()
        change(team / "critic_0/config.json", model_type="gpt2")
        with pytest.warns(UserWarning, match="trust_remote_code is set"):
            assert type(load_team(team, trust_remote_code=True)[0].model).__name__ == "OwnModel"

    @pytest.mark.parametrize(
        "text",
        [
            *("", "[", "null", "[]", "{}", '{"agents": 1, "critics": []}', "[" * 100_000),
            *('{"agents": [], "critics": [1]}', '{"agents": [{}], "critics": []}'),
        ],
    )
    def test_what_describes_no_team(self, team: Path, text: str) -> None:
        (team / "team.json").write_text(text)
        for load in (load_team, load_critics, make_trainer("maac").load_model):
            with pytest.raises(ValueError, match=r"team\.json is damaged"):
                load(team)


def test_pickles_among_networks(tmp_path: Path, marker: Path) -> None:
    args = AACConfig(hidden_size=8, actor_hidden_sizes=[8], verbose=False)
    trainer = AACTrainer(args=args, env=Cues)
    trainer.save_model(tmp_path / "team")
    for file in ("critic", "other"):
        (tmp_path / f"team/{file}.safetensors").write_bytes(pickle.dumps(Touch(marker)))
        with pytest.raises(SafetensorError):
            trainer.load_model(tmp_path / "team")
    assert not marker.exists()


@pytest.mark.parametrize(
    "file",
    [
        *("state.json", "optimizers/agent_0.safetensors", "team/team.json"),
        *("team/agent_0/model.safetensors", "team/critic_0/value_head.safetensors"),
    ],
)
def test_a_checkpoint_with_a_pickle_in_it(tmp_path: Path, marker: Path, file: str) -> None:
    """Well sealed, by somebody who knows how."""
    run = tmp_path / "run"
    make_trainer("maac", logdir=run, save_steps=1).train()
    place = CheckpointStore(run / "checkpoints", None).newest()
    assert place is not None

    def write(new: Path) -> None:
        shutil.copytree(place, new, dirs_exist_ok=True)
        (new / "manifest.json").unlink()
        (new / file).write_bytes(pickle.dumps(Touch(marker)))

    write_folder(run / "checkpoints/step_000000999", write, check_folder(place))
    resumed = make_trainer("maac", logdir=run, save_steps=1, resume="auto", num_train_epochs=9)
    with pytest.raises((ValueError, SafetensorError)):
        resumed.train()
    assert not marker.exists()


@pytest.mark.parametrize("file", ["data.py", "rows/data.py", "rows/rows.py"])
def test_a_dataset_brings_no_code(tmp_path: Path, marker: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(f"open({str(marker)!r}, 'w').close()\n")
    with pytest.raises((UsageError, RuntimeError)):
        load_rows(str((tmp_path / file).parent), "train_dataset")
    with pytest.raises((UsageError, RuntimeError)):
        load_rows(str(tmp_path / file), "train_dataset")
    assert not marker.exists()


UNSAFE = {
    "pickle": ("load", "loads", "Unpickler"),
    "cloudpickle": ("load", "loads"),
    "torch": ("load",),
    "yaml": ("load", "load_all", "unsafe_load", "full_load"),
    "joblib": ("load",),
    "marshal": ("load", "loads"),
    "shelve": ("open",),
}
# Between our own processes, over pipes; and what BenchMARL pickles itself, with an object of ours
# in it.
PIPES = {
    "algorithms/team_failures.py",
    "algorithms/team_processes.py",
    "algorithms/team_ray.py",
    "envs/repeat_checks.py",
    "envs/reward_worker.py",
    "wrappers/benchmarl.py",
}


def test_nothing_from_a_file_is_unpickled() -> None:
    """Each call that can run what it reads is one of those between our own processes."""
    found = set()
    for source in ("envs", "agents", "algorithms", "wrappers", "src"):
        for path in (ROOT / source).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                called, module = node.func.attr, node.func.value
                name = module.id if isinstance(module, ast.Name) else ""
                allows = [k for k in node.keywords if k.arg == "allow_pickle"]
                if called in UNSAFE.get(name, ()):
                    found.add(str(path.relative_to(ROOT)))
                assert not any(ast.unparse(k.value) != "False" for k in allows), path
    assert found == PIPES
