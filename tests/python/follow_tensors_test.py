"""lmdbio.torch.TensorLoader over a FollowDataset: the batches and states of lmdbio.Follow, prepared ahead."""
import errno
import gc
import os
import random
import sys
import threading
import weakref

import lmdb
import numpy
import pytest
from examples_test import MPI, needs_mpi, run
from follow_test import put_some, writer_process  # noqa: F401  pylint: disable=unused-import

import lmdbio
import lmdbio.torch
from lmdbio import _followed as followed

FIELDS = [("number", "<i4"), ("rest", "u1", (12,))]
DTYPE = numpy.dtype(FIELDS)


def by_hand(kind, batch):
    """What a loader must make of a batch, as lists."""
    values = [bytes(r.value) for r in batch]
    if kind == "fields":
        array = numpy.frombuffer(b"".join(values), DTYPE)
        return {"number": array["number"].tolist(), "rest": array["rest"].tolist()}
    if kind == "flat":
        return {"data": list(b"".join(values)), "offsets": numpy.cumsum([0] + [len(v) for v in values]).tolist()}
    if kind == "decode":
        return [(bytes(r.key), bytes(r.value), r.ordinal) for r in batch]
    return values


ARGUMENTS = {"fields": {"fields": FIELDS}, "flat": {"fields": "flat"},
             "decode": {"decode": lambda r: (bytes(r.key), bytes(r.value), r.ordinal), "collate_fn": list},
             "decode_batch": {"decode_batch": lambda batch: [bytes(v) for v in batch.values]}}


def as_lists(kind, made):
    return {name: part.tolist() for name, part in made.items()} if kind in ("fields", "flat") else made


class Pair:
    """The same commits in two databases: one for a Follow, and one for a loader."""

    def __init__(self, r, writer, path):
        self.r, self.writer, self.paths, self.state = r, writer, [path + "a", path + "b"], {}

    def commit(self):
        puts, dels = {}, []
        for _ in range(self.r.choice((1, 5, 30))):
            key = b"%03d" % self.r.randrange(120)
            if key in self.state and key not in puts and self.r.random() < 0.3:
                dels.append((key, b""))
                del self.state[key]
            else:
                self.state[key] = puts[key] = self.r.randbytes(16)
        for path in self.paths:
            txn = self.writer.commit(path, puts.items(), dels)
        return txn


def one_configuration(seed, writer, path):
    r = random.Random(seed)
    fresh = r.choice((0, 1, 4, 16))
    options = {"fresh": fresh, "old": r.choice((0, 2, 8)) if fresh else 5, "seed": seed, "lag": r.choice((1, 4, 6)),
               "buffer": r.choice(("reservoir", "ring", "all")), "capacity": r.choice((1, 10, 50)),
               "existing": "new" if fresh and r.random() < 0.6 else "old", "renew_batches": r.choice((1, 3, 16)), "renew_seconds": 1e6,
               "timeout": 0.01, "on_empty": r.choice(("rehearse", "stop"))}
    kind = r.choice(sorted(ARGUMENTS))
    more = dict(ARGUMENTS[kind], prefetch=r.choice((1, 2, 9)), threads=r.choice((1, 3)))
    pair = Pair(r, writer, path)
    txn = pair.commit()
    while not pair.state:
        txn = pair.commit()
    follow = lmdbio.Follow(pair.paths[0], **options)
    dataset = lmdbio.torch.FollowDataset(pair.paths[1], **options)
    loader = lmdbio.torch.TensorLoader(dataset, **more)
    batches, _ = iter(loader), dataset.follow  # opens the database
    for _ in range(r.choice((10, 40))):
        if r.random() < 0.3:
            txn = pair.commit()
            continue
        try:
            batch, new = next(follow, (None, None))
        except TimeoutError:
            with pytest.raises(TimeoutError):
                next(batches)
            continue
        if batch is None:
            assert next(batches, None) is None
            batches = iter(loader)
            continue
        made, made_new = next(batches)
        assert made_new == new
        assert as_lists(kind, made) == by_hand(kind, batch)
        if r.random() < 0.15 and follow.transaction == txn:  # continue from the states, the loader's also as a Follow
            states = [follow.state(), loader.state_dict()["state"]]
            follow.close()
            loader.close()
            dataset.close()
            if r.random() < 0.5:
                pair.paths.reverse()
                states.reverse()
            follow = lmdbio.Follow(pair.paths[0], state=states[0], **options)
            dataset = lmdbio.torch.FollowDataset(pair.paths[1], **options)
            loader = lmdbio.torch.TensorLoader(dataset, **more)
            loader.load_state_dict({"state": states[1]})
            batches, _ = iter(loader), dataset.follow
    follow.close()
    loader.close()
    dataset.close()


