"""Reward functions that raise, hang, die, return garbage, print, leak, or spoil their inputs.

Every fault is a real one: processes are killed, threads hang, the interpreter crashes. Worker
processes import this module, which is why it imports little.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import functools
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from marlogue.envs import (
    BatchRunner,
    RewardWorkerError,
    Start,
    TextEnv,
    TooManyDroppedError,
    batched_reward,
)
from marlogue.envs.reward_drops import Drops
from marlogue.envs.reward_pool import RewardPool
from marlogue.envs.reward_threads import MOST_ABANDONED
from tests.support.command_line import ROOT

ROWS = [{"prompt": f"p{index}", "id": index} for index in range(6)]
LATE = 1.0  # seconds: a limit that a call of a few lines keeps on a busy machine, once it has begun


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    threads, children, files = set(threading.enumerate()), running_children(), open_files()
    yield
    assert running_children() <= children
    # A thread whose function has just been released may have a last word to say.
    assert until(lambda: not our_threads() - threads)
    assert until(lambda: open_files() <= files)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def our_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("marlogue")}


def running_children() -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


class Table:
    """An environment with two agents, played once per row, two generations each."""

    def __init__(self, func, rows=ROWS, **settings) -> None:
        self.env = TextEnv(rows, func, **settings)
        self.runner = BatchRunner(self.env)
        self.count = len(rows)

    def play(self):
        episodes = self.runner.reset([Start(options={"row": k}) for k in range(self.count)], 2)
        said = [{"agent_0": str(e.index), "agent_1": f"b{e.index}"} for e in episodes]
        return self.runner.step(episodes, said)

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.runner.close()
        self.env.close()

    @property
    def drops(self) -> Drops:
        return self.env.task.reward.drops


def told(result) -> str | None:
    errors = {result.infos[agent].get("reward_error") for agent in ("agent_0", "agent_1")}
    assert len(errors) == 1
    return errors.pop()


def numbered(first, second, batch_items):
    """10 x the row and the number of the episode, for both agents."""
    return [10.0 * batch_items[0]["id"] + int(text) for text in first]


RIGHT = [10.0 * (k // 2) + k for k in range(12)]

WAYS = {
    "direct": {},
    "limited": {"reward_timeout": 30},
    "threads": {"reward_workers": 3},
    "process": {"reward_backend": "process"},
    "processes": {"reward_workers": 2, "reward_backend": "process", "reward_timeout": 30},
}


async def later(first, second, batch_items):
    await asyncio.sleep(0.01 * (6 - batch_items[0]["id"]))
    return numbered(first, second, batch_items)


@pytest.mark.parametrize("func", [numbered, later])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_rewards_in_order(way, func):
    with Table(func, **WAYS[way]) as table:
        results = table.play()
        assert [result.rewards["agent_0"] for result in results] == RIGHT
        assert [result.rewards for result in table.play()] == [r.rewards for r in results]
        assert all(told(result) is None for result in results)


def test_calls_begin_and_end_together_in_threads():
    barrier = threading.Barrier(3, timeout=20)

    def func(first, second):
        barrier.wait()
        return [1.0] * len(first)

    with Table(func, ROWS[:3], reward_workers=3) as table:
        assert len(table.play()) == 6


# -- what is dropped ------------------------------------------------------------------------------


class OwnError(Exception):
    """With a constructor that pickle cannot call again."""

    def __init__(self, code, *, where):
        super().__init__(code)
        self.where = where


def own_error():
    raise OwnError(3, where="here")


def interrupted_lookup():
    raise KeyError("missing")


GARBAGE = {
    "nan": (lambda: [math.nan, math.nan], "rewards must be finite"),
    "inf": (lambda: [-math.inf, 1.0], "rewards must be finite"),
    "numpy nan": (lambda: np.array([1.0, np.nan]), "rewards must be finite"),
    "none": (lambda: None, "returned None"),
    "too few": (lambda: [1.0], "1 value"),
    "too many": (lambda: [1.0, 2.0, 3.0], "3 value"),
    "text": (lambda: "much", "a str"),
    "texts": (lambda: ["1", "2"], "it must be a number"),
    "mapping": (lambda: {"agent_0": 1.0}, "a dict"),
    "wrong agents": (lambda: [[1.0], [1.0]], "1 value"),
    "coroutine": (lambda: asyncio.sleep(0), "awaitable"),
    "raises": (interrupted_lookup, "KeyError: 'missing'"),
    "raises its own": (own_error, "OwnError: 3"),
    "recursion": (lambda: recurse(), "RecursionError"),
    "exit": (lambda: sys.exit(0), "tried to end the process"),
}


def recurse():
    return recurse()


def spoilt(make, at):
    """`numbered`, but one row gets what `make` makes."""

    def func(first, second, batch_items):
        if batch_items[0]["id"] == at:
            return make()
        return numbered(first, second, batch_items)

    return func


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_left_out_and_everything_else_is_not(kind):
    make, said = GARBAGE[kind]
    with Table(spoilt(make, 2), on_reward_error="drop") as table:
        with pytest.warns(UserWarning, match="left out"):
            results = table.play()
        partly = kind in ("inf", "numpy nan")  # only one of the two joint actions is at fault
        bad = [told(result) is not None for result in results]
        at_fault = {"inf": [4], "numpy nan": [5]}.get(kind, [4, 5])
        assert [k for k, is_bad in enumerate(bad) if is_bad] == at_fault
        assert table.drops.joint_actions == (1 if partly else 2)
        for k, result in enumerate(results):
            if not bad[k]:
                assert partly or result.rewards["agent_0"] == RIGHT[k]
                continue
            assert result.rewards == {"agent_0": 0.0, "agent_1": 0.0}
            headline = told(result).partition("\n")[0]
            assert said in headline
            assert "row 2, turn 0" in headline
            for agent in ("agent_0", "agent_1"):
                info = result.infos[agent]
                assert info["abstained"] is True
                assert info["reward"] is info["raw_reward"] is None
            json.dumps(result.infos, allow_nan=False)


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *((way, kind) for way in ("direct", "limited") for kind in GARBAGE if kind != "exit"),
        ("process", "nan"),
        ("process", "raises its own"),
    ],
)
def test_garbage_raises_by_default_and_says_where(way, kind):
    make, said = GARBAGE[kind]
    errors = (ValueError, LookupError, OwnError, RuntimeError)
    with Table(spoilt(make, 2), **WAYS[way]) as table, pytest.raises(errors) as caught:
        table.play()
    text = ": ".join([type(caught.value).__name__, str(caught.value), *_notes(caught.value)])
    assert said in text
    assert "row 2, turn 0" in text
    assert ("agent_0" in text) == (kind in ("nan", "inf", "numpy nan", "texts"))


def _notes(error):
    return getattr(error, "__notes__", [])


def test_dropping_looks_alike_wherever_the_call_was_made():
    seen = []
    for way in WAYS.values():
        with Table(spoilt(interrupted_lookup, 4), on_reward_error="drop", **way) as table:
            with pytest.warns(UserWarning, match="left out"):
                results = table.play()
            assert "in interrupted_lookup" in told(results[8])  # the traceback
            headlines = [told(r).partition("\n")[0] if told(r) else None for r in results]
            seen.append(([r.rewards for r in results], headlines))
    assert all(one == seen[0] for one in seen)


def test_a_processor_that_fails_drops_its_joint_action():
    def processor(reward):
        return math.log(reward - 20.0)

    with Table(numbered, reward_processor=processor, on_reward_error="drop") as table:
        with pytest.warns(UserWarning, match="reward_processor"):
            results = table.play()
        assert [told(r) is not None for r in results] == [x <= 20.0 for x in RIGHT]


def test_a_batched_function_loses_only_what_is_garbage():
    @batched_reward
    def func(first, second, batch_items):
        return [math.nan if item["id"] == 1 else 1.0 for item in batch_items]

    with Table(func, on_reward_error="drop") as table:
        with pytest.warns(UserWarning, match="left out"):
            assert [told(r) is None for r in table.play()] == [k not in (2, 3) for k in range(12)]
        assert table.drops.calls == 1


def test_a_dropped_turn_is_followed_by_a_transition_that_gets_none():
    got = []

    def transition(rewards, infos, agent_completions):
        got.append((rewards, "reward_error" in infos["agent_0"]))
        return list(agent_completions)

    def func(first, second, prompts):
        if prompts[0] == ["p0"]:
            raise ValueError("first turn")
        return [0.5]

    env = TextEnv(
        ROWS, func, external_transition=transition, num_turns=2, on_reward_error="drop",
        early_termination_threshold=-1.0,
    )  # fmt: skip
    env.reset()
    with pytest.warns(UserWarning, match="first turn"):
        first = env.step({"agent_0": "x", "agent_1": "y"})
    assert got == [([None, None], True)]
    assert first.infos["__common__"]["mean_reward"] is None
    assert env.agents  # a reward that is not known ends nothing
    assert env.step({"agent_0": "x", "agent_1": "y"}).rewards == {"agent_0": 0.5, "agent_1": 0.5}


def test_warnings_come_once_per_kind_and_are_counted():
    with Table(spoilt(interrupted_lookup, 0), ROWS[:1], max_dropped_share=1.0,
               on_reward_error="drop") as table:  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(12):
                table.play()
        numbers = [str(w.message).partition("error number ")[2].split()[0] for w in caught]
        assert numbers == ["1", "10"]
        assert list(table.drops.kinds.values()) == [12]
        assert len(table.drops.latest) == 3
        assert "in interrupted_lookup" in str(caught[0].message)


def test_too_many_drops_stop_the_run():
    drops = Drops("mine", 0.2)
    with pytest.warns(UserWarning, match="left out"):
        drops.describe(KeyError("x"))
    for _ in range(10):
        drops.count([(2, 2)])  # 10 of at least 50 are 20 %
    drops.count([(0, 2)])
    with pytest.raises(TooManyDroppedError) as caught:
        drops.count([(1, 2)])  # one more half of a call
    assert "10.5 of the latest 12 calls" in str(caught.value)
    assert "max_dropped_share (0.2) of 50" in str(caught.value)
    assert "KeyError: 'x'" in str(caught.value)


def test_the_share_is_that_of_the_latest_calls():
    drops, strict = Drops("mine", 0.1), Drops("mine", 0.0)
    for one in (drops, strict):
        with pytest.warns(UserWarning, match="left out"):
            one.describe(KeyError("x"))
    drops.count([(0, 1)] * 1000 + [(1, 1)] * 20)  # 20 of 200
    drops.count([(0, 1)] * 100)
    with pytest.raises(TooManyDroppedError, match="21 of the latest 200"):
        drops.count([(1, 1)])
    strict.count([(0, 4)])
    with pytest.raises(TooManyDroppedError):
        strict.count([(1, 4)])


def test_counts_of_drops_can_be_saved_as_json():
    first, second = Drops("mine", 0.2), Drops("mine", 0.2)
    with pytest.warns(UserWarning, match="left out"):
        first.describe(KeyError("x"))
    first.count([(1, 2), (0, 2)] * 9 + [(2, 2)] * 5)  # 9.5 calls: one more is too many
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    for drops in (first, second):
        with pytest.raises(TooManyDroppedError):
            drops.count([(2, 2)])


@pytest.mark.filterwarnings("ignore:reward_func .* failed, and what it was to score")
def test_a_function_that_always_fails_stops_the_run_soon():
    with Table(lambda a, b: 1 / 0, on_reward_error="drop") as table:
        with pytest.warns(UserWarning, match="division"):
            table.play()  # 6 calls: fewer than a fifth of 50
        with pytest.raises(TooManyDroppedError) as caught:
            table.play()
        assert "division by zero" in str(caught.value)
        assert any("Traceback" in note for note in caught.value.__notes__)


# -- time -----------------------------------------------------------------------------------------


def hang_at(row):
    def func(first, second, batch_items):
        if batch_items[0]["id"] == row:
            subprocess.Popen(["sleep", "1234"])
            threading.Event().wait()
        return numbered(first, second, batch_items)

    return func


def sleepers() -> set[str]:
    found = subprocess.run(["pgrep", "-f", "^sleep 1234$"], capture_output=True, text=True)
    return set(found.stdout.split())


def test_a_process_that_hangs_is_ended_with_all_that_it_began():
    settings = {**WAYS["processes"], "reward_timeout": LATE, "on_reward_error": "drop"}
    with Table(hang_at(1), ROWS[:3], **settings) as table:
        with pytest.warns(UserWarning, match="took longer than reward_timeout"):
            results = table.play()
        assert [told(r) is None for r in results] == [True, True, False, False, True, True]
        assert "TimeoutError" in told(results[2])
        assert not sleepers()
        with warnings.catch_warnings(record=True):
            assert table.play()[4].rewards["agent_0"] == RIGHT[4]  # the pool goes on


def test_a_hanging_call_raises_by_default():
    with Table(hang_at(0), ROWS[:1], reward_backend="process", reward_timeout=LATE) as table:
        with pytest.raises(TimeoutError, match=r"reward_timeout \(1 s\)") as caught:
            table.play()
        assert "row 0, turn 0" in caught.value.__notes__[0]
    assert not sleepers()


def test_a_thread_that_hangs_is_left_and_the_others_go_on():
    released = threading.Event()

    def func(first, second, batch_items):
        if batch_items[0]["id"] == 1:
            released.wait()
        return numbered(first, second, batch_items)

    with Table(func, reward_workers=2, reward_timeout=LATE, on_reward_error="drop") as table:
        with pytest.warns(UserWarning, match="which nothing can stop"):
            results = table.play()
        assert [told(r) is not None for r in results] == [k in (2, 3) for k in range(12)]
        released.set()  # what it says now is nobody's any more
        assert [r.rewards["agent_0"] for r in table.play()] == RIGHT


@pytest.mark.filterwarnings("ignore:reward_func .* failed, and what it was to score")
def test_too_many_threads_that_hang_stop_the_run():
    released = threading.Event()

    def func(first, second):
        released.wait()
        return [1.0, 1.0]

    settings = {"reward_timeout": 0.01, "on_reward_error": "drop", "max_dropped_share": 1.0}
    with Table(func, ROWS[:1], **settings) as table:
        for _ in range(MOST_ABANDONED):
            assert "took longer" in told(table.play()[0])
        with pytest.raises(RewardWorkerError, match="reward_backend='process'"):
            table.play()
        released.set()


def test_time_counts_from_the_begin_of_a_call_not_from_when_it_waits():
    def func(first, second):
        time.sleep(0.2)
        return [1.0, 1.0]

    with Table(func, reward_timeout=LATE) as table:  # six calls, one worker: 1.2 s together
        assert all(told(result) is None for result in table.play())


# -- processes that die ---------------------------------------------------------------------------


def at_row(row, act):
    def func(first, second, batch_items):
        if batch_items[0]["id"] == row:
            act()
        return numbered(first, second, batch_items)

    return func


def leave_a_child_that_holds_everything():
    if os.fork() == 0:
        time.sleep(1234)
    os._exit(5)


DEATHS = {
    "exit": (lambda: os._exit(3), "ended with exit code 3"),
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "perhaps for lack of memory"),
    "crash": (lambda: ctypes.string_at(0), "Segmentation fault"),
    "a child lives on": (leave_a_child_that_holds_everything, "ended with exit code 5"),
}


@pytest.mark.filterwarnings("ignore:reward_func .* failed, and what it was to score")
def test_a_process_that_dies_fails_its_call_and_no_other():
    """All ways to die in one go."""
    acts = [make for make, _ in DEATHS.values()]

    def func(first, second, batch_items):
        row = batch_items[0]["id"]
        if row < len(acts):
            acts[row]()
        return numbered(first, second, batch_items)

    settings = {**WAYS["processes"], "on_reward_error": "drop"}
    with Table(func, **settings) as table:
        results = table.play()
        for row, (_, said) in enumerate(DEATHS.values()):
            assert said in told(results[2 * row]), row
        assert [r.rewards["agent_0"] for r in results[8:]] == RIGHT[8:]


def test_a_process_that_dies_raises_by_default():
    with Table(at_row(1, lambda: os._exit(3)), reward_backend="process") as table:
        with pytest.raises(RewardWorkerError, match="exit code 3") as caught:
            table.play()
        assert "row 1, turn 0" in caught.value.__notes__[0]


def test_workers_end_with_a_process_that_is_killed(tmp_path):
    """Also one that is in the middle of a call."""
    script = tmp_path / "run.py"
    script.write_text(
        "import os, time\n"
        "from marlogue.envs import TextEnv\n"
        "def func(first, second):\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}.')\n"
        "    time.sleep(1234)\n"
        "env = TextEnv([{'prompt': 'p'}], func, reward_backend='process')\n"
        "env.reset()\n"
        "env.step({'agent_0': 'a', 'agent_1': 'b'})\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], cwd=ROOT)
    pid = tmp_path / "pid"
    assert until(lambda: pid.exists() and pid.read_text().endswith("."))
    worker = int(pid.read_text()[:-1])
    assert is_alive(worker)
    process.kill()
    process.wait()
    assert until(lambda: not is_alive(worker))


def test_a_script_without_a_guard_is_not_run_again_in_the_workers(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "print('once')\n"
        "from marlogue.envs import TextEnv\n"
        "def func(first, second):\n"
        "    return [float(len(first[0]))]\n"
        "env = TextEnv([{'prompt': 'p'}], func, reward_backend='process')\n"
        "env.reset()\n"
        "print(env.step({'agent_0': 'abc', 'agent_1': 'b'}).rewards)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["once", "{'agent_0': 3.0, 'agent_1': 3.0}"]


def test_a_worker_that_has_grown_is_replaced():
    kept = []

    def func(first, second):
        kept.append(bytearray(b"x") * (1100 << 20 if len(kept) == 4 else 1))
        return [float(os.getpid())] * 2

    with Table(func, ROWS[:1], reward_backend="process") as table:
        pids = [table.play()[0].rewards["agent_0"] for _ in range(6)]
    assert [pid == pids[0] for pid in pids] == [True] * 5 + [False]


def test_a_closure_and_a_lambda_go_to_processes_and_what_cannot_is_refused_at_once():
    weight = 2.0
    with Table(lambda a, b: [weight, weight], reward_backend="process") as table:
        assert table.play()[0].rewards["agent_0"] == 2.0
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be sent to a worker process.*'thread'"):
        TextEnv(ROWS, lambda a, b: [float(lock.locked())], reward_backend="process")


class NotThere:
    """Can be pickled, and not loaded again."""

    def __call__(self, first, second):
        return [1.0] * len(first)

    def __reduce__(self):
        return int, ("no number",)


def test_a_function_that_cannot_be_loaded_is_an_error_also_where_errors_are_dropped():
    with Table(NotThere(), reward_backend="process", on_reward_error="drop") as table:
        with pytest.raises(RewardWorkerError, match="could not load reward_func") as caught:
            table.play()
        assert "invalid literal" in str(caught.value)


def test_an_exception_of_a_process_keeps_its_type_and_shows_its_traceback():
    with Table(spoilt(interrupted_lookup, 0), reward_backend="process") as table:
        with pytest.raises(KeyError) as caught:
            table.play()
        assert caught.value.args == ("missing",)
        assert "in interrupted_lookup" in str(caught.value.__cause__)


def test_what_comes_out_of_a_process_is_never_unpickled():
    """A function that writes to the connection itself is a call that fails, no more."""

    class Bomb:
        def __reduce__(self):
            return os._exit, (1,)

    def func(first, second):
        from multiprocessing.connection import Connection

        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if "socket" in os.readlink(f"/proc/self/fd/{fd}"):
                    Connection(os.dup(fd)).send_bytes(cloudpickle.dumps(Bomb()))
        return [1.0, 1.0]

    table = Table(func, ROWS[:1], reward_backend="process", on_reward_error="drop")
    with table, pytest.warns(UserWarning, match="no answer"):
        assert "no answer" in told(table.play()[0])


# -- copies, pickles, interruptions ---------------------------------------------------------------


def test_copies_share_workers_and_pickles_have_none():
    others = running_children()
    with Table(numbered, **WAYS["processes"]) as table:
        table.play()
        before = running_children() - others
        twin = copy.deepcopy(table.env)
        again = pickle.loads(pickle.dumps(table.env))
        for env in (twin, again):
            env.reset(options={"row": 3})
            assert env.step({"agent_0": "1", "agent_1": ""}).rewards["agent_0"] == 31.0
        assert len(running_children() - others) == len(before) + 1
        again.close()
        twin.close()
        assert not running_children() & before


def test_an_environment_that_nobody_closes_leaves_no_workers():
    env = TextEnv(ROWS, numbered, **WAYS["threads"])
    env.reset()
    env.step({"agent_0": "1", "agent_1": ""})
    assert any(t.name == "marlogue-reward" for t in threading.enumerate())
    del env  # the fixture looks


@pytest.mark.parametrize("way", ["limited", "processes", "async"])
def test_an_interruption_leaves_nothing_running_and_the_next_call_is_right(way):
    def func(first, second, batch_items):
        if first == ["stop", "stop"]:
            time.sleep(60)
        return numbered(first, second, batch_items)

    async def waits(first, second, batch_items):
        if first == ["stop", "stop"]:
            await asyncio.sleep(60)
        return numbered(first, second, batch_items)

    settings = WAYS["limited"] if way == "async" else WAYS[way]
    with Table(waits if way == "async" else func, **settings) as table:
        table.play()
        episodes = table.runner.reset([Start(options={"row": 0})], 2)
        timer = threading.Timer(0.3, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            table.runner.step(episodes, [{"agent_0": "stop", "agent_1": ""}] * 2)
        timer.join()
        assert [r.rewards["agent_0"] for r in table.play()] == RIGHT
        for lane in getattr(table.env.task.reward._caller, "_abandoned", []):
            lane.thread.name = "left, as documented"


# -- async ----------------------------------------------------------------------------------------


def test_async_calls_of_a_step_wait_together():
    waiting = []
    everybody = asyncio.Event()

    async def func(first, second):
        waiting.append(1)
        if len(waiting) == len(ROWS):
            everybody.set()
        await everybody.wait()
        return [1.0, 1.0]

    with Table(func, reward_timeout=20) as table:
        assert all(told(result) is None for result in table.play())


def test_reward_workers_limits_how_many_are_awaited():
    running, most = [], []

    async def func(first, second):
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.pop()
        return [1.0, 1.0]

    with Table(func, reward_workers=2) as table:
        table.play()
    assert max(most) == 2


class Judge:
    async def __call__(self, first, second, *, weight=1.0):
        await asyncio.sleep(0)
        return [weight] * len(first)


@pytest.mark.parametrize("func", [Judge(), functools.partial(Judge(), weight=3.0)])
def test_async_objects_and_partials_also_where_a_loop_runs_already(func):
    async def notebook():
        with Table(func) as table:
            return table.play()

    expected = 3.0 if isinstance(func, functools.partial) else 1.0
    assert asyncio.run(notebook())[0].rewards["agent_0"] == expected


def test_an_async_call_that_is_too_late_is_cancelled():
    ends = []

    async def func(first, second, batch_items):
        try:
            await asyncio.sleep(60 if batch_items[0]["id"] == 1 else 0)
        finally:
            ends.append(batch_items[0]["id"])
        return [1.0, 1.0]

    with Table(func, reward_timeout=LATE, on_reward_error="drop") as table:
        with pytest.warns(UserWarning, match="took longer"):
            results = table.play()
        assert [told(r) is not None for r in results] == [k in (2, 3) for k in range(12)]
        assert sorted(ends) == [0, 1, 2, 3, 4, 5]


def test_an_async_call_that_blocks_the_loop_is_left_behind():
    released = threading.Event()

    async def func(first, second, batch_items):
        if not released.is_set():
            released.wait()
        return numbered(first, second, batch_items)

    settings = {"reward_timeout": 0.1, "on_reward_error": "drop", "max_dropped_share": 1.0}
    with Table(func, **settings) as table:
        with pytest.warns(UserWarning, match="took longer"):
            assert all(told(result) for result in table.play())
        released.set()
        assert [r.rewards["agent_0"] for r in table.play()] == RIGHT
        assert until(lambda: sum(t.name == "marlogue-async" for t in threading.enumerate()) == 1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: sys.exit(0), "tried to end the process"),
        (lambda: asyncio.current_task().cancel(), "cancelled from within"),
    ],
)
def test_an_async_call_that_fails_is_alone(make, said):
    async def func(first, second, batch_items):
        await asyncio.sleep(0)
        if batch_items[0]["id"] == 2:
            make()
            await asyncio.sleep(0)
        return numbered(first, second, batch_items)

    with Table(func, on_reward_error="drop") as table:
        with pytest.warns(UserWarning, match=said):
            results = table.play()
        assert [r.rewards["agent_0"] for r in results if not told(r)] == RIGHT[:4] + RIGHT[6:]
    with Table(func) as table, pytest.raises((RuntimeError, ZeroDivisionError)) as caught:
        table.play()
    assert "row 2, turn 0" in "".join(_notes(caught.value))


def test_an_async_client_can_be_kept_from_step_to_step():
    """Connections belong to a loop; there is one, for reward and transition, train and test."""
    loops = []

    async def func(first, second):
        loops.append(asyncio.get_running_loop())
        return [1.0] * len(first)

    async def transition(agent_completions):
        loops.append(asyncio.get_running_loop())
        return list(agent_completions)

    env = TextEnv(ROWS, func, external_transition=transition, num_turns=2)
    other = TextEnv(ROWS, func)
    for one in (env, env, other):
        one.reset()
        while one.agents:
            one.step({"agent_0": "a", "agent_1": "b"})
    assert len(set(map(id, loops))) == 1
    env.close()
    assert not loops[0].is_closed()  # the other one has it still
    other.close()
    assert loops[0].is_closed()


def test_async_transitions_wait_together_and_say_where_they_fail():
    waiting = []
    everybody = asyncio.Event()

    async def transition(agent_completions, item):
        waiting.append(1)
        if len(waiting) == 12:
            everybody.set()
        await everybody.wait()
        if item["id"] == 5:
            raise LookupError("no judge")
        return [f"{item['id']}{text}" for text in agent_completions]

    with Table(numbered, external_transition=transition, num_turns=2) as table:
        with pytest.raises(LookupError) as caught:
            table.play()
        assert "row 5, turn 0" in caught.value.__notes__[0]
    waiting.clear()
    with Table(numbered, ROWS[:5], external_transition=transition, num_turns=2) as table:
        everybody.set()
        shown = [result.observations["agent_1"] for result in table.play()]
        assert shown == [f"{k // 2}b{k}" for k in range(10)]


# -- what a function does to what it is given -----------------------------------------------------


def spoiler(first, second, prompts, batch_items):
    for given in (first, second, *prompts):
        given.clear()
    batch_items[0]["prompt"] = "spoilt"
    batch_items[0].clear()
    batch_items.clear()
    return np.array([1.0, 2.0], dtype=np.float32)


@pytest.mark.parametrize("way", ["direct", "threads", "process"])
def test_inputs_are_the_functions_own(way):
    rows = copy.deepcopy(ROWS)
    with Table(spoiler, rows, **WAYS[way]) as table:
        for _ in range(2):
            results = table.play()
            assert [r.rewards["agent_1"] for r in results] == [1.0, 2.0] * 6
            assert results[3].infos["agent_0"]["item"] == ROWS[1]
    assert rows == ROWS


@pytest.mark.parametrize("way", ["direct", "threads"])
def test_scalars_of_arrays_and_tensors_become_plain_numbers(way):
    import torch  # not above: every worker process would import it with this module, too

    def func(first, second, batch_items):
        kind = batch_items[0]["id"] % 3
        if kind == 0:
            return torch.tensor([0.5, 1.5], requires_grad=True)
        return [np.float32(0.5), torch.tensor(1.5)] if kind == 1 else np.array([0.5, 1.5])

    with Table(func, **WAYS[way]) as table:
        rewards = [result.rewards["agent_0"] for result in table.play()]
    assert rewards == [0.5, 1.5] * 6
    assert all(type(reward) is float for reward in rewards)


def test_megabytes_of_prints_harm_nothing(capfd):
    def func(first, second):
        print("x" * (1 << 20))
        os.write(1, b"y" * (1 << 20))
        os.write(2, b"z" * (1 << 20))
        return [1.0, 1.0]

    with Table(func, ROWS[:2], reward_backend="process") as table:
        assert [result.rewards["agent_0"] for result in table.play()] == [1.0] * 4
    assert capfd.readouterr().out.count("y") == 2 << 20


def test_a_signal_handler_that_leaves_is_not_a_failed_reward():
    def handler(*_):
        sys.exit(3)

    def func(first, second):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(1)
        return [1.0, 1.0]

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Table(func, on_reward_error="drop") as table, pytest.raises(SystemExit) as caught:
            table.play()
        assert caught.value.code == 3
    finally:
        signal.signal(signal.SIGUSR1, before)


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reward_timeout": 0}, r"reward_timeout \(0\) must be above 0"),
        ({"reward_timeout": math.inf}, r"reward_timeout \(inf\) must be"),
        ({"reward_timeout": "5"}, r"reward_timeout \('5'\) must be a number"),
        ({"reward_workers": -1}, r"reward_workers \(-1\) must be 0 or more"),
        ({"reward_workers": True}, r"reward_workers \(True\) must be an integer"),
        ({"reward_backend": "fork"}, r"reward_backend \('fork'\) must be one of"),
        ({"on_reward_error": "skip"}, r"on_reward_error \('skip'\) must be one of"),
        ({"max_dropped_share": 1.5}, r"max_dropped_share \(1.5\) must be within 0 and 1"),
    ],
)
def test_bad_arguments_are_refused(settings, said):
    with pytest.raises((TypeError, ValueError), match=said):
        TextEnv(ROWS, numbered, **settings)


def test_the_pool_is_made_when_it_is_needed():
    before = running_children()
    env = TextEnv(ROWS, numbered, **WAYS["processes"])
    assert isinstance(env.task.reward._caller, RewardPool)
    assert running_children() <= before
