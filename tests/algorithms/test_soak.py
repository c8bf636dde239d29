"""Real processes are killed at random moments; `benchmarks/soak.py` does it hundreds of times."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.soak import differences, soak


@pytest.mark.slow
def test_runs_that_are_killed_end_as_if_nothing_had_happened(tmp_path):
    kills = 0
    for algorithm in ("maac", "iac"):
        summary = soak(algorithm, kills=16, seed=11, folder=tmp_path / algorithm, tell=len)
        kills += summary.kills
    assert kills >= 30

    # That differences are found: in a weight, in a figure, in what somebody said.
    run = tmp_path / "maac" / "run_0" / "undisturbed"
    assert differences(run, run) == []
    changed = shutil.copytree(run, tmp_path / "changed")
    rows = (changed / "progress.json").read_text().splitlines()
    rows[-1] = json.dumps({**json.loads(rows[-1]), "team/turn_1/reward_mean": 0.123})
    (changed / "progress.json").write_text("\n".join(rows))
    assert differences(run, changed) == ["progress.json", "progress.csv"]
    weights = next(max((changed / "checkpoints").iterdir()).rglob("model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.warns(UserWarning, match="no intact checkpoint"):
        assert "the last checkpoints" in differences(run, changed)[0]
