"""lmdbio.Follow beside a writer: batches against the reference in tests/support/rehearsal.py, bytes against what was written."""
import os
import random
import signal
import subprocess
import sys
import threading

import conftest
import pytest
import rehearsal

import lmdbio

WRITER = """
import lmdb, os, sys
envs = {}
def env(path):
    if path not in envs:
        os.makedirs(path, exist_ok=True)
        envs[path] = lmdb.open(path, map_size=1 << 30, max_dbs=3, sync=False)
    return envs[path]
def commit(path, name, dupsort, puts, dels):
    e = env(path)
    db = e.open_db(name, dupsort=dupsort) if name else None
    with e.begin(write=True, db=db) as txn:
        for key, value in dels:
            assert txn.delete(key, value) if dupsort else txn.delete(key)
        for key, value in puts:
            txn.put(key, value)
        return txn.id()
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
"""


class Writer:
    """Another process with py-lmdb."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the writer has failed"
        return eval(answer)  # pylint: disable=eval-used

    def commit(self, path, puts=(), dels=(), name=None, dupsort=False):
        """Returns the transaction.  Deletions come first."""
        return self.run(f"commit({str(path)!r}, {name!r}, {dupsort}, {list(puts)!r}, {list(dels)!r})")

    def close(self):
        # Not by the end of its input: workers of data loaders, which may still run, have inherited the pipe.
        self.process.stdin.write("sys.exit(0)\n")
        self.process.stdin.close()
        assert self.process.wait() == 0


@pytest.fixture(name="writer")
def writer_process():
    w = Writer()
    yield w
    w.close()


def pairs(batch):
    return [(bytes(r.key), bytes(r.value)) for r in batch]


# ---- batches against the reference

class Model:
    """A Follow, computed from what was committed."""

    def __init__(self, r, options, label_of):
        self.options, self.label_of = options, label_of
        self.order = rehearsal.Rehearsal(options["seed"], options["fresh"], options["old"], options["lag"], options["buffer"],
                                         options["capacity"])
        self.known, self.sample, self.number_of, self.batches = {}, {}, {}, 0
        self.dupsort = r.random() < 0.3

    def changed(self, state):
        """What a renewal finds; `state` is a dict, or a set of pairs with duplicates."""
        if self.dupsort:
            gone, came = sorted(self.known - state), sorted(state - self.known)
        else:
            gone = sorted((k, v) for k, v in self.known.items() if state.get(k) != v)
            came = sorted((k, v) for k, v in state.items() if self.known.get(k) != v)
        self.known = state.copy()
        if not self.options["fresh"]:  # records that came later are no samples
            gone = [record for record in gone if record in self.number_of]
        if gone:
            self.order.remove([(self.number_of.pop(record), self.label_of(*record)) for record in gone])
        return came

    def start(self, state, old):
        self.known = set() if self.dupsort else {}
        came = self.changed(state)
        if old:
            self.order.start([self.label_of(*record) for record in came])
            self.learn(0, came)
        else:
            self.arrive(came)

    def learn(self, first, records):
        for i, record in enumerate(records):
            self.sample[first + i] = record
            self.number_of[record] = first + i

    def arrive(self, came):
        if came and self.options["fresh"]:
            first = self.order.numbers
            self.learn(first, [came[k] for k in self.order.arrive([self.label_of(*record) for record in came])])

    def next(self, state):
        fresh = self.options["fresh"]
        if self.batches >= self.options["renew_batches"] or len(self.order.pending) < fresh or not self.ready():
            self.arrive(self.changed(state))
            self.batches = 0
        if not self.ready():
            return None
        self.batches += 1
        new, old = self.order.next()
        return new + old, len(new)

    def ready(self):
        has_old = bool(self.order.drawn[0])
        if self.options["fresh"] == 0:
            return has_old
        return bool(self.order.pending) or (self.options["on_empty"] == "rehearse" and has_old)


def one_configuration(seed, writer, path):
    r = random.Random(seed)
    fresh = r.choice((0, 1, 4, 16))
    options = {"fresh": fresh, "old": r.choice((0, 2, 8)) if fresh else 5, "seed": r.getrandbits(64), "lag": r.choice((1, 4, 6)),
               "buffer": r.choice(("reservoir", "class", "ring", "all")), "capacity": r.choice((1, 10, 50)),
               "renew_batches": r.choice((1, 3, 16)), "renew_seconds": 1e6, "timeout": 0.01,
               "on_empty": r.choice(("rehearse", "stop"))}
    existing = "new" if fresh and r.random() < 0.6 else "old"
    by_function = r.random() < 0.3
    model = Model(r, options, lambda k, v: v[1] % 3 if options["buffer"] == "class" else 0)
    dupsort, name = model.dupsort, b"named" if model.dupsort else r.choice((None, b"named"))
    label = (lambda k, v: v[1] % 3) if by_function else None
    if options["buffer"] == "class" and not by_function:  # one byte of the value is the label
        model.label_of, label = (lambda k, v: v[1]), (1, 1)
    state = set() if dupsort else {}
    txn = [0]

    def commit():
        puts, dels = [], []
        for _ in range(r.choice((1, 1, 5, 40))):
            key, value = b"%03d" % r.randrange(200), bytes([65, r.randrange(3)]) + b"%04d" % r.randrange(3000)
            if not dupsort and r.random() < 0.2:
                value += b"x" * r.choice((3000, 9000))
            if dupsort:
                if state and r.random() < 0.3:
                    gone = r.choice(sorted(state))
                    if gone not in puts:
                        dels.append(gone)
                        state.discard(gone)
                elif (key, value) not in dels:
                    puts.append((key, value))
                    state.add((key, value))
            elif state and r.random() < 0.3:
                key = r.choice(sorted(state))
                if key not in dict(puts):
                    dels.append((key, b""))
                    del state[key]
            elif (key, b"") not in dels:
                puts.append((key, value))
                state[key] = value
        txn[0] = writer.commit(path, puts, dels, name, dupsort)

    commit()
    while not state:
        commit()
    arguments = dict(options, database=name.decode() if name else None, label=label if options["buffer"] == "class" else None)
    follow = lmdbio.Follow(path, existing=existing, **arguments)
    model.start(state, existing == "old")
    for _ in range(r.choice((10, 40))):
        if r.random() < 0.35:
            commit()
            continue
        want = model.next(state)
        if want is None and options["on_empty"] == "rehearse" and options["fresh"]:  # there is nothing to rehearse
            with pytest.raises(TimeoutError):
                next(follow)
            continue
        got = next(follow, None)
        if want is None:
            assert got is None
            continue
        batch, new = got
        assert (batch.ordinals, new) == want
        assert pairs(batch) == [model.sample[n] for n in want[0]]
        if r.random() < 0.1 and follow.transaction == txn[0]:
            saved = follow.state()
            follow.close()
            follow = lmdbio.Follow(path, existing=existing, state=saved, **arguments)
            model.batches = 0
    follow.close()


@pytest.mark.parametrize("part", range(3))
def test_batches_equal_the_reference(part, writer, tmp_path):
    for seed in range(part * 100, part * 100 + 100):
        try:
            one_configuration(seed, writer, str(tmp_path / str(seed)))
        except BaseException:
            print("seed", seed)
            raise


# ---- waiting, ending, failing

def put_some(writer, path, n=20, first=0, size=8, **more):
    return writer.commit(path, [(b"%06d" % i, b"%06d" % i * size) for i in range(first, first + n)], **more)


def test_waits_for_a_commit(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    with lmdbio.Follow(path, fresh=8) as follow:
        assert next(follow)[1] == 8
        timer = threading.Timer(0.2, lambda: put_some(writer, path, 10, 10))
        timer.start()
        batch, new = next(follow)
        assert new == 8 and follow.transaction == 2
        assert [int(bytes(k)) >= 10 for k in batch.keys] == [False] * 2 + [True] * 6, "in the order of the commits"
        timer.join()


def test_timeout(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)
    with lmdbio.Follow(path, fresh=8, timeout=0.05) as follow:
        for _ in range(2):
            with pytest.raises(TimeoutError, match="no new records"):
                next(follow)
        put_some(writer, path, 5, 3)
        assert next(follow)[1] == 8


def test_a_writer_that_has_finished(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    with lmdbio.Follow(path, fresh=8, old=2, finished_key=b"end") as follow:
        assert next(follow)[1] == 8
        writer.commit(path, [(b"end", b""), (b"zz", b"z")])
        batch, new = next(follow)
        assert new == 3 and b"end" not in [bytes(k) for k in batch.keys]
        assert next(follow, None) is None


def test_cancel_and_close(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)
    for end in ("cancel", "close"):
        follow = lmdbio.Follow(path, fresh=8)
        timer = threading.Timer(0.1, getattr(follow, end))
        timer.start()
        with pytest.raises(lmdbio.CancelledError):
            next(follow)
        timer.join()
        follow.close()
    with pytest.raises(ValueError, match="closed"):
        next(follow)


def test_keyboard_interrupt(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)
    with lmdbio.Follow(path, fresh=8) as follow:
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(follow)
        timer.join()
        put_some(writer, path, 5, 3)
        assert next(follow)[1] == 8


def test_a_file_that_was_replaced(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)
    with lmdbio.Follow(path, fresh=2, timeout=20) as follow:
        next(follow)
        writer.run(f"env({path!r}).copy({str(tmp_path)!r}, compact=True)")
        os.rename(tmp_path / "data.mdb", path + "/data.mdb")
        for _ in range(2):
            with pytest.raises(OSError, match="replaced") as why:
                next(follow)
            assert why.value.errno == 116  # ESTALE


def test_append_only_continues_after_other_commits(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    arguments = {"fresh": 4, "old": 2, "seed": 5, "buffer": "all", "append_only": True, "timeout": 5}
    with lmdbio.Follow(path, **arguments) as follow:
        next(follow)
        state = follow.state()
        rest = [pairs(next(follow)[0])]
    put_some(writer, path, 10, 10)
    with lmdbio.Follow(path, state=state, **arguments) as follow:
        assert follow.pending == 16
        assert pairs(next(follow)[0]) == rest[0]
        seen = [r for _ in range(3) for r in pairs(next(follow)[0])[:4]]
        assert len({k for k, _ in seen}) == 12
    with pytest.raises(ValueError, match="other options"):
        lmdbio.Follow(path, state=state, **dict(arguments, seed=6))
    with pytest.raises(ValueError, match="damaged"):
        lmdbio.Follow(path, state=state[:-1], **arguments)


def test_labels_that_fail(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)
    with pytest.raises(KeyError):
        lmdbio.Follow(path, fresh=1, buffer="class", label=lambda k, v: {}[k])
    follow = lmdbio.Follow(path, fresh=3, buffer="class", label=lambda k, v: {b"000000": 1, b"000001": 2, b"000002": 3}[k])
    next(follow)
    put_some(writer, path, 3, 3)
    with pytest.raises(KeyError):
        next(follow)
    with pytest.raises(ValueError, match="closed"):
        next(follow)


@pytest.mark.parametrize("arguments, text", [
    ({"fresh": 0}, "fresh may be 0"), ({"fresh": 1, "buffer": "class"}, "needs label"),
    ({"fresh": 1, "buffer": "heap"}, "must be one of"), ({"fresh": 1, "label": (0, 9)}, "label_bytes"),
    ({"fresh": 1, "timeout": -1.0}, "timeout"), ({"fresh": 1, "timeout": 0}, "timeout"),
    ({"fresh": 1, "lag": 0}, "lag"), ({"fresh": 1, "capacity": 0}, "capacity"), ({"fresh": 1, "renew_batches": 0}, "renew_batches"),
    ({"fresh": 1, "renew_seconds": 0}, "renew_seconds"), ({"fresh": 1, "renew_seconds": float("nan")}, "renew_seconds"), ({"fresh": 1, "finished_key": b""}, "finished_key")])
def test_arguments(writer, tmp_path, arguments, text):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)
    with pytest.raises(ValueError, match=text):
        lmdbio.Follow(path, **arguments)
    with pytest.raises(KeyError, match="named"):
        lmdbio.Follow(path, fresh=1, database="named")


def test_a_forked_child(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 30)
    follow = lmdbio.Follow(path, fresh=8)
    next(follow)
    child = os.fork()
    if child == 0:
        try:
            next(follow)
        except RuntimeError:
            follow.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert next(follow)[1] == 8


def test_named_database_with_large_values_on_slow_storage(writer, tmp_path, slow):
    """Values are read ahead: many at a time, and about once."""
    n = 400
    put_some(writer, str(tmp_path / "db"), n, size=16000, name=b"images")
    source = conftest.Database(tmp_path / "db", [])
    fs = slow(source, delay_us=3000)
    with lmdbio.Follow(fs.path, fresh=8, old=8, database="images", capacity=50, on_empty="stop") as follow:
        for batch, _ in follow:
            assert all(bytes(r.value) == bytes(r.key) * 16000 for r in batch)
    read = fs.counters()["read"]
    assert read["in_flight_max"] >= 8
    assert read["bytes"] <= 2.5 * n * 96000  # each value as a new one, and half of them again as an old one


# ---- beside a writer that overwrites

def overwrite(writer, path, rounds):
    """Overwrites 500 records again and again; returns the pages of the file."""
    writer.run(f"[commit({path!r}, None, False, [(b'%06d' % (i * 7 % 500), os.urandom(500))], []) for i in range({rounds})][-1]")
    return os.path.getsize(path + "/data.mdb") // 4096


def test_the_writer_can_reuse_pages(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 500, size=80)
    with lmdbio.Follow(path, fresh=8, old=4, on_empty="rehearse", renew_batches=1) as follow:
        sizes = []
        for _ in range(40):
            sizes.append(overwrite(writer, path, 100))
            next(follow)
            next(follow)
        assert sizes[-1] <= 1.1 * sizes[19], sizes
        while len(sizes) < 60:  # a reader that holds its snapshot
            sizes.append(overwrite(writer, path, 100))
        assert sizes[-1] > 3 * sizes[39], sizes


def test_a_writer_that_commits_all_the_time(writer, tmp_path):
    """Records are never seen half, and each that stays is seen."""
    path = str(tmp_path / "db")
    put_some(writer, path, 10)
    puts = "[(b'k%06d' % (n * 10 + i), b'%06d' % n * 500) for i in range(10)]"
    body = f"[commit({path!r}, None, False, {puts}, []) for n in range(300)][-1]"
    thread = threading.Thread(target=lambda: writer.run(body))
    seen = {}
    with lmdbio.Follow(path, fresh=16, old=8, capacity=100, finished_key=b"z") as follow:
        thread.start()
        ended = threading.Thread(target=lambda: (thread.join(), writer.commit(path, [(b"z", b"")])))
        ended.start()
        for batch, new in follow:
            for i, record in enumerate(batch):
                key, value = bytes(record.key), bytes(record.value)
                if key[:1] == b"k":
                    assert value == b"%06d" % (int(key[1:]) // 10) * 500
                if i < new:
                    assert key not in seen
                    seen[key] = len(seen)
    ended.join()
    assert len(seen) == 3010
    commits = [int(k[1:]) // 10 for k in seen if k[:1] == b"k"]
    starts = [n for i, n in enumerate(commits) if n not in commits[:i]]
    assert set(starts) == set(range(300))


def test_killed_writer(tmp_path):
    """A writer that dies within a transaction leaves the last commit."""
    path = str(tmp_path / "db")
    w = Writer()
    put_some(w, path, 10)
    with lmdbio.Follow(path, fresh=4, timeout=0.3) as follow:
        next(follow)
        w.process.stdin.write(f"env({path!r}).begin(write=True).put(b'x', b'y')\n")
        w.process.stdin.flush()
        w.process.kill()
        w.process.wait()
        assert next(follow)[1] == 4
        with pytest.raises(TimeoutError):
            next(follow)
        w = Writer()
        put_some(w, path, 10, 10)
        assert next(follow)[1] == 4
        w.close()


def test_state_is_small(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 20000, size=1)
    with lmdbio.Follow(path, fresh=100, old=10, capacity=200, on_empty="stop") as follow:
        for _ in follow:
            pass
        assert len(follow.state()) < 200 * 64 + 5 * 10 * 64 + 1000