def test_batches_are_those_of_a_follow(writer, tmp_path, monkeypatch):
    dropped, drop = [], followed.Followed._drop
    monkeypatch.setattr(followed.Followed, "_drop", lambda self: (dropped.append(len(self._prepared)), drop(self))[1])
    for seed in range(150):
        try:
            one_configuration(seed, writer, str(tmp_path / str(seed)))
        except BaseException:
            print("seed", seed)
            raise
    assert sum(n > 0 for n in dropped) > 20, "new snapshots have changed batches that were prepared"


def records(n, size=16):
    return [(b"%06d" % i, b"%06d" % i + bytes(size - 6)) for i in range(n)]


def numbers(records_of_batch):
    return [int(bytes(r.key)) for r in records_of_batch]


def test_reads_ahead_and_no_further_than_lag(writer, tmp_path):
    path = str(tmp_path / "db")
    writer.commit(path, records(100))
    for prefetch, lag, ahead in ((1, 4, 1), (2, 4, 2), (100, 3, 3)):
        done = []
        dataset = lmdbio.torch.FollowDataset(path, fresh=10, on_empty="stop", lag=lag)
        loader = lmdbio.torch.TensorLoader(dataset, decode_batch=lambda b: done.append(b.ordinals), prefetch=prefetch)  # noqa: B023
        batches = iter(loader)
        for k in range(1, 6):
            next(batches)
            state = loader.state_dict()  # waits for what is read ahead
            loader._prepared[0]._source._pool.submit(lambda: None).result()
            loader._prepared[0]._source._waiting[-1].result().result()
            assert len(loader._prepared[0]._prepared) == ahead
            assert len(done) == k + ahead
        loader.close()
        dataset.close()
        with lmdbio.Follow(path, fresh=10, on_empty="stop", lag=lag, state=state["state"]) as follow:
            assert next(follow)[0].ordinals == list(range(50, 60)), "what was prepared is not in the state"


def test_failing_functions_and_records_lose_nothing(writer, tmp_path):
    path = str(tmp_path / "db")
    writer.commit(path, records(60))
    options = {"fresh": 10, "old": 2, "on_empty": "stop", "seed": 5}
    with lmdbio.Follow(path, **options) as follow:
        want = [numbers(batch) for batch, _ in follow]
    for exception in (ValueError, StopIteration, KeyboardInterrupt):
        fails = {want[2][3], want[4][0]}

        def decode(record):
            n = int(bytes(record.key))
            if n in fails:  # noqa: B023
                fails.discard(n)  # noqa: B023
                raise exception("once")  # noqa: B023
            return n

        dataset = lmdbio.torch.FollowDataset(path, **options)
        loader = lmdbio.torch.TensorLoader(dataset, decode=decode)
        batches, got, failed = iter(loader), [], 0
        while True:
            try:
                got.append(next(batches)[0].tolist())
            except StopIteration:
                break
            except (RuntimeError if exception is StopIteration else exception):
                failed += 1
        assert got == want and failed == 2
        loader.close()
        dataset.close()
    # A record that does not fit: the error comes again, and a loader for any records continues with this batch.
    writer.commit(path, [(b"%06d" % want[3][1], b"short")])
    dataset = lmdbio.torch.FollowDataset(path, **options)
    loader = lmdbio.torch.TensorLoader(dataset, fields=("u1", (16,)))
    delivered = 0
    with pytest.raises(ValueError, match="5 bytes"):
        for _ in loader:
            delivered += 1
    for _ in range(2):
        with pytest.raises(ValueError, match="5 bytes"):
            next(iter(loader))
    state = loader.state_dict()
    loader.close()
    rest = lmdbio.torch.TensorLoader(dataset, fields="flat")
    rest.load_state_dict(state)
    with_short = [batch["offsets"].diff().tolist() for batch, _ in rest]
    assert len(with_short) == 6 - delivered and 5 in with_short[0]
    rest.close()
    dataset.close()


