"""lmdbio.torch under DataLoaders: the same samples as stock, whatever the number and the start method of workers; resume."""
import inspect
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings

import conftest
import lmdb
import pytest

torch = pytest.importorskip("torch", reason="no python3-torch")
import torch.utils.data  # noqa: E402

import lmdbio  # noqa: E402
import lmdbio.torch as lt  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create"),
              pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")]
SEED, BATCH = 7, 64


def key_of(record):  # a module's function: spawned workers import it
    return int(bytes(record.key))


def same(samples):
    return samples


def length_and_key(record):
    return len(record.value), bytes(record.key)


def loader(kind, path, workers=0, context=None, batch=BATCH, shuffle=True, decode=key_of, persistent=False, **more):
    more.setdefault("collate_fn", same)
    if workers:
        more.update(multiprocessing_context=context or "fork", persistent_workers=persistent)
    if kind == "map":
        data = lt.LmdbDataset(path, decode=decode, exclude=more.pop("exclude", ()))
        return lt.DataLoader(data, batch, shuffle, num_workers=workers, seed=SEED, **more)
    own = {name: more.pop(name) for name in ("drop_last", "last", "rank", "ranks", "window", "exclude") if name in more}
    data = lt.LmdbIterableDataset(path, decode=decode, shuffle=shuffle, seed=SEED, **own)
    return lt.DataLoader(data, batch, num_workers=workers, **more)


def epoch_order(epoch, count=1000):
    return lmdbio.shuffled(SEED, epoch, count, 0, count).tolist()


def cut(order, batch=BATCH):
    return [order[i:i + batch] for i in range(0, len(order), batch)]


WORKERS = [(0, None, False), (1, "fork", False), (2, "fork", True), (3, "fork", False), (2, "spawn", False), (2, "spawn", True),
           (2, "forkserver", False)]


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("workers, context, persistent", WORKERS)
def test_epochs(mixed, kind, workers, context, persistent):
    batches = loader(kind, mixed.path, workers, context, persistent=persistent)
    assert len(batches) == 16
    for epoch in range(3):
        assert list(batches) == cut(epoch_order(epoch))


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("workers", [0, 2])
def test_values(mixed, kind, workers):
    """Without decode a sample is the value, as bytes."""
    got = [v for b in loader(kind, mixed.path, workers, decode=None) for v in b]
    assert got == [mixed.records[i][1] for i in epoch_order(0)]
    assert [v for b in loader(kind, mixed.path, workers, decode=None, shuffle=False) for v in b] == [v for _, v in mixed.records]


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_a_batch_is_the_programs_alone(large, kind):
    """Nothing else refers to its samples, so their memory is free for later ones as soon as the program drops them."""
    for batch in loader(kind, large.path, decode=None):
        references = [sys.getrefcount(batch[i]) for i in range(len(batch))]  # the list's, and the call's argument
        assert set(references[:-1]) == {2}
        assert references[-1] <= 3, "the iterable dataset's generator has the last sample"


def test_items(mixed):
    data = lt.LmdbDataset(mixed.path)
    assert len(data) == 1000 and data[5] == mixed.records[5][1] and data[-1] == mixed.records[-1][1]
    assert data[mixed.records[3][0]] == mixed.records[3][1]
    assert data.__getitems__([3, 1]) == [mixed.records[3][1], mixed.records[1][1]]
    assert data.__getitems__([mixed.records[9][0]]) == [mixed.records[9][1]]
    with pytest.raises(IndexError):
        data[1000]
    with pytest.raises(KeyError):
        data[b"absent"]
    with pytest.raises(KeyError, match="absent"):
        data.__getitems__([mixed.records[3][0], b"absent"])
    copied = pickle.loads(pickle.dumps(data))
    assert copied[5] == data[5]


def test_getitems_of_newer_torch(mixed):
    """They hand a dataset the whole batch."""
    data = lt.LmdbDataset(mixed.path, decode=key_of)
    for sampler in (lt.BatchSampler(data, BATCH, shuffle=True, seed=SEED), lt.BatchSampler(data, BATCH, sampler=epoch_order(0))):
        assert [data.__getitems__(indices) for indices in sampler] == cut(epoch_order(0))


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_any_loader_with_our_sampler(mixed, workers):
    data = lt.LmdbDataset(mixed.path, decode=key_of)
    sampler = lt.BatchSampler(data, BATCH, shuffle=True, seed=SEED)
    batches = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=workers, collate_fn=same)
    for epoch in range(2):
        assert list(batches) == cut(epoch_order(epoch))
    wrapped = torch.utils.data.Subset(data, range(1000))  # loses the tickets, not the records
    assert list(torch.utils.data.DataLoader(wrapped, batch_sampler=sampler, num_workers=workers, collate_fn=same)) == cut(epoch_order(2))


