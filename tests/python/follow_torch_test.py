"""lmdbio.torch.FollowDataset: batches, states, and training that forgets without old samples and does not with them."""
import os
import pickle

import numpy
import pytest
import torch
from follow_test import put_some, writer_process  # noqa: F401  pylint: disable=unused-import

import lmdbio.torch


def number(key, value):
    assert bytes(value[:6]) == bytes(key)
    return int(bytes(key))


def test_batches_and_states(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 100)
    arguments = {"fresh": 8, "old": 4, "seed": 1, "on_empty": "stop", "decode": number}
    dataset = lmdbio.torch.FollowDataset(path, **arguments)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    with_follow = lmdbio.torch.FollowDataset(path, **arguments)
    first = []
    for batch in loader:
        first.append(batch.tolist())
        if len(first) == 6:
            break
    state = dataset.state_dict()
    rest = [batch.tolist() for batch in loader]
    assert sorted(n for batch in first + rest for n in batch[:8 if batch is not rest[-1] else 4]) == list(range(100))
    dataset.close()
    again = lmdbio.torch.FollowDataset(path, **arguments)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert [batch.tolist() for batch in again] == rest
    again.close()
    for workers in (1, 2):
        with pytest.raises(ValueError, match="num_workers=0"):
            list(torch.utils.data.DataLoader(with_follow, batch_size=None, num_workers=workers))
    assert [batch.tolist() for batch in with_follow] == first + rest
    with_follow.close()
    assert pickle.loads(pickle.dumps(with_follow)).state_dict
    put_some(writer, path, 8, 100)
    assert sorted(list(again)[-1][:8].tolist()) == sorted(range(100, 108)) or again.follow.pending == 0


def test_without_decode(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 5)
    assert sorted(v for batch in lmdbio.torch.FollowDataset(path, fresh=2, on_empty="stop") for v in batch) == \
        [b"%06d" % i * 8 for i in range(5)]


# ---- two tasks, one after the other: the digits 0 to 4, then 5 to 9

def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train(writer, path, old, seed, data):
    """Trains on a stream of both tasks; returns the accuracy of the first one after each."""
    (train_x, train_y), (test_x, test_y) = data
    torch.manual_seed(seed)
    noise = numpy.random.default_rng(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def commit(task, visit):
        chosen = numpy.flatnonzero((train_y >= 5) == task)
        pixels = (train_x[chosen] + noise.integers(0, 2, (len(chosen), 64))).astype(numpy.uint8)
        writer.commit(path, [(b"%d%d%06d" % (task, visit, i), bytes([train_y[i]]) + p.tobytes()) for i, p in zip(chosen, pixels)])

    def decode(_, value):
        return torch.frombuffer(bytearray(value[1:]), dtype=torch.uint8).float() / 16, value[0]

    dataset, after = None, []
    for task in (0, 1):
        for visit in range(12):
            commit(task, visit)
            if dataset is None:
                dataset = lmdbio.torch.FollowDataset(path, fresh=32, old=old, seed=seed, capacity=500, decode=decode,
                                                     on_empty="stop", renew_batches=1)
            for x, y in dataset:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        first = test_y < 5
        after.append(accuracy(model, test_x[first], test_y[first]))
    after.append(accuracy(model, test_x[~first], test_y[~first]))
    dataset.close()
    return after


def test_rehearsal_prevents_forgetting(writer, tmp_path):
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    is_test = numpy.arange(len(digits.target)) % 5 == 0
    x, y = digits.data, digits.target
    data = ((x[~is_test], y[~is_test]), (torch.tensor(x[is_test] / 16, dtype=torch.float32), torch.tensor(y[is_test])))
    for seed in range(3):
        forgets = train(writer, str(tmp_path / f"without{seed}"), 0, seed, data)
        remembers = train(writer, str(tmp_path / f"with{seed}"), 4, seed, data)
        print(seed, os.getpid(), forgets, remembers)
        assert forgets[0] > 0.9 and remembers[0] > 0.9, "the first task was learnt"
        assert forgets[2] > 0.9 and remembers[2] > 0.85, "the second task was learnt"
        assert forgets[1] < 0.1, "without old samples, the first one is forgotten"
        assert remembers[1] > 0.7, "with an eighth of old samples, it is not"