def test_errors_of_the_follow(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 30)
    dataset = lmdbio.torch.FollowDataset(path, fresh=10, timeout=0.01)
    loader = lmdbio.torch.TensorLoader(dataset, fields="flat")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="no new records"):
            next(batches)
    put_some(writer, path, 10, 30)
    assert next(batches)[1] == 10
    dataset_waits = lmdbio.torch.FollowDataset(str(tmp_path / "waits"), fresh=10)
    put_some(writer, tmp_path / "waits", 3)
    waiting = lmdbio.torch.TensorLoader(dataset_waits, fields="flat")
    canceller = threading.Thread(target=lambda follow=dataset_waits.follow: follow.cancel())
    canceller.start()
    with pytest.raises(lmdbio.CancelledError):
        next(iter(waiting))
    canceller.join()
    with lmdb.open(str(tmp_path / "waits"), readonly=True) as env:
        os.mkdir(tmp_path / "copy")
        env.copy(str(tmp_path / "copy"))
    os.rename(tmp_path / "copy" / "data.mdb", path + "/data.mdb")
    for _ in range(2):
        with pytest.raises(OSError, match="replaced") as why:
            while True:
                try:
                    next(batches)
                except TimeoutError:
                    pass
        assert why.value.errno == errno.ESTALE
    loader.close()
    dataset.close()


@pytest.mark.parametrize("arguments, text", [({"batch_size": 2}, "batch_size is not for a FollowDataset"),
                                             ({"shuffle": True}, "shuffle is not"), ({"labels": numpy.arange(3)}, "labels is not"),
                                             ({"rank": 0, "ranks": 2}, "rank is not"), ({"exclude": [b"a"]}, "exclude is not")])
def test_arguments(tmp_path, arguments, text):
    with pytest.raises(ValueError, match=text):
        lmdbio.torch.TensorLoader(lmdbio.torch.FollowDataset(str(tmp_path), fresh=1), fields="flat", **arguments)


def test_what_a_followed_database_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="give decode and collate_fn to the loader"):
        lmdbio.torch.TensorLoader(lmdbio.torch.FollowDataset(str(tmp_path), fresh=1, decode=lambda k, v: v), fields="flat")
    loader = lmdbio.torch.TensorLoader(lmdbio.torch.FollowDataset(str(tmp_path), fresh=1), fields="flat")
    for call in (lambda: len(loader), lambda: loader.samples, lambda: loader.batch_size, lambda: loader.set_epoch(1)):
        with pytest.raises(TypeError, match="no fixed number of samples"):
            call()


def test_datums_and_views(writer, tmp_path):
    # Datum: channels, height and width 1, 2, 2 (fields 1 to 3), data (4), label (5).
    def datum(i):
        return bytes([8, 1, 16, 2, 24, 2, 34, 4, i, i, i, i, 40, i])

    path = str(tmp_path / "db")
    writer.commit(path, [(b"%02d" % i, datum(i)) for i in range(12)])
    dataset = lmdbio.torch.FollowDataset(path, fresh=4, on_empty="stop")
    seen = []
    for batch, new in lmdbio.torch.TensorLoader(dataset, fields="caffe.Datum"):
        assert new == 4 and batch["data"].shape == (4, 1, 2, 2)
        assert batch["data"][:, 0, 1, 1].tolist() == batch["label"].tolist()
        seen += batch["label"].tolist()
    assert sorted(seen) == list(range(12))
    dataset.close()
    values = [bytes(v) for batch, _ in lmdbio.torch.TensorLoader(dataset, fields="views") for v in batch]
    assert sorted(values) == [datum(i) for i in range(12)]
    dataset.close()


