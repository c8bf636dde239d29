"""A long run takes no more memory, threads or open files than a short one."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from marlogue.algorithms import Callback
from tests.support.team import make_trainer, rows

UPDATES = 300
# Growth over the last two thirds.
MOST_BYTES = 2 * 2**20
MOST_OBJECTS = 150


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Gauge(Callback):
    """Measures after every third of the updates."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.objects: list[int] = []
        self.threads: list[int] = []
        self.files: list[int] = []

    def on_update(self, trainer: Any) -> None:
        if trainer.updates % (UPDATES // 3) == 0:
            gc.collect()
            self.bytes.append(resident())
            self.objects.append(len(gc.get_objects()))
            self.threads.append(threading.active_count())
            self.files.append(len(os.listdir("/proc/self/fd")))


@pytest.mark.slow
def test_hundreds_of_updates(tmp_path):
    """With all that grows along a run: log, transcripts, checkpoints, evaluations."""
    gauge = Gauge()
    trainer = make_trainer(
        "maac",
        train_dataset=rows(8),
        max_steps=UPDATES,
        rollout_buffer_size=1,
        max_new_tokens=2,
        eval_dataset=rows(1),
        eval_interval=50,
        save_steps=50,
        logdir=tmp_path,
        callbacks=[gauge],
        metrics_callback=lambda samples: {"seen": 1.0},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    assert trainer.updates == UPDATES
    assert len(set(gauge.threads)) == 1
    assert len(set(gauge.files)) == 1
    assert gauge.bytes[-1] - gauge.bytes[0] < MOST_BYTES, gauge.bytes
    assert gauge.objects[-1] - gauge.objects[0] < MOST_OBJECTS, gauge.objects
