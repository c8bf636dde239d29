"""Files that would run code, or write elsewhere, are refused; the code is real, and does not run.

Each file, were it believed, would leave a marker.
"""

import ast
import hashlib
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from marlogue.agents import LLMPolicy, load_causal_lm, load_tokenizer, load_trunk, tiny_model
from marlogue.algorithms import load_team
from marlogue.algorithms.checkpoints import CheckpointError, check_folder, write_folder
from marlogue.algorithms.run_folder import RunFolderError
from marlogue.algorithms.saving import load_critics
from marlogue.envs import coordination_v0
from tests.support.command_line import ROOT
from tests.support.team import make_trainer

LOADERS = [load_causal_lm, load_trunk]


class Touch:
    """Leaves a marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


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


def change(file: Path, **changes: Any) -> None:
    """Change a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def make_pickle(folder: Path, marker: Path) -> None:
    """Put a pickle in the place of the weights."""
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Touch(marker)}, folder / "pytorch_model.bin")


def make_code(folder: Path, marker: Path) -> None:
    """Code for a model and a tokenizer, which runs as soon as it is imported."""
    (folder / "own_code.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own'\n"
        "class OwnModel(GPT2LMHeadModel):\n    config_class = OwnConfig\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )


def make_model_code(folder: Path, marker: Path, **changes: Any) -> None:
    make_code(folder, marker)
    classes = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    change(folder / "config.json", auto_map=classes, **changes)


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


def forge(folder: Path, name: str) -> None:
    """A manifest, its own checksum right, that names another file."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {name: {"size": 4, "sha256": hashlib.sha256(b"text").hexdigest()}}
    told = {key: manifest[key] for key in ("about", "files")}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))


class TestPlaces:
    def test_a_manifest_that_names_files_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "outside").write_text("text")
        for name, fine in (
            ("inside", True),
            ("../outside", False),
            ("sub/../../outside", False),
            (str(tmp_path / "outside"), False),
        ):
            place = tmp_path / "place"
            write_folder(place, lambda new: (new / "inside").write_text("text"), {})
            forge(place, name)
            if fine:
                check_folder(place)
                continue
            with pytest.raises(CheckpointError):
                check_folder(place)

    def test_names_out_of_data_name_no_files(self, tmp_path: Path) -> None:
        names = ["../../escaped", "/absolute/agent"]
        env = coordination_v0.parallel_env(agents=names, name="../environment")
        words = coordination_v0.VOCABULARY
        models = [tiny_model(words, seed=seed, n_layer=1) for seed in range(3)]
        run = tmp_path / "runs/a"
        make_trainer(
            "maac",
            agents=[models[0][0], models[1][0]],
            tokenizer=models[0][1],
            critic_model=models[2][0],
            env=env,
            num_agents=2,
            max_new_tokens=1,
            save_steps=1,
            logdir=run,
        ).train()
        assert [path for path in tmp_path.rglob("*") if "escaped" in str(path)] == []
        assert {path.name for path in tmp_path.iterdir()} == {"runs"}
        assert {path.name for path in (tmp_path / "runs").iterdir()} == {"a"}
        assert (run / "checkpoints").is_dir()

    @pytest.mark.parametrize("inside", ["progress.json", "checkpoints/step_000000001/state.json"])
    @pytest.mark.parametrize("resume", [None, "auto"])
    def test_links_that_lead_out_of_a_run(
        self, tmp_path: Path, inside: str, resume: str | None
    ) -> None:
        outside, run = tmp_path / "precious", tmp_path / "run"
        outside.write_text("mine")
        (run / inside).parent.mkdir(parents=True)
        (run / inside).symlink_to(outside)
        trainer = make_trainer("maac", logdir=run, resume=resume)
        with pytest.raises(RunFolderError, match=rf"logdir .* holds the link {inside} to .*/prec"):
            trainer.train()
        assert outside.read_text() == "mine"

    def test_links_to_folders_too_but_not_the_run_itself(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "disk").mkdir()
        (tmp_path / "run").symlink_to(tmp_path / "disk")
        (tmp_path / "disk/within").symlink_to("notes")
        (tmp_path / "disk/circle").symlink_to("circle")
        make_trainer("maac", logdir=tmp_path / "run").train()
        assert (tmp_path / "disk/progress.csv").exists()
        (tmp_path / "other").mkdir()
        (tmp_path / "other/checkpoints").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RunFolderError, match="holds the link checkpoints"):
            make_trainer("maac", logdir=tmp_path / "other", save_steps=1).train()
        assert list((tmp_path / "elsewhere").iterdir()) == []


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