def test_close_and_garbage(writer, tmp_path):
    """A closed loader goes on where it was; a loader that nobody uses ends its threads, although `decode` refers to it."""
    path = str(tmp_path / "db")
    writer.commit(path, records(60))
    dataset = lmdbio.torch.FollowDataset(path, fresh=10, on_empty="stop")
    class Owner:
        def __init__(self):
            self.loader = lmdbio.torch.TensorLoader(dataset, decode=self.decode)

        def decode(self, record):
            return record.ordinal

    owner = Owner()
    batches = iter(owner.loader)
    got = [next(batches)[0].tolist(), next(batches)[0].tolist()]
    owner.loader.close()
    with pytest.raises(RuntimeError, match="a later iteration"):
        next(batches)
    got += [batch.tolist() for batch, _ in owner.loader]
    assert got == [list(range(i, i + 10)) for i in range(0, 60, 10)]
    writer.commit(path, [(b"1%05d" % i, bytes(16)) for i in range(60)])
    batches = iter(owner.loader)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except RuntimeError as why:
            os._exit(0 if "another process" in str(why) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    gone = weakref.ref(owner)
    del owner, batches
    gc.collect()
    assert gone() is None
    for t in threading.enumerate():
        if t.name.startswith("lmdbio-"):
            t.join(60)
            assert not t.is_alive()
    dataset.close()


MEMORY = """
import resource, sys, lmdbio.torch, torch
dataset = lmdbio.torch.FollowDataset(sys.argv[1], fresh=8, old=2, lag=20, on_empty="stop")
loader = lmdbio.torch.TensorLoader(dataset, prefetch=20, **{sys.argv[2]})
data = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
records = most = 0
for batch, new in loader:
    records += new
    del batch
    loader.state_dict()
    most = max(most, len(loader._prepared[0]._prepared))
print(records, most)
"""


@pytest.mark.parametrize("arguments", ['"fields": ("u1", (200_000,))', '"decode": lambda r: len(r.value)'])
def test_memory(writer, tmp_path, script, arguments):
    """Batches of 2 MB, once as records and with `fields` once more as tensors: all are prepared, or as many as there is memory for."""
    path = str(tmp_path / "db")
    writer.run(f"commit({path!r}, None, False, ((b'%04d' % i, bytes(200_000)) for i in range(200)), [])")
    program = MEMORY.replace("**{sys.argv[2]}", "**{" + arguments + "}")
    few, all_of_them = (list(map(int, script(program, path, LMDBIO_MEMORY=limit).split())) for limit in ("20M", "1G"))
    assert few[0] == all_of_them[0] == 200
    assert all_of_them[1] == 20
    assert 0 < few[1] * (4 if "fields" in arguments else 2) <= 20


RANKS = """
import sys
from mpi4py import MPI
import lmdbio.torch
comm, ranks = MPI.COMM_WORLD, MPI.COMM_WORLD.size
options = {"fresh": 20, "old": 7, "seed": 3, "capacity": 50, "on_empty": "stop"}

def batches(state, comm, n):
    dataset = lmdbio.torch.FollowDataset(sys.argv[1], comm=comm, state=state, **options)
    loader = lmdbio.torch.TensorLoader(dataset, fields=("u1", (16,)))
    source = iter(loader)
    got = [(batch.tolist(), new) for batch, new in (next(source) for _ in range(n))]
    state = loader.state_dict()["state"]
    loader.close()
    dataset.close()
    return got, state

shares, state = batches(None, comm, 5)
assert len(set(comm.allgather(state))) == 1
shares += batches(state, comm, 3)[0]
every = comm.gather(shares)
if comm.rank == 0:
    for i, (values, new) in enumerate(batches(None, None, 8)[0]):
        assert [share[i][0] for share in every] == [values[r::ranks] for r in range(ranks)]
        assert sum(share[i][1] for share in every) == new
comm.Barrier()
print("same" * (comm.rank == 0), end="")
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks(writer, tmp_path, ranks):
    """Each rank gets its share of the batches of one process, and all have the same state."""
    needs_mpi()
    path = tmp_path / "db"
    writer.commit(path, records(300))
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    assert run("mpirun", "--oversubscribe", "-n", ranks, sys.executable, "-m", "mpi4py", program, path, **MPI) == "same"
