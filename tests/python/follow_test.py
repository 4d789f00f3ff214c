"""lmdbio.Follow beside a writer: batches against the reference in tests/support/rehearsal.py, bytes against what was written."""
import os
import random
import subprocess
import sys

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


def put_some(writer, path, n=20, first=0, size=8, **more):
    return writer.commit(path, [(b"%06d" % i, b"%06d" % i * size) for i in range(first, first + n)], **more)


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
