"""Readers of several databases, exclude, and mixed orders, against a reference that reads with py-lmdb; faults; descriptors."""
import bisect
import errno
import itertools
import math
import os
import random
import shutil
import struct
import threading
import time

import conftest
import lmdb
import pytest

import lmdbio
from lmdbio import Order

MASK = (1 << 64) - 1


# ---- the reference: docs/format.md in Python, over what stock LMDB reads

def mix(x):
    x = (x + 0x9e3779b97f4a7c15) & MASK
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def shuffle(seed, epoch, count, i):
    bits = max(8, (count - 1).bit_length())
    low, key = bits // 2, mix(mix(seed) ^ epoch)
    while count > 1:
        left, high = i & (1 << low) - 1, i >> low
        for r in range(8):
            k = key + r * 0xd1b54a32d192ed03
            if r % 2 == 0:
                high ^= mix((k + left) & MASK) & (1 << bits - low) - 1
            else:
                left ^= mix((k + high) & MASK) & (1 << low) - 1
        i = high << low | left
        if i < count:
            return i
    return 0


def mixed(firsts, weights, seed, number):
    block = 1024 << (len(weights) - 1).bit_length()
    total = list(itertools.accumulate(weights))[-1]  # not sum(), which newer versions of Python round differently
    exact = [w * block / total for w in weights]
    slots = [int(e) for e in exact]
    for d in sorted(range(len(weights)), key=lambda d: slots[d] - exact[d])[:block - sum(slots)]:
        slots[d] += 1
    ends = list(itertools.accumulate(slots))
    b, at = number // block, shuffle(seed, number // block, block, number % block)
    d = bisect.bisect_right(ends, at)
    taken, count = b * slots[d] + at - (ends[d] - slots[d]), firsts[d + 1] - firsts[d]
    return firsts[d] + shuffle(seed ^ mix(d), taken // count, count, taken % count)


def stock(paths, exclude, prefixes):
    """All records that are not left out, and the first ordinal of each database."""
    records, firsts = [], [0]
    for path in paths:
        with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
            records += [(k, v) for k, v in txn.cursor() if k not in exclude and not k.startswith(tuple(prefixes))]
        firsts.append(len(records))
    return records, firsts


# ---- databases

@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """60 databases of 0 to 120 records, each with a few that a program leaves out."""
    at, r = tmp_path_factory.mktemp("pool"), random.Random(1)
    paths = []
    for d in range(60):
        sizes = r.choice([[10], [100, 600], [10, 3000, 9000]])
        records = [(b"%05d" % r.randrange(3000), r.randbytes(r.choice(sizes))) for _ in range(r.choice([0, 1, 7, 60, 120]))]
        records += r.sample([(b"length", b"7"), (b"__len__", b"x" * 5000), (b"__keys__", b"y"), (b"00", b"z"), (b"~", b"")], r.randrange(6))
        paths.append(conftest.Database(at / str(d), records).path)
    return paths


def rows(batch):
    return [(x.ordinal, bytes(x.key), bytes(x.value)) for x in batch]


@pytest.mark.parametrize("seed", range(300))
def test_random_configurations(pool, seed):
    r = random.Random(seed)
    paths = r.sample(pool, r.choice([1, 2, 3, 8, 30]))
    exclude, prefixes = r.choice([((), ()), ((b"length", b"absent"), (b"__",)), ((b"~", b"00"), (b"00", b"001", b"__k"))])
    records, firsts = stock(paths, exclude, prefixes)
    given = paths[0] if len(paths) == 1 and r.random() < 0.5 else paths
    with lmdbio.Reader(given, exclude=exclude, exclude_prefixes=prefixes) as reader:
        n = len(records)
        assert len(reader) == n
        if n == 0:
            return
        some = [r.randrange(n) for _ in range(20)]
        assert rows(reader.read(some)) == [(i, *records[i]) for i in some]
        keys = [records[i][0] for i in some] + [b"length", b"absent"]
        first = {}
        for i, (k, _) in enumerate(records):
            first.setdefault(k, i)
        assert reader.read_keys(keys).ordinals == [first.get(k) for k in keys]
        if seed % 10 == 0:
            assert list(reader.keys()) == [k for k, _ in records]
        kind, s, batch, window = r.randrange(6), r.randrange(1 << 32), r.randint(1, 40), r.randint(1, 50)
        weights = [0 if a == b else r.choice([0, 1, 2.5, 0.3]) for a, b in zip(firsts, firsts[1:])]
        if kind == 5 and not any(weights):
            kind = 1
        length = r.choice([None, 1, 50, 5000]) if kind == 5 else None
        order, element, count = [
            (Order.sequential(batch=batch), lambda e, i: i, n),
            (Order.shuffled(s, batch=batch), lambda e, i: shuffle(s, e, n, i), n),
            (Order.window_shuffled(s, window=window, batch=batch), lambda e, i: i // window * window +
             shuffle(s ^ mix(i // window), e, min(window, n - i // window * window), i % window), n),
            (Order.list(some, batch=batch), lambda e, i: some[i], len(some)),
            (Order.keys([records[i][0] for i in some], batch=batch), lambda e, i: first[records[some[i]][0]], len(some)),
            (Order.mixed(weights, s, batch=batch, length=length),
             lambda e, i: mixed(firsts, weights, s, e * (length or n) + i), length or n)][kind]
        ranks = r.choice([1, 2, 5])
        rank, block, last = r.randrange(ranks), r.choice([1, batch, 7]), r.choice(["keep", "drop", "pad"])
        share = [i for i in range(count) if i // block % ranks == rank]
        epoch, position = r.randrange(3), r.randint(0, len(share))
        form = r.choice(["view", "bytes", "mapped"])
        wanted = []
        for e in range(epoch, 3):
            left = [element(e, i) for i in share]
            start, left = (left, left[position:]) if e == epoch else (left, left)
            for at in range(0, len(left), batch):
                cut = left[at:at + batch]
                if len(cut) < batch and last == "drop":
                    continue
                if len(cut) < batch and last == "pad":
                    cut += [start[k % len(start)] for k in range(batch - len(cut))]
                wanted.append([(i, *records[i]) for i in cut])
        order = Order(**{**vars(order), "last": last}).share(rank, ranks, block=block).repeat(3).resume(epoch, position)
        assert [rows(b) for b in reader.stream(order, bytes_as=form)] == wanted


def test_mixed_repeats_small_databases_and_needs_right_weights(tmp_path):
    a, b, empty = (conftest.Database(tmp_path / n, [(b"%s%03d" % (n.encode(), i), b"v") for i in range(count)])
                   for n, count in (("a", 5), ("b", 500), ("c", 0)))
    reader = lmdbio.Reader([a.path, b.path, empty.path])
    got = [bytes(x.key) for batch in reader.stream(Order.mixed([1, 3, 0], 4, batch=64, length=8192)) for x in batch]
    assert sum(k.startswith(b"a") for k in got[:4096]) == 1024 and len(got) == 8192
    small = [k for k in got if k.startswith(b"a")]
    passes = [small[i:i + 5] for i in range(0, 2045, 5)]
    assert sorted(set(map(tuple, passes))) and len(set(map(tuple, passes))) > 50, "each pass has its own order"
    for wrong in ([1, 1], [1, 1, 1, 1], [0, 0, 0], [-1, 2, 0], [math.nan, 1, 0], [1, math.inf, 0], [1, 1, 1], [1, 1e-9, 0]):
        with pytest.raises(ValueError, match="weights"):
            reader.stream(Order.mixed(wrong))
    with pytest.raises(ValueError):
        Order.mixed([1], length=0)
    assert len(next(lmdbio.Reader(a.path).stream(Order.mixed([2], batch=9)))) == 5


def test_named_databases_with_duplicates(tmp_path):
    many = [conftest.Database(tmp_path / str(d), [(b"%d" % (i // 3), b"%d %03d" % (d, i)) for i in range(300)], "named", True) for d in range(3)]
    with lmdbio.Reader([db.path for db in many], "named", exclude=[b"7"], exclude_prefixes=[b"1"]) as reader:
        wanted = [x for db in many for x in db.records if x[0] != b"7" and not x[0].startswith(b"1")]
        assert [(bytes(k), bytes(v)) for k, v in reader] == wanted and list(reader.keys()) == [k for k, _ in wanted]
        assert reader.get(b"7") is None and bytes(reader.get(b"8")) == b"0 024"
    with lmdbio.Reader(many[0].path, "named", exclude=[b"7"]) as reader:
        assert len(reader) == 297 and b"7" not in reader
        assert [(bytes(k), bytes(v)) for k, v in reader] == [x for x in many[0].records if x[0] != b"7"]


def test_exclude_in_other_key_orders(tmp_path):
    for flag in ("reverse_key", "integerkey"):
        path = str(tmp_path / flag)
        with lmdb.open(path, map_size=1 << 28, max_dbs=2) as env:
            db = env.open_db(b"d", **{flag: True})
            with env.begin(write=True, db=db) as txn:
                for i in range(1000):
                    txn.put(struct.pack("=Q", i * 7), b"%d" % i)
            with env.begin(db=db) as txn:
                records = list(txn.cursor())
        prefix, one = struct.pack("=Q", 7 * 3)[:1], struct.pack("=Q", 70)
        wanted = [x for x in records if not x[0].startswith(prefix) and x[0] != one]
        for given in (path, [path]):
            reader = lmdbio.Reader(given, "d", exclude=[one], exclude_prefixes=[prefix])
            assert len(reader) == len(wanted) < 999 and [(bytes(k), bytes(v)) for k, v in reader] == wanted


def test_arguments(tmp_path, pool):
    for wrong in ([], ()):
        with pytest.raises(ValueError):
            lmdbio.Reader(wrong)
    for wrong in (dict(exclude=b"length"), dict(exclude=["length"]), dict(exclude_prefixes=b"__")):
        for path in (pool[0], pool[:2]):
            with pytest.raises(TypeError):
                lmdbio.Reader(path, **wrong)
    for wrong in (dict(exclude=[b""]), dict(exclude_prefixes=[b""])):
        with pytest.raises(ValueError, match="empty"):
            lmdbio.Reader(pool[:2], **wrong)
    reader = lmdbio.Reader(tuple(pool[:3]))
    assert reader.path == pool[:3] and "2 others" in repr(reader)


# ---- faults

@pytest.fixture
def three(tmp_path):
    """Three databases of 100 records of 5 KB."""
    return [conftest.Database(tmp_path / n, [(b"%s%03d" % (n.encode(), i), n.encode() * 5000) for i in range(100)]) for n in "abc"]


def open_many(databases, **more):
    return lmdbio.Reader([db.path for db in databases], **more)


def expect_others(reader, three, bad, error, *texts):
    """Records of database `bad` raise an error that names it; all others can be read, also after the error."""
    for d, db in enumerate(three):
        for i in (0, 57, 99):
            ordinal = 100 * d + i
            if d == bad:
                with pytest.raises(error) as raised:
                    reader.read([ordinal])
                assert all(t in str(raised.value) for t in (db.path, *texts)), raised.value
            else:
                assert rows(reader.read([ordinal])) == [(ordinal, *db.records[i])]
    stream, good, failures = reader.stream(Order.sequential(batch=10)), 0, 0
    for _ in range(60):
        try:
            batch = next(stream)
        except StopIteration:
            break
        except error as e:
            assert three[bad].path in str(e)
            failures += 1
            stream = reader.stream(Order.sequential(batch=10).resume(0, stream.position[1] + 10))
            continue
        assert rows(batch) == [(i, *three[i // 100].records[i % 100]) for i in batch.ordinals]
        good += 1
    assert (good, failures) == (20, 10)


def test_open_names_what_is_wrong(three, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        lmdbio.Reader([three[0].path, str(tmp_path / "absent"), three[1].path])
    junk = tmp_path / "junk"
    junk.write_bytes(random.Random(1).randbytes(100000))
    with pytest.raises(lmdbio.Error, match="junk"):
        lmdbio.Reader([three[0].path, str(junk)])
    with pytest.raises(KeyError, match="none"):
        open_many(three, database="none")
    with pytest.raises(MemoryError):
        try:
            open_many(three, memory=1 << 20).read(range(300))
        except MemoryError as e:
            assert "2 others" in str(e) or "2 other databases" in str(e)
            raise


def test_a_removed_or_replaced_database(three):
    reader = open_many(three)
    os.remove(three[1].path + "/data.mdb")
    expect_others(reader, three, 1, OSError)
    shutil.copy(three[0].path + "/data.mdb", three[1].path + "/data.mdb")
    expect_others(reader, three, 1, OSError, "was changed")


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("form", ["auto", "direct", "buffered"])
def test_a_commit_is_noticed(three, script, used, form):
    script(f"""
import sys; sys.path.insert(0, {os.path.dirname(conftest.__file__)!r})
import lmdb, many_test, pytest, lmdbio
class Db:
    def __init__(self, path):
        self.path = path
        with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
            self.records = list(txn.cursor())
three = [Db(p) for p in sys.argv[1:]]
reader = many_test.open_many(three)
if {used}:
    assert len(list(reader)) == 300
with lmdb.open(three[1].path, map_size=1 << 32) as env, env.begin(write=True) as txn:
    txn.put(b"b050", b"new")
many_test.expect_others(reader, three, 1, OSError, "was changed", "with 100 records")
assert b"a001" in reader
with pytest.raises(OSError, match="was changed"):
    b"c001" in reader
assert len(many_test.open_many(three)) == 300
""", *(db.path for db in three), LMDBIO_IO=form)


def test_a_stream_notices_a_commit(three):
    reader = open_many(three)
    stream = reader.stream(Order.list([0, 100, 1, 101], batch=1))
    assert rows(next(stream)) + rows(next(stream)) == [(0, *three[0].records[0]), (100, *three[1].records[0])]
    with lmdb.open(three[1].path, map_size=1 << 32) as env, env.begin(write=True) as txn:
        txn.put(b"b050", b"new")
    del env
    stream = reader.stream(Order.list([0, 100, 1, 101], batch=1).resume(0, 2))
    assert rows(next(stream)) == [(1, *three[0].records[1])]
    with pytest.raises(OSError) as raised:
        next(stream)
    assert raised.value.errno == errno.ESTALE and three[1].path in str(raised.value)


def test_a_truncated_database(three):
    reader = open_many(three)
    os.truncate(three[2].path + "/data.mdb", 8192)
    expect_others(reader, three, 2, (OSError, lmdbio.Error))


def test_a_damaged_database(three):
    with open(three[0].path + "/data.mdb", "r+b") as f:
        data = f.read()
        for page in range(2, len(data) // 4096):
            if struct.unpack_from("<H", data, page * 4096 + 10)[0] in (1, 2):
                f.seek(page * 4096)
                f.write(b"\xff" * 4096)
    expect_others(open_many(three), three, 0, lmdbio.Error)


def test_read_errors_in_one_database(three, slow):
    mount = slow(three[1])
    for db in three:
        db.drop_cache()
    reader = lmdbio.Reader([three[0].path, mount.path, three[2].path])
    reader.read([100])
    mount.set(fail_from=1, fail_errno="EIO")
    for ordinal in (0, 299):
        assert rows(reader.read([ordinal])) == [(ordinal, *three[ordinal // 100].records[ordinal % 100])]
    with pytest.raises(OSError) as raised:
        reader.read([170])
    assert raised.value.errno == errno.EIO and mount.path in str(raised.value)
    mount.set(fail_from=0)
    assert rows(reader.read([170])) == [(170, *three[1].records[70])]


# ---- descriptors, forks, threads

def descriptors():
    """Those of the program, and those of the library's own table."""
    own = [t for t in os.listdir("/proc/self/task") if open(f"/proc/self/task/{t}/comm").read().startswith("lmdbio-fd")]
    return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/self/task/{own[0]}/fd")) if own else 0


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """1000 databases of 8 records, written once and copied with other keys."""
    at = tmp_path_factory.mktemp("shards")
    paths = []
    for d in range(1000):
        paths.append(str(at / f"{d:04}"))
        with lmdb.open(paths[-1], map_size=1 << 20, sync=False, subdir=False, lock=False) as env, env.begin(write=True) as txn:
            for i in range(8):
                txn.put(b"%04d-%d" % (d, i), b"%d" % d * 100)
            txn.put(b"length", b"8")
    return paths


@pytest.mark.parametrize("how", ["auto", "direct"])
def test_a_thousand_databases(shards, script, how):
    print(script(f"""
import sys; sys.path.insert(0, {os.path.dirname(conftest.__file__)!r})
import glob, resource, time, many_test, lmdbio
from lmdbio import Order
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
paths = sorted(glob.glob(sys.argv[1] + "/????"))
before = many_test.descriptors()
begun = time.monotonic()
reader = lmdbio.Reader(paths, exclude=[b"length"])
took = time.monotonic() - begun
most, got = (0, 0), []
assert len(reader) == 8000
for order in (Order.shuffled(1, batch=64), Order.sequential(batch=64), Order.mixed([1] * 1000, 2, batch=64)):
    for form in ("view", "mapped"):
        held = []
        for batch in reader.stream(order, bytes_as=form):
            most = tuple(max(m, now - then) for m, now, then in zip(most, many_test.descriptors(), before))
            got += [(x.ordinal, bytes(x.key), bytes(x.value)) for x in batch]
            held = (held + [batch])[-30:]
assert all(k == b"%04d-%d" % (i // 8, i % 8) and v == b"%d" % (i // 8) * 100 for i, k, v in got) and len(got) == 48000
assert b"0999-3" in reader and reader.read_keys([b"0500-1"]).ordinals == [4001]
del reader, batch, held
print("open:", took, "s; descriptors:", most)
assert most[0] <= 16 and most[1] <= 1024 // 4 + 8, most
assert took < 10
""", os.path.dirname(shards[0]), LMDBIO_IO=how))


def test_a_program_that_closes_all_descriptors(three, script):
    script(f"""
import sys; sys.path.insert(0, {os.path.dirname(conftest.__file__)!r})
import os, lmdbio
reader = lmdbio.Reader(sys.argv[1:])
first = [bytes(v) for _, v in reader]
os.closerange(3, 1000)
others = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
assert [bytes(v) for _, v in reader] == first
os._exit(0)
""", *(db.path for db in three))


def test_threads_and_forks(pool):
    paths = pool[:40]
    records, _ = stock(paths, (), ())
    reader = lmdbio.Reader(paths)
    wrong = []

    def work(seed):
        for batch in reader.stream(Order.shuffled(seed, batch=16)):
            if rows(batch) != [(i, *records[i]) for i in batch.ordinals]:
                wrong.append(seed)
    conftest.together(6, work)
    assert not wrong
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            reader.read([0])
        except RuntimeError:
            ended = 0 if len(lmdbio.Reader(paths).read([0])) == 1 else 2
        finally:
            os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0
    work(9)
    assert not wrong


def test_cancel_ends_a_wait(three, slow):
    mount = slow(three[1], delay_us=2000000)
    reader = lmdbio.Reader([three[0].path, mount.path])
    stream = reader.stream(Order.list([150], batch=1))
    threading.Timer(0.3, stream.cancel).start()
    begun = time.monotonic()
    with pytest.raises(lmdbio.CancelledError):
        next(stream)
    assert time.monotonic() - begun < 8
