"""Datasets and the order of their rows (C62, C66, C68)."""

import copy
import itertools
import json
import pickle

import datasets
import pytest
import torch

from marlogue.envs import RowOrder
from marlogue.envs.rows import Rows

SIX = [{"id": i} for i in range(6)]


class Restartable:
    """An iterable that starts again each time, without a length."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


class Endless:
    def __iter__(self):
        return ({"id": i} for i in itertools.count())


class Indexed:
    """The least of a map-style dataset, like torch's."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"id": range(3)[index]}


def ids(pairs):
    return [row["id"] for _, row in pairs]


MAP_STYLE = {
    "list": SIX[:3],
    "tuple": tuple(SIX[:3]),
    "datasets.Dataset": datasets.Dataset.from_list(SIX[:3]),
    "sequence": Indexed(),
}
STREAMS = {
    "datasets.IterableDataset": datasets.Dataset.from_list(SIX[:3]).to_iterable_dataset(),
    "iterable": Restartable(SIX[:3]),
}


@pytest.mark.parametrize("dataset", [*MAP_STYLE.values(), *STREAMS.values()])
def test_every_kind_of_dataset_is_taken_epoch_by_epoch(dataset):
    order = RowOrder(dataset)
    assert [index for index, _ in order] == [0, 1, 2]
    assert ids(order) == [0, 1, 2]
    assert order.epoch == 2
    assert [order.take()[1]["id"] for _ in range(4)] == [0, 1, 2, 0]


def test_an_endless_stream_gives_as_many_rows_as_are_taken():
    assert ids(itertools.islice(RowOrder(Endless()), 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dataset", STREAMS.values())
def test_a_stream_cannot_be_shuffled_or_indexed(dataset):
    with pytest.raises(ValueError, match=r"shuffle \(True\) needs a dataset with a length"):
        RowOrder(dataset, shuffle=True)
    with pytest.raises(ValueError, match=r"row \(1\) cannot be chosen in a streaming dataset"):
        Rows(dataset).read(1)


@pytest.mark.parametrize("dataset", [[], (), datasets.Dataset.from_list([])])
def test_an_empty_dataset_is_refused_at_once(dataset):
    with pytest.raises(ValueError, match="dataset is empty"):
        Rows(dataset)


def test_an_empty_stream_is_refused_at_the_first_row():
    with pytest.raises(ValueError, match="dataset is empty"):
        RowOrder(Restartable([])).take()
    with pytest.raises(ValueError, match="dataset is empty"):
        list(RowOrder(Restartable([])))


@pytest.mark.parametrize(
    ("dataset", "hint"),
    [
        (iter(SIX), "only once"),
        ((row for row in SIX), "only once"),
        ("rows.json", "not be a text"),
        ({"train": SIX}, "choose one of its splits"),
        (datasets.DatasetDict(train=datasets.Dataset.from_list(SIX)), "choose one of its splits"),
        (7, "must be a list of dicts"),
        (None, "must be a list of dicts"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset, hint):
    with pytest.raises(TypeError, match=hint):
        Rows(dataset)


@pytest.mark.parametrize("bad", ["text", 3, None, [("prompt", "x")]])
def test_a_row_that_is_no_dict_is_named(bad):
    for dataset in ([{"id": 0}, bad], Restartable([{"id": 0}, bad])):
        with pytest.raises(TypeError, match="row 1 of the dataset"):
            list(RowOrder(dataset))


def test_an_error_of_the_dataset_keeps_its_type_and_names_the_row():
    class Broken(Indexed):
        def __getitem__(self, index):
            raise KeyError("no such shard")

    with pytest.raises(KeyError, match="no such shard") as caught:
        Rows(Broken()).read(2)
    assert "row 2" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("index", "error"), [(6, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_a_row_out_of_range_is_refused(index, error):
    with pytest.raises(error, match="row"):
        Rows(SIX).read(index)


def test_rows_are_handed_out_as_copies():
    rows = [{"tags": ["a"]}]
    Rows(rows).read(0)["tags"].append("b")
    next(Rows(rows).stream())["tags"].append("b")
    assert rows == [{"tags": ["a"]}]


def test_the_shuffled_order_is_one_permutation_an_epoch_from_one_private_generator():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    order = RowOrder(SIX, shuffle=True, seed=0)
    assert ids(order) == [2, 5, 3, 0, 1, 4]
    assert ids(order) == [3, 0, 5, 4, 2, 1]
    assert torch.equal(torch.get_rng_state(), before)


def test_resuming_goes_on_where_it_stopped():
    order = RowOrder(SIX, shuffle=True, seed=0)
    assert ids(itertools.islice(order, 4)) == [2, 5, 3, 0]
    state = json.loads(json.dumps(order.state_dict()))

    resumed = RowOrder(SIX, shuffle=True, seed=99)
    resumed.load_state_dict(state)
    assert ids(resumed) == [1, 4]
    assert ids(resumed) == [3, 0, 5, 4, 2, 1]
    assert ids(order) == [1, 4]


@pytest.mark.parametrize("dataset", [SIX, Restartable(SIX)])
def test_resuming_a_plain_order_and_a_stream(dataset):
    order = RowOrder(dataset)
    list(itertools.islice(order, 2))
    resumed = RowOrder(dataset)
    resumed.load_state_dict(order.state_dict())
    assert next(iter(resumed)) == (2, {"id": 2})
    assert ids(resumed) == [3, 4, 5]


def test_resuming_at_the_end_of_an_epoch_repeats_nothing():
    order = RowOrder(SIX[:2])
    list(itertools.islice(order, 2))
    resumed = RowOrder(SIX[:2])
    resumed.load_state_dict(order.state_dict())
    assert resumed.take() == (0, {"id": 0})
    assert resumed.epoch == 1


def test_resuming_with_another_dataset_is_refused():
    order = RowOrder(SIX[:2])
    with pytest.raises(ValueError, match="length 6, this one has length 2"):
        order.load_state_dict(RowOrder(SIX).state_dict())
    with pytest.raises(ValueError, match="shuffle True"):
        order.load_state_dict(RowOrder(SIX[:2], shuffle=True).state_dict())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize("dataset", [SIX, Restartable(SIX)])
def test_copies_of_an_order_go_on_apart(again, dataset):
    order = RowOrder(dataset)
    order.take()
    twin = again(order)
    assert [twin.take()[0] for _ in range(3)] == [1, 2, 3]
    assert order.take()[0] == 1


@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), ("0", TypeError), (True, TypeError)])
def test_a_wrong_seed_is_refused(seed, error):
    with pytest.raises(error, match="seed"):
        RowOrder(SIX, seed=seed)