class Wrapper(torch.utils.data.Dataset):
    """Passes numbers on to the inner dataset, without their tickets."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[int(index)]


@pytest.mark.parametrize("how", ["subset", "subset alone", "wrapper", "plain", "keys", "concatenated"])
def test_plain_indices_warn_once(mixed, monkeypatch, how):
    monkeypatch.setattr(lmdbio._tickets, "_warned", False)
    data = lt.LmdbDataset(mixed.path, decode=key_of)
    ours = lt.BatchSampler(data, BATCH, shuffle=True, seed=SEED)
    torchs = torch.utils.data.DataLoader
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a program that reads some records, and loaders that know the order
        assert [data[i] for i in range(5)] + data.__getitems__([5, 6]) + [data[mixed.records[7][0]]] == list(range(8))
        assert list(lt.DataLoader(data, BATCH, True, seed=SEED, collate_fn=same)) == cut(epoch_order(0))
        assert list(torchs(data, batch_sampler=ours, collate_fn=same)) == cut(epoch_order(0))
        assert list(lt.DataLoader(data, 10, sampler=range(30), collate_fn=same)) == cut(list(range(30)), 10)
    samples = {"subset": lambda: torchs(torch.utils.data.Subset(data, range(1000)), 10, collate_fn=same),
               "subset alone": lambda: torch.utils.data.Subset(data, range(1000)),
               "wrapper": lambda: torchs(Wrapper(data), batch_sampler=ours, collate_fn=same),
               "plain": lambda: torchs(data, 10, collate_fn=same),
               "keys": lambda: torchs(data, batch_sampler=[[mixed.records[0][0]]] * 2, collate_fn=same),
               "concatenated": lambda: torchs(torch.utils.data.ConcatDataset([data, data]), 10, collate_fn=same)}[how]
    with pytest.warns(RuntimeWarning, match="lmdbio.torch.DataLoader.*lmdbio.torch.BatchSampler") as found:
        for _ in range(2):
            list(zip(samples(), range(3)))
    assert len(found) == 1


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("keys", [False, True])
def test_samplers_of_the_program(mixed, workers, keys):
    r = random.Random(5)
    wanted = [r.randrange(1000) for _ in range(500)]
    given = [mixed.records[i][0] for i in wanted] if keys else wanted
    batches = loader("map", mixed.path, workers, sampler=given, shuffle=False, batch=30)
    assert len(batches) == 17
    for _ in range(2):
        assert list(batches) == cut(wanted, 30)
    assert list(loader("map", mixed.path, workers, sampler=given, shuffle=False, batch=30, drop_last=True)) == cut(wanted, 30)[:-1]
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 1000, 100, generator=torch.Generator().manual_seed(1))
    assert sum(map(len, loader("map", mixed.path, workers, sampler=weighted, shuffle=False))) == 100
    with pytest.raises(ValueError):
        loader("map", mixed.path, sampler=given, shuffle=True)


def test_a_key_that_does_not_exist(mixed):
    with pytest.raises(KeyError, match="absent"):
        list(loader("map", mixed.path, sampler=[mixed.records[1][0], b"absent"], shuffle=False))


def test_requests_that_are_not_as_expected(mixed):
    """A loader that divides the batches in its own way gets the right records all the same."""
    data = lt.LmdbDataset(mixed.path, decode=key_of)
    tickets = list(lt.BatchSampler(data, 10, shuffle=True, seed=SEED))
    r = random.Random(3)
    for _ in range(300):
        k = r.randrange(100)
        indices = list(tickets[k])
        if r.random() < .3:
            r.shuffle(indices)
        assert [data[i] for i in indices] == [int(i) for i in indices]


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("batch, ranks", [(64, 3), (10, 4), (7, 2), (1, 5), (500, 2), (90, 11), (64, 17), (600, 3)])
def test_ranks(mixed, kind, batch, ranks):
    """The ranks' whole batches, taken by turns, are the order; what is left over is divided evenly, as `last` says."""
    order, whole = epoch_order(0), 1000 // (batch * ranks) * batch * ranks
    for last in ("pad", "keep", "drop"):
        for workers in ((0, 2) if (batch, ranks, last) == (64, 3, "pad") else (0,)):
            loaders = [loader(kind, mixed.path, workers, batch=batch, rank=r, ranks=ranks, last=last) for r in range(ranks)]
            shares = [list(batches) for batches in loaders]
            assert [len(s) for s in shares] == [len(batches) for batches in loaders]
            turns = [x for row in zip(*(s[:whole // (batch * ranks)] for s in shares)) for b in row for x in b]
            samples = [[x for b in s for x in b] for s in shares]
            rest = [x for s in samples for x in s[whole // ranks:]]
            assert turns == order[:whole]
            if last == "drop":
                assert rest == []
            elif last == "keep":
                assert sorted(rest) == sorted(order[whole:]) and max(map(len, samples)) - min(map(len, samples)) <= 1
            else:
                assert {len(s) for s in samples} == {-(-1000 // ranks)}, "as many as torch's DistributedSampler gives"
                assert sorted(rest) == sorted(order[whole:] + order[:-1000 % ranks]) and len({len(s) for s in shares}) == 1


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_more_ranks_than_samples(tmp_path, kind):
    db = conftest.Database(tmp_path / "db", conftest.made_records(3, [8]))
    for last, lengths in (("pad", [1] * 8), ("keep", [1, 1, 1] + [0] * 5), ("drop", [0] * 8)):
        shares = [[x for b in loader(kind, db.path, rank=r, ranks=8, last=last) for x in b] for r in range(8)]
        assert [len(s) for s in shares] == lengths and {x for s in shares for x in s} == ({0, 1, 2} if lengths[0] else set())


def test_both_datasets_have_the_same_shares(mixed):
    for ranks, batch in ((2, 64), (3, 300), (5, 33)):
        for r in range(ranks):
            assert [list(loader(k, mixed.path, batch=batch, rank=r, ranks=ranks)) for k in ("map", "map")] == [
                list(loader(k, mixed.path, batch=batch, rank=r, ranks=ranks)) for k in ("iterable", "iterable")]


def test_windows(mixed):
    got = [list(loader("iterable", mixed.path, w, window=100)) for w in (0, 2)]
    flat = [x for b in got[0] for x in b]
    assert got[0] == got[1] and sorted(flat) == list(range(1000)) and all(x // 100 == i // 100 for i, x in enumerate(flat))
    for last in ("pad", "keep"):
        shares = [[x for b in loader("iterable", mixed.path, window=77, rank=r, ranks=3, last=last) for x in b] for r in range(3)]
        assert [len(s) for s in shares] == ([334] * 3 if last == "pad" else [334, 333, 333])
        assert {x for s in shares for x in s} == set(range(1000))
    alone = [x for b in loader("iterable", mixed.path, window=77) for x in b]
    assert sorted(x for s in shares for x in s[320:]) == sorted(alone[960:]), "of the same order"


def test_ranks_of_torch_distributed(mixed, script, tmp_path):
    text = """
import sys, torch.distributed as dist, lmdbio.torch as lt
def key(r): return int(bytes(r.key))
a = lt.DataLoader(lt.LmdbDataset(sys.argv[1], decode=key), 64, True, seed=7)
b = lt.DataLoader(lt.LmdbIterableDataset(sys.argv[1], decode=key, shuffle=True, seed=7), 64, num_workers=2)
c = lt.BatchSampler(a.dataset, 64)
assert len(a) == 16
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
a, b = ([x.tolist() for x in loader] for loader in (a, b))
assert a == b
try:
    iter(c)
except RuntimeError as error:
    assert "rank=0, ranks=1" in str(error)
else:
    raise AssertionError("who shares the batches?")
print(a)
"""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    file = tmp_path / "rank.py"
    file.write_text(text)
    ranks = [subprocess.Popen([sys.executable, "-B", str(file), mixed.path, str(tmp_path / "meet"), str(r)],
                              stdout=subprocess.PIPE, text=True) for r in (0, 1)]
    shares = [eval(p.communicate(timeout=120)[0]) for p in ranks]
    assert {x for s in shares for b in s for x in b} == set(range(1000)) and len(shares[0]) == len(shares[1]) == 8


# ---- resume

@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_resume_at_100_places(mixed, kind):
    """Three epochs, stopped and resumed at random, with other numbers of workers: the same as without a stop."""
    r, batch, workers = random.Random(11), 50, [0] * 27 + [1, 2, 3]  # starting workers takes most of the time
    whole = [b for e in range(3) for b in cut(epoch_order(e), batch)]
    for run in range(100):
        stop, got = r.randrange(len(whole)), []
        batches = loader(kind, mixed.path, r.choice(workers), batch=batch)
        for _ in range(3):
            for b in batches:
                got.append(b)
                if len(got) >= stop:
                    break
            if len(got) >= stop:
                break
        state = pickle.loads(pickle.dumps(batches.state_dict())) if got else None
        batches = loader(kind, mixed.path, r.choice(workers), batch=batch)
        if state is not None:
            batches.load_state_dict(state)
            assert batches.state_dict() == state
        while len(got) < len(whole):
            got += list(batches)
        assert got == whole, (run, stop, state)


def test_resume_of_ranks_and_padding(mixed):
    for kind in ("map", "iterable"):
        for rank in range(3):
            whole = list(loader(kind, mixed.path, batch=30, rank=rank, ranks=3))
            for stop in range(1, len(whole)):
                batches = loader(kind, mixed.path, 0, batch=30, rank=rank, ranks=3)
                got = [b for _, b in zip(range(stop), batches)]
                state = batches.state_dict()
                batches = loader(kind, mixed.path, 2 if stop == 5 else 0, batch=30, rank=rank, ranks=3)
                batches.load_state_dict(state)
                assert got + list(batches) == whole


def test_the_iterable_dataset_alone_resumes_at_any_record(mixed):
    r = random.Random(2)
    for shuffle, window in ((True, None), (False, None), (True, 77)):
        make = lambda: lt.LmdbIterableDataset(mixed.path, decode=key_of, shuffle=shuffle, window=window, seed=SEED, batch_size=32)
        data = make()
        whole = [*data, *data]
        for _ in range(15):
            stop, data = r.randrange(1, 2000), make()
            got = []
            while len(got) < stop:
                for x in data:
                    got.append(x)
                    if len(got) == stop:
                        break
            state = data.state_dict()
            data = make()
            data.load_state_dict(state)
            got += list(data)
            if len(got) < 2000:
                got += list(data)
            assert got == whole


def test_the_states_of_a_batch_sampler(mixed):
    """As torchdata's StatefulDataLoader saves and loads them: in the iterator, which sets the epoch of the sampler, too."""
    def sampler():
        return lt.BatchSampler(lt.LmdbDataset(mixed.path), BATCH, shuffle=True, seed=SEED)

    one = sampler()
    list(one)
    it = iter(one)
    assert [list(next(it)) for _ in range(3)] == cut(epoch_order(1))[:3]
    state = it.state_dict()
    other = sampler()
    resumed = iter(other)
    resumed.load_state_dict(state)
    assert [list(b) for b in resumed] == [list(b) for b in it] == cut(epoch_order(1))[3:]
    assert [list(b) for b in other] == cut(epoch_order(2))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_states_of_workers(mixed, monkeypatch, workers):
    """As torchdata's StatefulDataLoader saves and loads them: each worker has a state of its own."""
    class Worker:
        id, num_workers = 0, workers

    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: Worker)
    r, got = random.Random(3), []
    for Worker.id in range(workers):
        def dataset():
            return lt.LmdbIterableDataset(mixed.path, decode=key_of, shuffle=True, seed=SEED, batch_size=BATCH)

        whole = list(dataset())
        for stop in [0, 1, BATCH, len(whole), *(r.randrange(len(whole)) for _ in range(5))]:
            one = dataset()
            it = iter(one)
            assert [next(it) for _ in range(stop)] == whole[:stop]
            state, other = one.state_dict(), dataset()
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert list(other) == whole[stop:]
        got += whole
        if workers > 1:
            monkeypatch.setattr(Worker, "id", (Worker.id + 1) % workers)
            with pytest.raises(ValueError, match="the state was saved in worker"):
                dataset().load_state_dict(state)
    assert sorted(got) == list(range(1000))


def test_states_that_do_not_fit(mixed, large):
    batches = loader("map", mixed.path)
    next(iter(batches))
    state = batches.state_dict()
    for wrong, why in ((loader("map", large.path), "count"), (loader("map", mixed.path, shuffle=False), "shuffle"),
                       (loader("map", mixed.path, rank=0, ranks=2), "ranks"), (loader("map", mixed.path, last="keep"), "last"),
                       (loader("map", mixed.path, batch=50), "batches of 50"),
                       (loader("map", mixed.path, sampler=[1], shuffle=False), "sampler")):
        with pytest.raises(ValueError, match=why):
            wrong.load_state_dict(state)
    ok = loader("map", mixed.path, batch=32)
    ok.load_state_dict(state)
    assert list(ok) == cut(epoch_order(0)[64:], 32)
    with pytest.raises(ValueError):
        lt.DataLoader(lt.LmdbIterableDataset(mixed.path), 10, True)
    with pytest.raises(TypeError):
        lt.DataLoader([1, 2, 3], 10)


# ---- reading

def requests(fs):
    counters = fs.counters()
    return counters["read"]["bytes"]


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("io", ["auto", "direct"])
def test_8_workers_read_each_record_once(large, slow, script, kind, io):
    """What the workers of an epoch read from storage, together: at most 1.1 times the database."""
    fs = slow(large)
    script("""
import sys, warnings; warnings.simplefilter("ignore")
import lmdbio.torch as lt
if sys.argv[2] == "map":
    batches = lt.DataLoader(lt.LmdbDataset(sys.argv[1]), 10, True, num_workers=8, collate_fn=list)
else:
    batches = lt.DataLoader(lt.LmdbIterableDataset(sys.argv[1], shuffle=True), 10, num_workers=8, collate_fn=list)
assert sum(len(b) for b in batches) == 640
""", fs.path, kind, LMDBIO_IO=io)
    assert fs.counters()["read"]["bytes"] <= 1.1 * os.path.getsize(large.path + "/data.mdb")


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_the_order_is_read_ahead(large, slow, kind):
    """Without workers: while a batch of four records is used, more than those of the next one are in flight."""
    fs = slow(large, delay_us=3000)
    batches = loader(kind, fs.path, batch=4)
    for _ in zip(range(20), batches):
        pass
    assert fs.counters()["read"]["in_flight_max"] > 8
    fs = slow(large, delay_us=3000)
    for _ in loader("map", fs.path, batch=16, shuffle=False, sampler=epoch_order(0, 640)):
        pass
    assert fs.counters()["read"]["in_flight_max"] > 8


# ---- workers that end

# In a process of their own: after an error in a worker, torch 1.13 leaves its queues in a state that disturbs later workers.
ENDING = """
import gc, os, signal, sys, time, warnings, lmdbio, lmdbio.torch as lt
warnings.simplefilter("ignore")
path, kind, how, workers = sys.argv[1:4] + [int(sys.argv[4])]
bad = lmdbio.shuffled(7, 0, 1000, 0, 1000)[200]

def decode(record):
    if record.ordinal == bad:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("cannot decode this")
    return record.ordinal

def loader(decode):
    if kind == "map":
        return lt.DataLoader(lt.LmdbDataset(path, decode=decode), 64, True, num_workers=workers, seed=7, collate_fn=list)
    return lt.DataLoader(lt.LmdbIterableDataset(path, decode=decode, shuffle=True, seed=7), 64, num_workers=workers, collate_fn=list)

def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
        return f.read().split()

try:
    list(loader(decode))
except RuntimeError as error:
    print("cannot decode this" if "cannot decode this" in str(error) else "killed" if "worker" in str(error) else error)
else:
    print("no error")
gc.collect()  # torch leaves its iterator in a reference cycle
for _ in range(200 if how == "killed" else 0):
    if not children():
        break
    time.sleep(0.1)
if how == "killed":  # after an exception, torch 1.13 keeps workers until the program ends
    print(len(children()))
"""


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("how, workers", [("killed", 4), ("raises", 0), ("raises", 3)])
def test_workers_that_fail(mixed, script, kind, how, workers):
    out = script(ENDING, mixed.path, kind, how, workers)
    assert out == ("killed\n0\n" if how == "killed" else "cannot decode this\n")
    assert list(loader(kind, mixed.path, 2)) == cut(epoch_order(0)), "what they held of the node's table hinders nobody"


@pytest.mark.parametrize("workers", [0, 2])
def test_keyboard_interrupt(large, slow, tmp_path, workers):
    """As Ctrl-C on a terminal: the whole process group gets SIGINT while it waits for storage."""
    fs = slow(large)
    file = tmp_path / "train.py"
    file.write_text("""
import sys, time, lmdbio.torch as lt
batches = lt.DataLoader(lt.LmdbDataset(sys.argv[1]), 4, True, num_workers=int(sys.argv[2]), collate_fn=list)
begun = False
for batch in batches:
    if not begun:
        print("begins", flush=True)
        begun = True
    time.sleep(0.05)
""")
    job = subprocess.Popen([sys.executable, "-B", str(file), fs.path, str(workers)], start_new_session=True, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    try:
        assert job.stdout.readline() == "begins\n"
        fs.set(delay_us=2_000_000)
        time.sleep(1)
        os.killpg(job.pid, signal.SIGINT)
        _, err = job.communicate(timeout=60)
        assert "KeyboardInterrupt" in err and job.returncode not in (0, None)
        for _ in range(100):
            if subprocess.run(["pgrep", "-g", str(job.pid)], stdout=subprocess.DEVNULL).returncode:
                break
            time.sleep(0.1)
        else:
            pytest.fail("a process was left")
    finally:
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def test_a_dataset_that_the_parent_used(mixed):
    """Its reader is the parent's; forked workers open their own."""
    data = lt.LmdbDataset(mixed.path, decode=key_of)
    assert data[3] == 3
    stream = iter(lt.DataLoader(data, 10, True, seed=SEED, collate_fn=same))
    next(stream)
    for workers in (2, 0, 2):
        assert list(lt.DataLoader(data, BATCH, True, seed=SEED, num_workers=workers, collate_fn=same)) == cut(epoch_order(0))


# ---- more than one of something

def test_datasets_that_are_read_in_pairs(mixed, large):
    """The order is that of the first one; the other one returns the same indices, whatever its number of records."""
    other, data = lt.LmdbDataset(large.path, decode=key_of), lt.LmdbDataset(mixed.path, decode=key_of)
    for batch in lt.BatchSampler(other, 32, shuffle=True, seed=SEED):
        for i in batch:
            assert (int(i), other[i], data[i]) == (int(i),) * 3


CHANGED = """
import multiprocessing, os, signal, sys, warnings, lmdb, lmdbio.torch as lt
warnings.simplefilter("ignore")
path = sys.argv[1]

def loader(kind, workers, **more):
    if kind == "map":
        return lt.DataLoader(lt.LmdbDataset(path), 10, num_workers=workers, collate_fn=list, **more)
    return lt.DataLoader(lt.LmdbIterableDataset(path), 10, num_workers=workers, collate_fn=list, **more)

kept = [loader(k, w, persistent_workers=w > 0) for k in ("map", "iterable") for w in (0, 1)]
anew = [loader("map", 2), loader("iterable", 2)]
before = [list(l) for l in kept + anew]
assert all(sum(map(len, b)) == 300 for b in before)
with lmdb.open(path, map_size=1 << 30) as env, env.begin(write=True) as txn:
    for i in range(50):
        txn.put(b"!%07d" % i, b"new")  # as many records as before
        txn.delete(b"%08d" % i)
assert [list(l) for l in kept] == before[:4]  # processes that go on have the old state
iterators = [iter(l) for l in anew]
for i in iterators:
    try:
        list(i)
    except RuntimeError as error:
        assert "the database was changed" in str(error) and "make a new dataset" in str(error), error
    else:
        raise AssertionError("workers read the new state")
assert [v for b in loader("map", 0) for v in b][:50] == [b"new"] * 50
signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for workers that were killed
for process in multiprocessing.active_children():
    process.kill()
os._exit(0)  # torch 1.13 would wait 5 s for each worker that has raised
"""


def test_a_database_that_changes_between_epochs(tmp_path, script):
    """Workers that start anew do not mix the new state with the old one."""
    db = conftest.Database(tmp_path / "db", conftest.made_records(300, [3000]))
    script(CHANGED, db.path)


def test_several_iterators_of_a_loader(mixed):
    for kind in ("map", "iterable"):
        for workers in (0, 2):
            batches = loader(kind, mixed.path, workers)
            a, b = iter(batches), iter(batches)
            assert (list(a), list(b)) == (cut(epoch_order(0)), cut(epoch_order(1))), (kind, workers)
            assert list(batches) == cut(epoch_order(2))


def test_loaders_by_turns_do_not_read_ahead_in_vain(large, slow):
    fs = slow(large)
    data = lt.LmdbDataset(fs.path, decode=key_of, memory=32 << 20)
    one, two = (lt.DataLoader(data, 16, True, seed=s, collate_fn=same) for s in (1, 2))
    got = [x for pair in zip(one, two) for b in pair for x in b]
    assert sorted(got) == sorted([*range(640)] * 2)
    assert fs.counters()["read"]["bytes"] <= 2.5 * os.path.getsize(large.path + "/data.mdb")


def test_threads_share_a_dataset(mixed):
    data, wrong = lt.LmdbDataset(mixed.path, decode=key_of), []

    def work(seed):
        for batch in lt.BatchSampler(data, 16, shuffle=True, seed=seed):
            wrong.extend(i for i in batch if data[i] != int(i))

    conftest.together(4, work)
    assert wrong == []


def test_the_loader_goes_on_after_an_exception(mixed):
    bad = epoch_order(0)[100]

    def decode(record):
        if record.ordinal == bad:
            raise RuntimeError("once")
        return record.ordinal

    batches, got = iter(loader("map", mixed.path, decode=decode)), []
    while True:
        try:
            got.append(next(batches))
        except RuntimeError:
            got.append("failed")
        except StopIteration:
            break
    assert got == [cut(epoch_order(0))[0], "failed", *cut(epoch_order(0))[2:]]


def test_what_is_read_ahead_gives_way(large):
    """A sampler's next batch does not fit beside the one that is used: it is read when it is due."""
    data = lt.LmdbDataset(large.path, decode=key_of, memory=4 << 20)
    batches = lt.DataLoader(data, 20, sampler=range(60), collate_fn=same)
    assert list(batches) == cut(list(range(60)), 20)


@pytest.mark.parametrize("wrong", ["00000100", 1.7, None])
def test_samplers_of_something_else(mixed, wrong):
    for made in (lt.DataLoader, torch.utils.data.DataLoader):
        with pytest.raises(TypeError, match="whole numbers|keys"):
            list(made(lt.LmdbDataset(mixed.path), 3, sampler=[wrong, wrong, wrong], collate_fn=same))
    data = lt.LmdbDataset(mixed.path, exclude=[b"00000000"])
    with pytest.raises(TypeError):
        data.__getitems__([wrong])
    with pytest.raises(TypeError):
        data[wrong]


def test_messages(mixed):
    data, directory = lt.LmdbDataset(mixed.path), os.path.basename(mixed.path)
    with pytest.raises(TypeError, match="keys are bytes, not str"):
        data["text"]
    for key in ({}, {"epoch": 1, "batch": 2}):
        with pytest.raises(ValueError, match="state_dict"):
            lt.DataLoader(data, 10).load_state_dict(key)
    for get in (lambda: data[b"12"], lambda: data.__getitems__([b"12"])):
        with pytest.raises(KeyError, match=directory + ": no key b'12'"):
            get()
    for kind in (data, lt.LmdbIterableDataset(mixed.path)):
        with pytest.raises(TypeError, match="batch_size must be a whole number, not None"):
            lt.DataLoader(kind, batch_size=None)
    with pytest.raises(TypeError):
        lt.LmdbDataset(5)
    both = torch.utils.data.ConcatDataset([data, data])
    for make in (lt.DataLoader, lt.BatchSampler):
        with pytest.raises(TypeError, match="LmdbDataset.* not ConcatDataset"):
            make(both, 10)
    with pytest.raises(ValueError, match="batch_sampler excludes"):
        lt.DataLoader(data, 10, batch_sampler=[[1, 2]])
    with pytest.raises(FileNotFoundError):
        lt.LmdbDataset(mixed.path + "/none")
    assert list(lt.DataLoader(data, batch_sampler=[[1, 2], [3]], collate_fn=len)) == [2, 1]


def test_a_relative_path_is_that_of_the_directory_where_it_was_given(mixed, tmp_path, monkeypatch):
    monkeypatch.chdir(os.path.dirname(mixed.path))
    for kind in ("map", "iterable"):
        monkeypatch.chdir(os.path.dirname(mixed.path))
        batches = loader(kind, os.path.basename(mixed.path), 2)
        monkeypatch.chdir(tmp_path)
        assert list(batches) == cut(epoch_order(0))
        assert len(pickle.loads(pickle.dumps(batches.dataset))) == 1000


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_records_that_are_no_samples(tmp_path, kind):
    """exclude: as if they were not in the database, with workers, ranks, and resume; other libraries see the same."""
    records = [(b"%08d" % i, b"%d" % i) for i in range(500)]
    with_more = [(b"!", b"x"), (b"00000099a", b"x"), (b"__keys__", b"x" * 9000), (b"__len__", b"x"), (b"~", b"x")]
    plain = conftest.Database(tmp_path / "plain", records)
    more = conftest.Database(tmp_path / "more", records + with_more)
    names = [b"absent", *(k for k, _ in with_more)]
    data = lt.LmdbDataset(more.path, exclude=iter(names))
    assert len(data) == 500 and [data[i] for i in range(500)] == [v for _, v in records] and data[-1] == b"499"
    assert data.__getitems__([3, 499]) == [b"3", b"499"] and data[b"00000007"] == b"7" and data[b"__len__"] == b"x"
    for i in (500, -501):
        with pytest.raises(IndexError):
            data[i]
    with pytest.raises(IndexError):
        data.__getitems__([500])
    for workers, shares in ((0, {}), (2, {}), (0, {"rank": 1, "ranks": 3})):
        a, b, c = (loader(kind, db.path, workers, batch=30, exclude=names, **shares) for db in (plain, more, more))
        whole = list(a)
        assert list(b) == whole and list(b) == list(a) != whole
        assert next(iter(c)) == whole[0]
        b.load_state_dict(c.state_dict())
        assert list(b) == whole[1:]
    lists = torch.utils.data.DataLoader(data, 50, True, collate_fn=same)
    assert sorted(v for b in lists for v in b) == sorted(v for _, v in records)
    with pytest.raises(TypeError):
        lt.LmdbDataset(more.path, exclude=["__len__"])


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_several_databases(tmp_path, kind):
    """A sequence of paths: as one database with all records, whichever process opens it."""
    records = [(b"%08d" % i, b"%d" % i) for i in range(400)]
    parts = [conftest.Database(tmp_path / str(d), records[d * 100:d * 100 + 100] + [(b"length", b"100")]) for d in range(4)]
    plain, paths = conftest.Database(tmp_path / "plain", records), [p.path for p in parts]
    data = lt.LmdbDataset(paths, exclude=[b"length"])
    assert len(data) == 400 and data[399] == b"399" and data[b"00000123"] == b"123" and data[b"length"] == b"100"
    for workers, shares in ((0, {}), (2, {}), (0, {"rank": 1, "ranks": 3})):
        a, b = (loader(kind, path, workers, batch=30, exclude=[b"length"], **shares) for path in (plain.path, paths))
        assert list(b) == list(a) and list(b) == list(a)
    with lmdb.open(paths[2], map_size=1 << 32) as env, env.begin(write=True) as txn:
        txn.put(b"00000250", b"new")
    with pytest.raises(RuntimeError, match="was changed"):
        pickle.loads(pickle.dumps(data))[0]


def test_values_of_an_excluded_key(tmp_path):
    db = conftest.Database(tmp_path / "db", [(b"%d" % (i // 3), b"%03d" % i) for i in range(30)], name="named", dupsort=True)
    data = lt.LmdbDataset(db.path, "named", exclude=[b"4", b"9"])
    assert [data[i] for i in range(len(data))] == [b"%03d" % i for i in range(27) if i // 3 != 4]


# ---- other libraries.  These functions do to a loader what the library does, as far as it concerns batches.

def lightning(loader, rank, ranks, made_in_a_hook):
    """It makes loader and batch sampler anew, with a DistributedSampler: of the arguments that it saw in its hooks, or else of
    attributes."""
    if isinstance(loader.sampler, torch.utils.data.distributed.DistributedSampler):
        return loader
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return loader
    order = getattr(loader.batch_sampler, "sampler", loader.batch_sampler)
    plain = isinstance(loader.sampler, (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler))
    share = torch.utils.data.distributed.DistributedSampler(loader.dataset if plain else list(loader.sampler), ranks, rank,
                                                            shuffle=isinstance(order, torch.utils.data.RandomSampler))
    sampler = share if plain else [share.dataset[i] for i in share]
    if made_in_a_hook:
        arguments, named = made_in_a_hook
        batches = type(loader.batch_sampler)(*arguments, **{**named, "sampler": sampler})
    else:
        sampler = share if plain else torch.utils.data.SubsetRandomSampler(sampler)
        batches = type(loader.batch_sampler)(sampler, batch_size=loader.batch_sampler.batch_size,
                                             drop_last=loader.batch_sampler.drop_last)
    parameters = {**inspect.signature(type(loader).__init__).parameters,
                  **inspect.signature(torch.utils.data.DataLoader.__init__).parameters}
    named = {k: v for k, v in vars(loader).items() if k in parameters and v is not parameters[k].default}
    return type(loader)(**{**named, "sampler": None, "shuffle": False, "batch_sampler": batches, "batch_size": 1, "drop_last": False})


class OfAccelerate:
    """A batch sampler's batches, by turns, or a part of each; the last ones are filled up with the first ones."""

    def __init__(self, batches, rank, ranks, split):
        self.batches, self.rank, self.ranks, self.split, self.batch_size = batches, rank, ranks, split, batches.batch_size
        self.drop_last = batches.drop_last

    def __len__(self):
        return len(self.batches) if self.split else -(-len(self.batches) // self.ranks)

    def __iter__(self):
        size, all_of_them, first = self.batch_size, list(self.batches), []
        if self.split:
            filling = all_of_them[0]
            while len(filling) < size:
                filling += filling
            for batch in all_of_them:
                if len(batch) < size:
                    batch = batch + filling
                yield batch[size // self.ranks * self.rank:size // self.ranks * (self.rank + 1)]
            return
        for batch in all_of_them[:self.ranks]:
            first += batch
        at, last = size - len(all_of_them[-1]), all_of_them.pop()
        last += first[:at]
        all_of_them.append(last)
        while len(all_of_them) % self.ranks:
            all_of_them.append(first[at:at + size])
            at += size
        yield from all_of_them[self.rank::self.ranks]


class IterableOfAccelerate(torch.utils.data.IterableDataset):
    def __init__(self, data, size, rank, ranks):
        self.data, self.size, self.rank, self.ranks = data, size, rank, ranks

    def __iter__(self):
        first, waiting = None, []
        for x in self.data:
            waiting.append(x)
            if len(waiting) == self.size * self.ranks:
                yield from waiting[self.rank * self.size:(self.rank + 1) * self.size]
                first, waiting = first or waiting, []
        if waiting:
            while len(waiting) < self.size * self.ranks:
                waiting += first or waiting
            yield from waiting[self.rank * self.size:(self.rank + 1) * self.size]


def accelerate(loader, rank, ranks, split=False):
    named = {"num_workers": loader.num_workers, "collate_fn": loader.collate_fn}
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        share = IterableOfAccelerate(loader.dataset, loader.batch_size, rank, ranks)
        return torch.utils.data.DataLoader(share, loader.batch_size, **named)
    return torch.utils.data.DataLoader(loader.dataset, batch_sampler=OfAccelerate(loader.batch_sampler, rank, ranks, split), **named)


@pytest.fixture
def job(monkeypatch):
    """job(rank, ranks): as torch.distributed would say it."""
    return lambda *own: monkeypatch.setattr(lmdbio._ranks, "job", lambda: own)


def each_once(shares, ranks, most=0):
    """All samples, and of those that fill up no more than `most`."""
    flat = [x for s in shares for b in s for x in b]
    assert set(flat) == set(range(1000)) and len(flat) <= 1000 + most
    return flat


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("made", ["our loader", "BatchSampler", "sampler", "iterable"])
def test_with_lightning(mixed, job, ranks, shuffle, hook, made):
    for workers in (0, 2) if ranks == 2 and shuffle else (0,):
        shares = []
        for rank in range(ranks):
            data = lt.LmdbDataset(mixed.path, decode=key_of)
            more = {"num_workers": workers, "collate_fn": same}
            named = {"shuffle": shuffle, "seed": SEED, "drop_last": False}
            if made == "our loader":
                batches = lt.DataLoader(data, BATCH, **named, **more)
            elif made == "BatchSampler":
                batches = torch.utils.data.DataLoader(data, batch_sampler=lt.BatchSampler(data, BATCH, **named), **more)
            elif made == "sampler":
                named = {"sampler": epoch_order(3) if shuffle else range(1000)}
                batches = lt.DataLoader(data, BATCH, **named, **more)
            else:
                batches = loader("iterable", mixed.path, workers, shuffle=shuffle)
            job(rank, ranks)
            batches = lightning(batches, rank, ranks, hook and ((data, BATCH), named))
            if hasattr(batches.sampler, "set_epoch"):
                batches.sampler.set_epoch(0)
            shares.append(list(batches))
            assert len(batches) == len(shares[-1])
            job(0, 1)
        flat = each_once(shares, ranks, most=-1000 % ranks)
        assert (flat[:100] == sorted(flat[:100])) != shuffle or made == "sampler"


@pytest.mark.parametrize("arguments, named", [((), {"batch_size": BATCH}), ((BATCH,), {}), ((BATCH, True), {})])
def test_lightning_predicts(mixed, job, arguments, named):
    """It makes the batch sampler anew with the loader's own sampler, and the loader with its old arguments and new ones."""
    shares = []
    for rank in (0, 1):
        data = lt.LmdbDataset(mixed.path, decode=key_of)
        first = lt.DataLoader(data, *arguments, **named, collate_fn=same)
        job(rank, 2)
        for batches in (lt.BatchSampler(first.sampler, batch_size=BATCH, drop_last=False),
                        lt.BatchSampler(data, BATCH, shuffle=True in arguments, sampler=first.sampler)):
            again = {**named, "sampler": None, "shuffle": False, "batch_sampler": batches, "batch_size": 1, "drop_last": False}
            made = list(lt.DataLoader(data, *arguments, **again, collate_fn=same))
        shares.append(made)
        job(0, 1)
    each_once(shares, 2)


@pytest.mark.parametrize("made", ["our loader", "BatchSampler", "iterable"])
@pytest.mark.parametrize("workers, split, batch, ranks", [(0, False, 64, 2), (2, False, 64, 2), (0, True, 64, 2), (0, False, 90, 3),
                                                          (0, True, 90, 3)])
def test_with_accelerate(mixed, job, made, workers, split, batch, ranks):
    def prepared(process, **own):
        more = {"batch": batch, "workers": workers, "collate_fn": same}
        if made == "our loader":
            batches = loader("map", mixed.path, **more, **own)
        elif made == "BatchSampler":
            data = lt.LmdbDataset(mixed.path, decode=key_of)
            sampler = lt.BatchSampler(data, batch, shuffle=True, seed=SEED, **own)
            batches = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=workers, collate_fn=same)
        else:
            batches = loader("iterable", mixed.path, **more, **own)
        job(process, ranks)
        return accelerate(batches, process, ranks, split)

    for use in (list, len) if workers == 0 and made != "iterable" else (list,):
        with pytest.raises(RuntimeError, match="rank=0, ranks=1"):
            use(prepared(0))
        job(0, 1)
    shares = []
    for rank in range(ranks):
        batches = prepared(rank, rank=0, ranks=1)
        shares.append(list(batches))
        if made != "iterable":
            assert len(batches) == len(shares[-1])
        job(0, 1)
    each_once(shares, ranks, most=ranks * batch)


def test_a_sampler_that_is_set_later(mixed):
    """Accelerate sets a batch sampler's `sampler`, if that is a RandomSampler."""
    batches = loader("map", mixed.path)
    assert isinstance(batches.batch_sampler.sampler, torch.utils.data.RandomSampler)
    batches.batch_sampler.sampler = epoch_order(5)
    assert list(batches) == cut(epoch_order(5)) and len(batches) == 16
    with pytest.raises(ValueError, match="sampler of the program's cannot resume"):
        batches.load_state_dict({"epoch": 0, "batch": 3})


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_with_a_sampler_that_can_repeat_an_epoch(mixed, workers):
    def made():
        own = torch.utils.data.distributed.DistributedSampler(range(1000), 2, 1, seed=3)
        return loader("map", mixed.path, workers, sampler=own, shuffle=False)

    batches = made()
    whole = [*batches, *batches]
    assert len(whole) == 16 and whole[:8] != whole[8:]
    for stop in (1, 7, 8, 11):
        batches, got = made(), []
        while len(got) < stop:
            for batch in batches:
                got.append(batch)
                if len(got) == stop:
                    break
        state, batches = batches.state_dict(), made()
        batches.load_state_dict(state)
        got += batches
        assert got + (list(batches) if len(got) == 8 else []) == whole
    endless = lt.DataLoader(lt.LmdbDataset(mixed.path), 10, sampler=iter(range(1000)))
    assert endless.state_dict() == {"epoch": 0, "batch": 0}, "also without a length"


def test_ranks_of_a_foreign_sampler(mixed, job):
    """It shares the samples; the job's ranks are not taken once more."""
    job(1, 2)
    shares = []
    for rank in (0, 1):
        own = torch.utils.data.distributed.DistributedSampler(range(1000), 2, rank, seed=3)
        assert isinstance(lt.BatchSampler(own, 64), torch.utils.data.BatchSampler)
        shares.append(list(loader("map", mixed.path, sampler=own, shuffle=False)))
    each_once(shares, 2)


def test_a_dataset_that_is_sent_to_ranks_takes_theirs(mixed, job):
    batches = lt.LmdbIterableDataset(mixed.path, decode=key_of)
    shares = []
    for rank in (0, 1):
        sent = pickle.loads(pickle.dumps(batches))
        job(rank, 2)
        shares.append(list(lt.DataLoader(sent, BATCH, collate_fn=same)))
        job(0, 1)
    each_once(shares, 2)


def test_wrong_arguments(mixed):
    with pytest.raises(TypeError):
        list(loader("map", mixed.path, sampler=[b"00000001", 2], shuffle=False))
    with pytest.raises(ValueError, match='last must be "pad", "keep" or "drop"'):
        loader("map", mixed.path, last="some")
    for arguments, named in (((4, None, None, 1), {}), ((4,), {"batch_size": 5}), ((4, True), {"shuffle": True})):
        with pytest.raises(TypeError, match="given twice"):
            lt.DataLoader(lt.LmdbDataset(mixed.path), *arguments, **named)
    with pytest.raises(ValueError, match="exclude each other"):
        loader("map", mixed.path, last="pad", drop_last=True)
    for alone in ({"rank": 0}, {"ranks": 2}):
        with pytest.raises(ValueError, match="together"):
            lt.LmdbIterableDataset(mixed.path, **alone)
    with pytest.raises(ValueError, match="seed"):
        lt.BatchSampler(lt.LmdbDataset(mixed.path), 4, seed=-1)
    data = lt.LmdbIterableDataset(mixed.path, batch_size=4)
    with pytest.raises(ValueError, match="batch_size"):
        lt.DataLoader(data, 5)
    for name, value in (("seed", 3), ("ranks", 2), ("drop_last", True), ("last", "keep"), ("batch_sampler", [[1]])):
        with pytest.raises(ValueError, match="LmdbIterableDataset sets"):
            lt.DataLoader(data, 4, **{name: value})
    assert len(loader("map", mixed.path, sampler=[1, 2], shuffle=False, rank=0, ranks=2, batch=900)) == 1
