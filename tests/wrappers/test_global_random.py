"""Code that draws from the global generators, run without touching them."""

import copy
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from marlogue.wrappers.global_random import PrivateRandom


def draws(count=3):
    """What a game would draw: of Python, and of NumPy, an odd number of normal numbers among it."""
    return [
        (random.random(), np.random.randint(1000), np.random.normal())  # noqa: NPY002
        for _ in range(count)
    ]


@pytest.mark.parametrize("normals", [0, 1])
def test_the_global_generators_do_not_notice(normals):
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    np.random.normal(size=normals)  # noqa: NPY002
    states = random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002
    own = np.random.get_bit_generator()
    with PrivateRandom(1).lent():
        draws()
        random.seed(9)
        np.random.seed(9)  # noqa: NPY002
    assert states == (random.getstate(), pickle.dumps(np.random.get_state()))  # noqa: NPY002
    assert np.random.get_bit_generator() is own
    with pytest.raises(ZeroDivisionError), PrivateRandom(1).lent():
        random.random() / 0
    assert states == (random.getstate(), pickle.dumps(np.random.get_state()))  # noqa: NPY002


def test_the_same_seed_goes_on_alike():
    def run(private):
        drawn = []
        for _ in range(3):
            with private.lent():
                drawn += draws()
            draws()
        return drawn

    first = run(PrivateRandom(1))
    assert first == run(PrivateRandom(1))
    assert first != run(PrivateRandom(2))
    assert len(set(first)) == 9
    private = PrivateRandom()
    private.seed(1)
    assert run(private) == first


def test_copies_go_on_apart():
    private = PrivateRandom(3)
    with private.lent():
        draws()
    twins = [copy.deepcopy(private), pickle.loads(pickle.dumps(private))]
    with private.lent():
        expected = draws()
    for twin in twins:
        with twin.lent():
            assert draws() == expected


def test_threads_do_not_mix_their_states():
    """Servers give each session a thread; the games in them draw a little at a time."""

    def play(seed):
        private, drawn = PrivateRandom(seed), []
        for _ in range(30):
            with private.lent():
                drawn += draws(1)
                time.sleep(1e-5)  # lets another thread go on
                drawn += draws(1)
        return drawn

    expected = [play(seed) for seed in range(4)]
    state, own = random.getstate(), np.random.get_bit_generator()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(play, range(4))) == expected
    assert random.getstate() == state
    assert np.random.get_bit_generator() is own


def test_one_thread_lends_within_a_loan():
    inner, outer = PrivateRandom(1), PrivateRandom(2)
    with outer.lent():
        first = draws(1)
        with inner.lent():
            draws(1)
        second = draws(1)
    with PrivateRandom(2).lent():
        assert draws(2) == first + second
