"""A team's folder may come from anywhere: nothing in it is run unless the user names it."""

import io
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Run

CODE = (
    "open({marker!r}, 'w').close()\n"
    "from marlogue.envs import coordination_v0\n"
    "def make(**kwargs):\n    return coordination_v0.parallel_env(**kwargs)\n"
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("MARLOGUE_CACHE", str(place))
    return place


def train(run: Run, *words: str) -> None:
    assert run("train", "--config", "tiny.yaml", "--output_dir", "team", *words).status == 0


def test_a_configuration_from_elsewhere_is_not_used_by_itself(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run)
    marker = here / "marker"
    (here / "team/its_module.py").write_text(CODE.format(marker=str(marker)))
    file = here / "team/config.yaml"
    text = file.read_text()
    assert "name: coordination_v0" in text or "env: coordination_v0" in text
    file.write_text(text.replace("coordination_v0", "its_module.make"))
    for command in ("evaluate", "rollout", "chat"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        for words in (["--team", "team"], ["--team=team"]):
            refused = run(command, *words)
            assert refused.status == 2
            assert "comes with a config.yaml that no training here has left" in refused.err
            assert "name it: --config team/config.yaml" in refused.err
    assert not marker.exists()
    # What the user names is the user's word.
    assert run("rollout", "--team", "team", "--config", "team/config.yaml").status == 0
    assert marker.exists()
    file.write_text(text)
    assert run("rollout", "--team", "team").status == 0


def test_modules_are_not_looked_for_in_a_team(run: Run, here: Path) -> None:
    marker = here / "marker"
    (here / "mine_alone.py").write_text(CODE.format(marker=str(here / "trained")))
    train(run, "--env", "mine_alone.make")
    (here / "mine_alone.py").unlink()
    del sys.modules["mine_alone"]
    (here / "team/mine_alone.py").write_text(CODE.format(marker=str(marker)))
    refused = run("rollout", "--team", "team")
    assert "no module mine_alone was found" in refused.err
    assert not marker.exists()


def test_a_configuration_of_another_machine(
    run: Run, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run)
    monkeypatch.setenv("MARLOGUE_CACHE", str(tmp_path / "another"))
    assert run("rollout", "--team", "team").status == 2
    assert run("rollout", "--team", "team", "--config", "tiny.yaml").status == 0


def test_a_cache_that_cannot_be_written(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "file").write_text("")
    monkeypatch.setenv("MARLOGUE_CACHE", str(here / "file/cache"))
    train(run)
    assert "--config team/config.yaml" in run("rollout", "--team", "team").err


def test_a_link_in_the_output_folder_is_seen_before_the_training(run: Run, here: Path) -> None:
    (here / "precious").write_text("mine")
    (here / "team/agent_0").mkdir(parents=True)
    (here / "team/agent_0/model.safetensors").symlink_to(here / "precious")
    refused = run("train", "--config", "tiny.yaml", "--output_dir", "team", "--logdir", "run")
    assert refused.status == 2
    assert "output_dir (team) holds the link agent_0/model.safetensors" in refused.err
    assert (here / "precious").read_text() == "mine"
    assert not (here / "run").exists()
