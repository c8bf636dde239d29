"""What is written stays in the folder that the user named, whatever names and links there are."""

import hashlib
import json
from pathlib import Path

import pytest

from marlogue.agents import tiny_model
from marlogue.algorithms.checkpoints import CheckpointError, check_folder, write_folder
from marlogue.algorithms.run_folder import RunFolderError
from marlogue.envs import coordination_v0
from tests.support.team import make_trainer


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
