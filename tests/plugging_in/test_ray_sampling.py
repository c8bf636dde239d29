"""Environments of numeric teams on a Ray cluster."""

import importlib
import os
from pathlib import Path

import pytest

from marlogue.algorithms.team_vector import make_team_vector
from tests.support import team_faults
from tests.support.libraries import needs
from tests.support.team_envs import Shift

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = needs("ray")

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore:.*ray")]


@pytest.fixture(scope="module")
def cluster():
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


# Few actors, since each is a new process that takes seconds. How a worker's death is dealt with
# is one code for all backends, and tested more fully with processes.


@pytest.mark.usefixtures("cluster")
class TestOnACluster:
    def test_same_rollouts(self):
        team_faults.check_same_rollouts("ray", discrete=True)
        assert ray.is_initialized()

    def test_a_dead_actor_is_replaced(self):
        team_faults.check_replaced("ray")

    def test_exceptions_are_no_deaths(self):
        team_faults.check_exceptions("ray")

    def test_modules_that_this_process_finds_are_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = "from tests.support.team_envs import Shift\ndef made():\n    return Shift()\n"
        (tmp_path / "lies_elsewhere.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        made = importlib.import_module("lies_elsewhere").made
        with make_team_vector(made, backend="ray") as vector:
            assert vector.reset().present.any()


def test_a_cluster_of_its_own_ends_with_the_last_vector():
    if ray.is_initialized():
        ray.shutdown()
    first = make_team_vector(Shift, backend="ray")
    second = make_team_vector(Shift, backend="ray")
    first.close()
    assert ray.is_initialized()
    assert second.reset().present.any()
    second.close()
    assert not ray.is_initialized()
