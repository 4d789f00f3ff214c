"""lmdbio.Reader, Order and Stream against what py-lmdb reads; lifetimes, memory, errors, signals, forks."""
import ctypes
import gc
import os
import pickle
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time

import conftest
import numpy
import pytest

import lmdbio
from lmdbio import Order

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def rows(batches):
    return [(r.ordinal, bytes(r.key), bytes(r.value)) for b in batches for r in b]


def expected(db, ordinals):
    return [(i, *db.records[i]) for i in ordinals]


def address(view):
    return numpy.frombuffer(view, numpy.uint8).ctypes.data


# ---- records

@pytest.mark.parametrize("how", ["auto", "direct", "buffered"])
def test_all_orders_return_what_lmdb_has(mixed, script, how):
    script(f"""
import sys; sys.path.insert(0, {os.path.dirname(conftest.__file__)!r})
import random, lmdb, lmdbio
from lmdbio import Order
path = sys.argv[1]
with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
    records = list(txn.cursor())
n, r = len(records), random.Random(3)
reader = lmdbio.Reader(path, memory=8 << 20)
assert len(reader) == n
some = [r.randrange(n) for _ in range(300)]
shuffled = lmdbio.shuffled(5, 2, n, 0, n).tolist()
assert sorted(shuffled) == list(range(n))
orders = [(Order.sequential(batch=7), list(range(n))), (Order.shuffled(5, batch=64).resume(2), shuffled),
          (Order.list(some, batch=11), some), (Order.keys([records[i][0] for i in some], batch=5), some),
          (Order.sequential(batch=10).share(1, 3), [i for i in range(n) if i // 10 % 3 == 1]),
          (Order.shuffled(5, batch=4).share(2, 3, block=1).resume(2), shuffled[2::3])]
for order, wanted in orders:
    for form in ("view", "bytes", "mapped"):
        got = [(x.ordinal, bytes(x.key), bytes(x.value)) for b in reader.stream(order, bytes_as=form) for x in b]
        assert got == [(i, *records[i]) for i in wanted], (order, form)
window = [x.ordinal for b in reader.stream(Order.window_shuffled(1, window=100, batch=9)) for x in b]
assert sorted(window) == list(range(n)) and all(i // 100 == x // 100 for i, x in enumerate(window)) and window != list(range(n))
""", mixed.path, LMDBIO_IO=how)


def test_single_records(mixed):
    reader = lmdbio.Reader(mixed.path)
    n = len(mixed.records)
    for i in (0, 1, n - 1, -1, -n, numpy.int64(3)):
        record = reader[i]
        key, value = record
        assert (bytes(key), bytes(value)) == mixed.records[i] and record.ordinal == i % n
    for i in (n, -n - 1, 1 << 70):
        with pytest.raises(IndexError, match=str(i)):
            reader[i]
    with pytest.raises(TypeError):
        reader[1.5]
    key, value = mixed.records[5]
    assert bytes(reader[key].value) == value == reader.get(key).tobytes() == reader.get(key, bytes_as="bytes")
    assert isinstance(reader.get(key, bytes_as="bytes"), bytes)
    assert reader.get(b"absent") is None and reader.get(b"absent", 7) == 7
    assert key in reader and b"absent" not in reader
    with pytest.raises(KeyError, match="absent"):
        reader[b"absent"]
    with pytest.raises(ValueError):
        reader.get(b"")
    with pytest.raises(TypeError):
        reader.get("text")


def test_several_records(mixed):
    reader = lmdbio.Reader(mixed.path)
    for wanted in ([3, 1, 2, 3], (5,), range(10, 0, -2), numpy.arange(4, dtype=numpy.int16), []):
        assert rows([reader.read(wanted)]) == expected(mixed, wanted)
        for form in ("view", "bytes", "mapped"):
            assert rows([reader.read(wanted, bytes_as=form)]) == expected(mixed, wanted)
    assert rows([reader[10:20:3]]) == expected(mixed, range(10, 20, 3)) and rows([reader[::-400]]) == expected(mixed, [999, 599, 199])
    with pytest.raises(IndexError, match="1000"):
        reader.read([1, 1000])
    with pytest.raises(IndexError):
        reader.read([-1])
    for wrong in ([1.5], ["a"], [[1, 2]], None):
        with pytest.raises((TypeError, ValueError)):
            reader.read(wrong)
    keys = [mixed.records[7][0], b"absent", mixed.records[3][0]]
    batch = reader.read_keys(keys)
    assert batch[1] is None and batch.ordinals == [7, None, 3] and batch.values[1] is None
    assert bytes(batch.values[2]) == mixed.records[3][1] and bytes(batch[-1].key) == keys[2]
    assert len(batch) == 3 and batch.keys[1] is None
    with pytest.raises(IndexError):
        batch[3]


def test_keys_and_iteration(mixed):
    reader = lmdbio.Reader(mixed.path)
    assert list(reader.keys()) == [k for k, _ in mixed.records]
    assert [(bytes(k), bytes(v)) for k, v in reader] == mixed.records


def test_named_database_with_duplicates(tmp_path):
    records = [(b"%d" % (i // 3), b"%03d" % i) for i in range(300)]
    db = conftest.Database(tmp_path / "db", records, name="named", dupsort=True)
    reader = lmdbio.Reader(db.path, "named")
    assert len(reader) == 300 and rows([reader[:]]) == expected(db, range(300))
    assert list(reader.keys()) == [k for k, _ in db.records]
    other = lmdbio.Reader(db.path)  # of the same environment
    assert len(other) == 1 and bytes(other[0].key) == b"named"
    assert reader.database == "named" and other.database is None
    with pytest.raises(KeyError, match="missing"):
        lmdbio.Reader(db.path, "missing")


def test_paths(mixed, tmp_path):
    directory = tmp_path / "a directory"
    directory.mkdir()
    (directory / "data.mdb").write_bytes(open(mixed.path + "/data.mdb", "rb").read())
    for path in (directory, str(directory), os.fsencode(directory), directory / "data.mdb"):
        reader = lmdbio.Reader(path)
        assert len(reader) == 1000
    (tmp_path / "file").write_bytes((directory / "data.mdb").read_bytes())
    assert len(lmdbio.Reader(tmp_path / "file", lock=False)) == 1000


def test_names_that_are_not_text(mixed, tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff\xfe"
    with open(name, "wb") as f, open(mixed.path + "/data.mdb", "rb") as data:
        f.write(data.read())
    reader = lmdbio.Reader(name)
    assert len(reader) == 1000 and os.fsencode(reader.path) == name and "Reader" in repr(reader)
    with pytest.raises(IndexError):
        reader[1000]
    with pytest.raises(FileNotFoundError):
        lmdbio.Reader(name + b"x")
    for path, database in (("a\0b", None), (mixed.path, "a\0b")):
        with pytest.raises(ValueError, match="null"):
            lmdbio.Reader(path, database)


def test_locks_are_not_left_out_unasked(mixed):
    with lmdbio.Reader(mixed.path, lock=False):
        with pytest.raises(ValueError, match="lock=False"):
            lmdbio.Reader(mixed.path)
        lmdbio.Reader(mixed.path, lock=False)[0]
    with lmdbio.Reader(mixed.path), lmdbio.Reader(mixed.path, lock=False) as reader:
        reader[0]


def test_keys_for_one_thread_at_a_time(mixed):
    reader = lmdbio.Reader(mixed.path)
    for _ in range(30):
        keys, got, lock = reader.keys(), [], threading.Lock()

        def work(_):
            while True:
                try:
                    key = next(keys)
                except StopIteration:
                    return
                except ValueError:
                    continue
                with lock:
                    got.append(key)
        conftest.together(3, work)
        assert sorted(got) == [k for k, _ in mixed.records]


def test_empty_database(tmp_path):
    db = conftest.Database(tmp_path / "db", [])
    reader = lmdbio.Reader(db.path)
    assert len(reader) == 0 and list(reader) == [] and list(reader.keys()) == [] and len(reader[:]) == 0
    for order in (Order.shuffled(1, batch=4), Order.list([]), Order.keys([])):
        assert list(reader.stream(order)) == []


# ---- lifetimes and memory

def test_views_are_not_copies(large):
    """All values of a batch lie in one buffer of the library; views, arrays and slices have its addresses."""
    reader = lmdbio.Reader(large.path, memory=64 << 20)
    batch = next(reader.stream(Order.sequential(batch=16)))
    at = [address(r.value) for r in batch]
    assert at == [address(v) for v in batch.values] == [address(batch[i].value) for i in range(16)]
    assert max(at) - min(at) < 16 * 130000
    view = batch[3].value
    assert view.readonly and view.obj is batch and view.format == "B" and view.nbytes == 112640
    array = numpy.frombuffer(view, numpy.uint8)
    assert array.ctypes.data == at[3] and not array.flags.writeable and not array.flags.owndata
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(BufferError):
        memoryview(batch)


def test_values_in_the_page_cache_are_views_of_the_file(large):
    """The mapping of the file has them: nothing of the reader's memory is needed."""
    reader = lmdbio.Reader(large.path, memory=1 << 20)
    for _ in reader.stream(Order.sequential(batch=1)):  # into the page cache
        pass
    batches = list(reader.stream(Order.shuffled(1, batch=64), bytes_as="mapped"))
    with open("/proc/self/maps", encoding="ascii") as maps:
        spans = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(large.path + "/data.mdb")]
    inside = [any(int(a, 16) <= address(v) < int(b, 16) for a, b in spans) for batch in batches for v in batch.values]
    if not any(inside):
        pytest.skip("this file system keeps no pages")
    assert all(inside)
    ordinals = [i for b in batches for i in b.ordinals]
    reader.close()
    del reader
    gc.collect()
    assert rows(batches) == expected(large, ordinals)


def test_values_that_were_read_are_where_the_kernel_wrote_them(large, tmp_path):
    """Between the read and the program, no byte is copied."""
    text = """
import sys, numpy, lmdbio
for batch in lmdbio.Reader(sys.argv[1]).stream(lmdbio.Order.shuffled(1, batch=16), bytes_as="mapped"):
    for value in batch.values:
        print(numpy.frombuffer(value, numpy.uint8).ctypes.data, len(value))
"""
    large.drop_cache()
    log = tmp_path / "reads"
    traced = ["strace", "-f", "-qq", "-e", "trace=pread64", "-e", "raw=pread64", "-o", str(log)]
    run = subprocess.run([*traced, sys.executable, "-B", "-c", text, large.path], capture_output=True, text=True, check=False,
                         env={**os.environ, "LMDBIO_IO": "direct", "LMDBIO_ENGINE": "threads"})
    if "ptrace" in run.stderr:
        pytest.skip("no strace")
    assert run.returncode == 0, run.stderr
    # Buffers are used again, so there may be several reads at an address.
    read = {(int(m[1], 16), int(m[1], 16) + int(m[2], 16)) for m in re.finditer(r"pread64\(\w+, (0x\w+), (0x\w+)", log.read_text())}
    values = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(values) == len(large.records)
    for at, size in values:
        assert any(begin <= at and at + size <= end for begin, end in read), hex(at)


def test_a_view_keeps_its_batch(large):
    """1000 records are kept, one of each batch, far beyond what was read since; then there is a clear MemoryError."""
    reader = lmdbio.Reader(large.path, memory=32 << 20)
    kept, refused = [], None
    try:
        for batch in reader.stream(Order.shuffled(1, batch=8).repeat(None)):
            kept.append(batch[3])
            del batch
            if len(kept) > 1000:
                break
    except MemoryError as error:
        refused = str(error)
    assert refused is not None and large.path in refused and "in batches that were not released" in refused
    assert 20 <= len(kept) <= 300
    reader.close()
    for record in kept:
        assert (bytes(record.key), bytes(record.value)) == large.records[record.ordinal]
    reader = lmdbio.Reader(large.path, memory=32 << 20)
    batches = [reader.read([i]) for i in range(100)]
    with pytest.raises(MemoryError):
        reader.read(range(300, 600))
    del batches[10:]
    reader.read(range(300, 350))
    assert rows(batches) == expected(large, range(10))


def test_a_thousand_records_that_fit(mixed):
    reader = lmdbio.Reader(mixed.path)
    kept = [reader[i] for i in range(1000)]
    reader.close()
    assert [(bytes(r.key), bytes(r.value)) for r in kept] == mixed.records


def private():
    with open("/proc/self/smaps_rollup", encoding="ascii") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith(("Private_Dirty", "Private_Clean"))) << 10


@pytest.mark.parametrize("form", ["view", "bytes", "mapped"])
def test_memory_is_flat_over_20_epochs(large, form):
    reader = lmdbio.Reader(large.path, memory=32 << 20)
    after = []
    for epoch in range(20):
        for batch in reader.stream(Order.shuffled(1, batch=16).resume(epoch), bytes_as=form):
            for key, value in batch:
                assert len(value) == 112640
        del batch, key, value
        gc.collect()
        after.append(private())
    # A batch has 1.7 MiB: one that is lost in each epoch is 17 MiB here.  malloc's heap may grow by less at any time.
    assert max(after[10:]) - min(after[3:10]) < 12 << 20, after


def test_closing(mixed):
    with lmdbio.Reader(mixed.path) as reader:
        stream = reader.stream(Order.sequential(batch=10))
        first = next(stream)
        keys = reader.keys()
        assert next(keys) == mixed.records[0][0]
    assert reader.closed and "closed" in repr(reader)
    assert rows([next(stream)]) == expected(mixed, range(10, 20)), "a stream keeps its reader open"
    assert next(keys) == mixed.records[1][0]
    for call in (lambda: len(reader), lambda: reader[0], lambda: reader.stream(Order()), lambda: reader.keys(), lambda: reader.get(b"a")):
        with pytest.raises(ValueError, match="closed"):
            call()
    with stream:
        pass
    with pytest.raises(ValueError, match="closed"):
        next(stream)
    assert rows([first]) == expected(mixed, range(10))
    reader.close()
    stream.close()


def test_open_and_close_leave_no_descriptors(mixed):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))
    lmdbio.Reader(mixed.path)[0]
    gc.collect()
    before = descriptors()
    for _ in range(20):
        with lmdbio.Reader(mixed.path) as reader:
            list(reader.stream(Order.sequential(batch=100)))
    gc.collect()
    assert descriptors() <= before


# ---- orders

def test_resume_at_100_places(mixed):
    reader, r = lmdbio.Reader(mixed.path), random.Random(4)
    for _ in range(100):
        order = r.choice([Order.shuffled(r.randrange(9), batch=r.randrange(1, 40)), Order.sequential(batch=r.randrange(1, 40)),
                          Order.window_shuffled(3, window=50, batch=16)]).repeat(2)
        if r.random() < .5:
            order = order.share(r.randrange(3), 3)
        whole = rows(reader.stream(order))
        stream, got = reader.stream(order), []
        for _ in range(r.randrange(2 * 1000 // order.batch // order.ranks)):
            got += rows([next(stream)])
        rest = pickle.loads(pickle.dumps(order)).resume(*stream.position)
        assert got + rows(reader.stream(rest)) == whole


def test_orders_end_before_an_epoch(mixed):
    reader, order = lmdbio.Reader(mixed.path), Order.shuffled(2, batch=300)
    epochs = lambda order: [b.epoch for b in reader.stream(order) if b.position == 0]  # noqa: E731
    assert epochs(order) == [0] and epochs(order.resume(7)) == [7]
    assert epochs(order.repeat(3)) == [0, 1, 2]
    assert epochs(order.repeat(10).resume(3)) == epochs(order.resume(3).repeat(10)) == list(range(3, 10))
    assert epochs(Order.shuffled(2, batch=300, end_epoch=3)) == [0, 1, 2]
    for epoch in (3, 4, 1000):
        for across in (False, True):
            stream = reader.stream(Order.shuffled(2, across_epochs=across).repeat(3).resume(epoch))
            assert stream.position == (epoch, 0) and not list(stream)
    endless = iter(reader.stream(order.repeat()))
    assert [next(endless).epoch for _ in range(40)][-1] == 9
    stream = reader.stream(order.repeat(2))
    assert len(list(stream)) == 8 and stream.position == (2, 0)


def test_shares_are_those_of_the_interfaces_in_c_and_cpp(mixed):
    """docs/examples/epochs.cc prints a sum of each epoch of a share, with the default block."""
    program = os.path.join(conftest.BUILD, "tests", "shim", "example_epochs")
    if not os.access(program, os.X_OK):
        pytest.skip("the example is not built")
    reader = lmdbio.Reader(mixed.path)
    for rank in range(3):
        order = Order.shuffled(42, batch=32).share(rank, 3).repeat(2)
        sums = [0, 0]
        for batch in reader.stream(order):
            sums[batch.epoch] += sum(batch.ordinals) + sum(sum(v) for v in batch.values)
        done = subprocess.run([program, mixed.path, str(rank), "3"], stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout.splitlines() == [f"epoch {i}: {total}" for i, total in enumerate(sums)]


def test_forms_of_bytes(mixed):
    reader, key = lmdbio.Reader(mixed.path), mixed.records[5][0]
    order = Order.list([5], batch=1)
    calls = (lambda **more: reader.get(key, **more), lambda **more: reader.read([5], **more)[0].value,
             lambda **more: reader.read_keys([key], **more).values[0], lambda **more: next(reader.stream(order, **more))[0].value)
    for call in calls:
        for form, kind in (("view", memoryview), ("bytes", bytes), ("mapped", memoryview)):
            value = call(bytes_as=form)
            assert type(value) is kind and bytes(value) == mixed.records[5][1]
        assert type(call()) is memoryview
        for wrong in ("copy", "", "View", None, True, 1, b"view"):
            with pytest.raises(ValueError, match='"view", "bytes" or "mapped"'):
                call(bytes_as=wrong)


def test_fields_of_batches(mixed):
    reader = lmdbio.Reader(mixed.path)
    batches = list(reader.stream(Order.sequential(batch=300, last="pad").repeat(2)))
    assert [(len(b), b.epoch, b.position, b.padding) for b in batches] == [
        (300, e, p, 200 if p == 900 else 0) for e in (0, 1) for p in (0, 300, 600, 900)]
    assert [len(b) for b in reader.stream(Order.sequential(batch=300, last="drop"))] == [300] * 3


def test_orders_compare():
    assert Order.list([1, 2]) == Order.list(iter([1, 2])) != Order.list([2, 1]) and Order.sequential() == Order()
    assert len({Order.list([1]), Order.list([1]), Order.list([2])}) == 2


@pytest.mark.parametrize("wrong", [{"seed": None}, {"seed": 1.5}, {"batch": 64.0}, {"end_epoch": 2.5}])
def test_numbers_of_orders_are_whole(wrong):
    with pytest.raises(TypeError):
        Order.shuffled(**wrong)


@pytest.mark.parametrize("make", [
    lambda: Order.shuffled(-1), lambda: Order.shuffled(1 << 64), lambda: Order(batch=1 << 70), lambda: Order(window=-1),
    lambda: Order("random"), lambda: Order(batch=0), lambda: Order(last="none"), lambda: Order.sequential().share(2, 2),
    lambda: Order.sequential().repeat(0), lambda: Order(end_epoch=-1), lambda: Order.list([-1]), lambda: Order.sequential().resume(-1),
])
def test_wrong_orders(make):
    with pytest.raises(ValueError, match="order"):
        make()


def test_orders_that_do_not_fit(mixed):
    reader = lmdbio.Reader(mixed.path)
    for order in (Order.list([1000]), Order.sequential().resume(0, 1001), Order("window_shuffled", window=0)):
        with pytest.raises(ValueError, match="order"):
            reader.stream(order)
    with pytest.raises(TypeError):
        reader.stream(Order.keys(["text"]))
    with pytest.raises((TypeError, AttributeError)):
        reader.stream("sequential")


# ---- errors

def test_errors_name_file_and_reason(tmp_path, mixed):
    with pytest.raises(FileNotFoundError, match="nothing here") as raised:
        lmdbio.Reader(tmp_path / "nothing here")
    assert raised.value.errno == 2
    (tmp_path / "directory").mkdir()
    with pytest.raises(FileNotFoundError, match="directory: a directory without data.mdb"):
        lmdbio.Reader(tmp_path / "directory")
    reader = lmdbio.Reader(mixed.path)
    with pytest.raises(KeyError, match=mixed.path + ": no key b'absent'"):
        reader[b"absent"]
    with pytest.raises(TypeError, match="keys are bytes, not str; '7'.encode"):
        reader["7"]
    with pytest.raises(TypeError, match="whole numbers; for keys call read_keys"):
        reader.read(["7"])
    (tmp_path / "text").write_text("not a database " * 1000)
    with pytest.raises(lmdbio.CorruptedError, match="text"):
        lmdbio.Reader(tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(lmdbio.CorruptedError, match="empty: nothing has been written"):
        lmdbio.Reader(tmp_path / "empty")
    for memory in (-1, 1000):
        with pytest.raises(ValueError, match="memory"):
            lmdbio.Reader(mixed.path, memory=memory)
    with pytest.raises(MemoryError):
        lmdbio.Reader(mixed.path, memory=1 << 20).read(range(1000))
    reader = lmdbio.Reader(mixed.path)
    for made in (reader, reader[:2], reader.stream(Order.sequential(batch=2)), reader.keys()):
        for protocol in (0, pickle.DEFAULT_PROTOCOL):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(made, protocol)
    assert issubclass(lmdbio.CorruptedError, lmdbio.Error) and issubclass(lmdbio.CancelledError, lmdbio.Error)


def test_not_served(script, mixed):
    script("""
import sys, lmdbio
try:
    lmdbio.Reader(sys.argv[1])
except lmdbio.Error as error:
    assert "LMDBIO_DISABLE" in str(error), error
else:
    raise AssertionError("opened")
""", mixed.path, LMDBIO_DISABLE="1")


def test_a_damaged_page(tmp_path, mixed):
    """Only records of the page are errors, with an index file and without."""
    damaged = tmp_path / "data.mdb"
    data = bytearray(open(mixed.path + "/data.mdb", "rb").read())
    damaged.write_bytes(data)
    subprocess.run([os.path.join(conftest.BUILD, "bin", "lmdbio"), "index", str(damaged)], check=True, stdout=subprocess.DEVNULL)
    at = data.index(next(v for _, v in mixed.records[500:] if len(v) == 100)) // 4096 * 4096  # a leaf page
    before = os.stat(damaged)
    with open(damaged, "r+b") as f:
        f.seek(at + 10)
        f.write(b"\xff" * 6)
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))  # the index is of the file as it was
    bad = {True: [], False: []}
    for index, lost in bad.items():
        reader = lmdbio.Reader(tmp_path, lock=False, index_file=index)
        for i in range(1000):
            try:
                assert (bytes(reader[i].key), bytes(reader[i].value)) == mixed.records[i]
            except lmdbio.CorruptedError as error:
                assert f"page {at // 4096}" in str(error)
                lost.append(i)
        reader.close()
    assert bad[True] == bad[False] and bad[True]


def leaf_pages(data):
    """Of a database that one transaction has filled: {page: keys in it}."""
    pages = {}
    for at in range(2 * 4096, len(data), 4096):
        number, _, flags, lower = struct.unpack_from("<QHHH", data, at)
        if (number, flags) == (at // 4096, 2):
            nodes = [at + n for n in struct.unpack_from(f"<{(lower - 16) // 2}H", data, at + 16)]
            pages[number] = [data[n + 8:n + 8 + struct.unpack_from("<H", data, n + 6)[0]] for n in nodes]
    return pages


def found(reader, records):
    """Which records a reader finds by ordinal and by key, of those that LMDB had; another one is a failure."""
    by = [[], []]
    for i, record in enumerate(records):
        for kind, at in enumerate((i, record[0])):
            try:
                assert tuple(map(bytes, reader[at])) == record
                by[kind].append(i)
            except lmdbio.CorruptedError:
                pass
    return by


def test_damaged_leaf_pages(tmp_path, capfd):
    """Records of one damaged page, and nothing else, are errors; of two pages, ordinals between them are as well."""
    count = 6000
    db = conftest.Database(tmp_path / "db", conftest.made_records(count, [100]))
    file = tmp_path / "db" / "data.mdb"
    data = file.read_bytes()
    leaves = {p: [int(k) for k in keys] for p, keys in leaf_pages(data).items() if b"00000000" <= keys[0] <= b"99999999"}
    assert sorted(i for records in leaves.values() for i in records) == list(range(count))
    tree = sorted(leaves, key=lambda p: leaves[p][0])
    for damaged in (tree[:1], tree[3:4], tree[-1:], tree[2:4], [tree[1], tree[4]]):
        with open(file, "r+b") as f:
            for p in damaged:
                f.seek(p * 4096 + 14)
                f.write(b"\xff\xff")
        reader = lmdbio.Reader(file, lock=False)
        lost = [i for p in damaged for i in leaves[p]]
        known = [i for i in range(count) if not min(lost) <= i <= max(lost)]
        readable = [i for i in range(count) if i not in lost]
        assert len(reader) == count and found(reader, db.records) == [known, readable]
        keys = Order.keys([db.records[i][0] for i in readable], batch=7)
        assert [(bytes(r.key), bytes(r.value)) for b in reader.stream(keys) for r in b] == [db.records[i] for i in readable]
        assert rows(reader.stream(Order.list(known, batch=50))) == expected(db, known)
        assert f"damaged leaf pages: {len(damaged)}; their records cannot be read" in capfd.readouterr().err
        reader.close()
        with open(file, "r+b") as f:
            f.write(data)


def test_a_damaged_page_of_duplicates(tmp_path):
    records = [(b"a", b"1"), *((b"b", b"%06d" % i + bytes(200)) for i in range(400)), (b"c", b"3"), (b"d", b"4")]
    db = conftest.Database(tmp_path / "db", records, name="d", dupsort=True)
    file = tmp_path / "db" / "data.mdb"
    data = bytearray(file.read_bytes())
    page, lost = next((p, keys) for p, keys in leaf_pages(data).items() if any(k.startswith(b"000200") for k in keys))
    lost = [i for i, (_, v) in enumerate(db.records) if v in lost]
    data[page * 4096 + 14:page * 4096 + 16] = b"\xff\xff"
    file.write_bytes(data)
    with lmdbio.Reader(file, "d", lock=False) as reader:
        assert 0 < len(lost) < 40
        for i in range(403):
            try:
                assert tuple(map(bytes, reader[i])) == db.records[i]
                assert i not in lost
            except lmdbio.CorruptedError:
                assert i in lost
        assert reader[b"d"].ordinal == 402


# ---- objects that were never made

def test_objects_that_were_never_made(script, mixed):
    """Methods of objects whose __init__ failed, or was never called, use no memory that was never constructed."""
    script("""
import sys, traceback, lmdbio
from lmdbio import _lmdbio
for _ in range(3):  # what was there before remains on the heap
    lmdbio.Reader(sys.argv[1])[0]
kept = "__len__ __getitem__ __contains__ __iter__ __next__ __repr__ __enter__ __exit__ __reduce__".split()
for kind in (lmdbio.Reader, lmdbio.Batch, lmdbio.Stream, _lmdbio._Keys):
    class Early(kind):
        def __init__(self):
            raise ValueError
    for made in (kind.__new__(kind), kind.__new__(Early)):
        for name in dir(made):
            if name.startswith("__") and name not in kept:
                continue
            for arguments in ((), (0,), (b"k",), ([0],)):
                try:
                    value = getattr(made, name)
                    if callable(value):
                        value(*arguments)
                except (RuntimeError, TypeError, AttributeError):
                    pass
        try:
            memoryview(made)
        except (BufferError, TypeError):
            pass
reader = lmdbio.Reader.__new__(lmdbio.Reader)
assert reader.closed and repr(reader) == "<lmdbio.Reader that was not opened>"
reader.close()
for use in (lambda: len(reader), lambda: reader[0], lambda: reader.path, lambda: reader.keys()):
    try:
        use()
    except RuntimeError as error:
        assert str(error).endswith("Reader: its __init__ was not called, or failed"), error
    else:
        raise AssertionError
class Mine(lmdbio.Reader):
    def __init__(self, path):
        super().__init__(path)
    def __del__(self):
        self.close()
try:
    Mine("/no/such/file")
except FileNotFoundError as error:
    text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "that was not opened" in text, text
""", mixed.path)


def test_subinterpreters(script):
    """lmdbio refuses them, and can be imported afterwards."""
    text = """
import sys
import _xxsubinterpreters as interpreters
def sub():
    i = interpreters.create()
    interpreters.run_string(i, '''
try:
    import lmdbio
except ImportError as error:
    assert "subinterpreter" in str(error), error
else:
    raise AssertionError
''')
    interpreters.destroy(i)
if len(sys.argv) == 1:
    sub()
import lmdbio
sub()
print(lmdbio.shuffled(1, 0, 10, 0, 10).tolist())
"""
    assert script(text, timeout=60) == script(text, "main first", timeout=60)


def test_no_descriptor_left(script, mixed):
    script("""
import errno, os, resource, sys, lmdbio
path = sys.argv[1]
lmdbio.Reader(path)[0]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = []
try:
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for more in range(8):
    try:
        lmdbio.Reader(path)[0]
        break
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    os.close(kept.pop())
else:
    raise AssertionError("8 descriptors are not enough")
assert more > 0
""", mixed.path)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """64 databases, more than can be opened with 64 descriptors."""
    top = tmp_path_factory.mktemp("shards")
    return [conftest.Database(top / str(i), conftest.made_records(4, [9000], i)) for i in range(64)]


# The threads engine takes no descriptor; io_uring would take two for each open stream with direct reads.
@pytest.mark.parametrize("how", ["auto", "buffered", "direct"])
def test_descriptors_of_a_reader(shards, script, how):
    few = shards[:8]
    for shard in few:
        shard.drop_cache()
    script("""
import os, sys, lmdb, lmdbio

def tables():
    \"\"\"The program's descriptors, and those of LMDBIO's own table.\"\"\"
    own = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name:
            if name.read().startswith("lmdbio-fd"):
                own = os.listdir(f"/proc/self/task/{task}/fd")
    return len(os.listdir("/proc/self/fd")), len(own)

most, *paths = sys.argv[1:]
for lock in (False, True):
    before = tables()[0]
    stock = [lmdb.open(path, readonly=True, lock=lock) for path in paths]
    each = (tables()[0] - before) // len(paths)
    assert each == 1 + lock, each
    for env in stock:
        env.close()
    kept = [lmdbio.Reader(paths[0], lock=lock)]
    first = tables()
    for path in paths[1:]:
        kept.append(lmdbio.Reader(path, lock=lock))
    opened = tables()
    streams = [reader.stream(lmdbio.Order.shuffled(1, batch=2)) for reader in kept]
    for stream in streams:
        assert len(next(stream)) == 2
    for reader in kept:
        assert len(reader[3].value) == 9000
    read = tables()
    more = len(paths) - 1
    assert opened[0] - first[0] == read[0] - first[0] == more * each, (first, opened, read)
    assert more <= opened[1] - first[1] <= read[1] - first[1] <= more * int(most), (first, opened, read)
    del reader, stream
    streams.clear()
    kept.clear()
""", {"direct": 2}.get(how, 1), *(shard.path for shard in few), LMDBIO_IO=how, LMDBIO_ENGINE="threads")


@pytest.mark.parametrize("lock", [False, True])
def test_as_many_readers_as_environments(shards, script, lock):
    """With few descriptors: as many as stock opens, all of them read, and an error that names the file."""
    script("""
import errno, os, resource, sys, lmdb, lmdbio
lock, *paths = sys.argv[1:]
lock = lock == "True"
lmdbio.Reader(paths[0], lock=lock)[0]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

def fill(make, error):
    made = []
    try:
        for path in paths:
            made.append(make(path))
    except error as why:
        return made, path, why
    raise AssertionError("all could be opened")

stock = len(fill(lambda path: lmdb.open(path, readonly=True, lock=lock), lmdb.Error)[0])
assert stock > 20
for _ in range(3):  # what failed leaves nothing behind
    readers, path, why = fill(lambda path: lmdbio.Reader(path, lock=lock), OSError)
    assert why.errno == errno.EMFILE and path in str(why), why
    assert len(readers) == stock, (len(readers), stock)
    streams = [reader.stream(lmdbio.Order.shuffled(1, batch=2)) for reader in readers]
    assert all(len(next(stream)) == 2 for stream in streams)
    assert all(len(reader[3].value) == 9000 for reader in readers)
    streams.clear()
    readers.clear()
""", lock, *(shard.path for shard in shards))


def test_whether_a_key_exists_reads_no_value(large, slow):
    fs = slow(large, delay_us=0)
    with lmdbio.Reader(fs.path, lock=False) as reader:
        assert large.records[300][0] in reader  # the tree
        before = fs.counters()["read"]["bytes"]
        assert all(k in reader for k, _ in large.records[::7]) and b"none" not in reader
        assert fs.counters()["read"]["bytes"] - before < 1 << 20
        with pytest.raises(ValueError):
            b"" in reader  # pylint: disable=pointless-statement
    with pytest.raises(ValueError, match="closed"):
        b"k" in reader  # pylint: disable=pointless-statement


def test_the_programs_own_interrupt_function_stays(mixed):
    """A program that embeds Python may have set one (lmdbio_set_interrupt)."""
    lib = ctypes.CDLL(lmdbio.library())
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
    lib.lmdbio_set_interrupt(function, ctypes.c_void_p(7))
    try:
        with lmdbio.Reader(mixed.path) as reader:
            assert len(list(reader.stream(Order.sequential(batch=100)))) == 10
        was, context = ctypes.c_void_p(), ctypes.c_void_p()
        lib.lmdbio_get_interrupt(ctypes.byref(was), ctypes.byref(context))
        assert (was.value, context.value) == (ctypes.cast(function, ctypes.c_void_p).value, 7)
    finally:
        lib.lmdbio_set_interrupt(None, None)


def test_views_while_the_garbage_collector_runs(mixed):
    """It may run other threads, and finalizers, between the steps in which a view is made."""
    reader, wrong = lmdbio.Reader(mixed.path), []

    class Finalized:
        def __init__(self, batch):
            self.itself, self.batch = self, batch

        def __del__(self):
            if (bytes(self.batch[0].key), bytes(self.batch[0].value)) != mixed.records[self.batch[0].ordinal]:
                wrong.append("in a finalizer")

    def work(seed):
        r = random.Random(seed)
        for _ in range(60):
            batch = reader.read([r.randrange(1000) for _ in range(20)])
            Finalized(batch)
            wrong.extend(x.ordinal for x in batch if (bytes(x.key), bytes(x.value)) != mixed.records[x.ordinal])

    limits = gc.get_threshold()
    gc.set_threshold(7)
    try:
        conftest.together(6, work)
    finally:
        gc.set_threshold(*limits)
    assert wrong == []


def test_parts_of_a_batch(mixed):
    """batch[a:b] is a list of records, whose memory nothing else uses again."""
    batch = lmdbio.Reader(mixed.path).read(list(range(1000)))
    parts = [batch[i:i + 7] for i in range(0, 1000, 7)]
    noise = [[None] * 7 for _ in range(1000)]
    assert [rows for part in parts for rows in part] == list(batch)
    assert batch[::-250] == [batch[999], batch[749], batch[499], batch[249]] and batch[5:5] == [] and len(noise) == 1000


def test_a_failing_read_is_an_error_that_passes(large, slow):
    fs = slow(large)
    reader = lmdbio.Reader(fs.path, memory=8 << 20)
    stream = reader.stream(Order.shuffled(2, batch=8))
    got = rows([next(stream)])
    fs.set(fail_from=1, fail_errno="EIO")
    failures = 0
    for _ in range(100):
        try:
            got += rows([next(stream)])
        except OSError as error:
            assert error.errno == 5 and fs.path in str(error)
            failures += 1
            fs.set(fail_from=0)
        except StopIteration:
            break
    assert failures >= 1
    assert got == expected(large, lmdbio.shuffled(2, 0, 640, 0, 640).tolist())


# ---- threads, signals, processes

def test_threads_share_a_reader(mixed):
    reader, wrong = lmdbio.Reader(mixed.path), []

    def work(seed):
        r = random.Random(seed)
        for _ in range(200):
            wanted = [r.randrange(1000) for _ in range(r.randrange(1, 20))]
            if rows([reader.read(wanted)]) != expected(mixed, wanted):
                wrong.append(wanted)
        got = rows(reader.stream(Order.shuffled(seed, batch=32)))
        if got != expected(mixed, lmdbio.shuffled(seed, 0, 1000, 0, 1000).tolist()):
            wrong.append(seed)

    conftest.together(8, work)
    assert wrong == []


def test_the_gil_is_free_while_a_call_waits(large, slow):
    """While the main thread waits for storage, another one counts; each wait is a second or more."""
    fs = slow(large, delay_us=1_000_000)
    counted, ended = [0], threading.Event()

    def count():
        while not ended.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        reader = lmdbio.Reader(fs.path, memory=8 << 20)
        before = counted[0]
        reader.read([5, 300])
        assert counted[0] - before > 20
        stream = reader.stream(Order.shuffled(1, batch=4))
        before = counted[0]
        next(stream)
        assert counted[0] - before > 20
    finally:
        ended.set()
        thread.join()


class Alarm(Exception):
    pass


@pytest.fixture
def alarm():
    def ring(*_):
        raise Alarm
    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_wait(large, slow, alarm):
    """KeyboardInterrupt comes the same way.  Requests hang until they are released: nothing else could end the wait."""
    fs = slow(large)
    reader = lmdbio.Reader(fs.path, memory=16 << 20)
    stream = reader.stream(Order.shuffled(3, batch=8))
    got = rows([next(stream)])
    fs.set(hang_from=1, hang_ms="forever")
    for _ in range(40):  # what was read ahead is there
        alarm(0.3)
        try:
            got += rows([next(stream)])
        except Alarm:
            given = stream.position[1]
            if given == len(got):
                break
            got += expected(large, lmdbio.shuffled(3, 0, 640, len(got), given).tolist())  # it came after the call
        finally:
            alarm(0)
    else:
        pytest.fail("nothing hung")
    fs.set(hang_from=0, release=1)
    got += rows(stream)
    assert got == expected(large, lmdbio.shuffled(3, 0, 640, 0, 640).tolist()), "the stream goes on where it was"


def test_keyboard_interrupt(large, slow, script):
    fs = slow(large, delay_us=3_000_000)
    out = script("""
import os, signal, sys, threading, time, lmdbio
reader = lmdbio.Reader(sys.argv[1], memory=8 << 20)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    for batch in reader.stream(lmdbio.Order.shuffled(1, batch=8)):
        pass
    print("read all")
except KeyboardInterrupt:
    print("interrupted")
""", fs.path)
    assert out == "interrupted\n"


@pytest.fixture
def hanging(large, slow):
    """A stream that has given a batch, whose later reads hang until the file system is released."""
    fs = slow(large)
    stream = lmdbio.Reader(fs.path, memory=8 << 20).stream(Order.shuffled(3, batch=8))
    next(stream)
    fs.set(hang_from=1, hang_ms="forever")
    yield fs, stream
    fs.set(hang_from=0, release=1)


def test_cancel(hanging):
    fs, stream = hanging
    timer = threading.Timer(0.3, stream.cancel)
    timer.start()
    with pytest.raises(lmdbio.CancelledError, match="cancelled"):
        for _ in stream:
            pass
    timer.join()
    fs.set(hang_from=0, release=1)
    with pytest.raises(lmdbio.CancelledError):
        next(stream)
    stream.close()


def test_a_stream_is_for_one_thread_at_a_time(hanging):
    fs, stream = hanging
    ended = []

    def drain():
        try:
            list(stream)
        except lmdbio.CancelledError:
            ended.append("cancelled")
    thread = threading.Thread(target=drain)
    thread.start()
    at = None
    while fs.counters()["hung"] == 0 or at != stream.position:  # until what was read ahead has been given
        at = stream.position
        time.sleep(0.5)
    with pytest.raises(ValueError, match="another thread"):
        next(stream)
    stream.close()  # while the other thread waits, which then waits for the reads that have begun
    fs.set(hang_from=0, release=1)
    thread.join()
    assert ended == ["cancelled"]


def test_after_a_fork(mixed):
    """The child may use batches that it inherited, not the reader; it opens its own.  The parent goes on."""
    reader = lmdbio.Reader(mixed.path)
    stream = reader.stream(Order.sequential(batch=10))
    batch = next(stream)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert rows([batch]) == expected(mixed, range(10))
            for call in (lambda: reader[0], lambda: next(stream), lambda: reader.read([1])):
                with pytest.raises(RuntimeError, match="another process"):
                    call()
            own = lmdbio.Reader(mixed.path)
            assert rows(own.stream(Order.shuffled(1, batch=50))) == expected(mixed, lmdbio.shuffled(1, 0, 1000, 0, 1000).tolist())
            reader.close()
            stream.close()
            del batch
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert rows([next(stream)]) == expected(mixed, range(10, 20))


def test_fork_with_threads_in_calls(mixed, tmp_path):
    other = conftest.Database(tmp_path / "other", [(b"a", b"b")])
    reader, ended = lmdbio.Reader(mixed.path), threading.Event()

    def work(seed):
        while not ended.is_set():
            if seed == 0:
                lmdbio.Reader(other.path).close()
            else:
                list(reader.stream(Order.shuffled(seed, batch=32)))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os._exit(0 if len(list(lmdbio.Reader(mixed.path).stream(Order.sequential(batch=64)))) == 16 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        for t in threads:
            t.join()


@pytest.mark.parametrize("call, times", [
    ("for batch in reader.stream(lmdbio.Order.shuffled(seed, batch=64)): read.release()", 3),
    ("reader.read([seed, 7]); read.release()", 20),
])
def test_a_daemon_thread_at_exit(mixed, script, call, times):
    """It may be inside of a call when the interpreter ends."""
    for _ in range(times):
        script(f"""
import sys, threading, lmdbio
reader = lmdbio.Reader(sys.argv[1])
read = threading.Semaphore(0)
def work(seed):
    while True:
        {call}
for i in range(3):
    threading.Thread(target=work, args=(i,), daemon=True).start()
for _ in range(100):
    read.acquire()
""", mixed.path)


# ---- beside py-lmdb

def test_prefetch_says_when_it_has_no_effect(script, mixed):
    out = script("""
import sys, warnings, lmdb, lmdbio
with lmdb.open(sys.argv[1], readonly=True) as env, env.begin() as txn:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(lmdbio.prefetch(txn, [b"00000001"]), lmdbio.prefetch(txn, [b"00000001"]), lmdbio.is_active())
    print(len(caught), "LD_PRELOAD=" + lmdbio.library() in str(caught[0].message))
""", mixed.path)
    assert out == "False False False\n1 True\n"


def test_a_module_that_is_not_reached(script, tmp_path):
    """It calls its own LMDB, as one does that is linked with -Bsymbolic-functions."""
    source, module = tmp_path / "m.c", tmp_path / "m.so"
    source.write_text("int mdb09_env_create(void** env) { return *env != 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(module), str(source)], check=True)
    out = script("""
import ctypes, sys, lmdbio
before = lmdbio.is_active()
ctypes.CDLL(sys.argv[1])
print(before, lmdbio.is_active(), lmdbio._lmdbio._unreached() == sys.argv[1])
""", str(module), LD_PRELOAD=lmdbio.library())
    assert out == "True False True\n"


def test_a_library_that_is_disabled(script):
    out = script("import lmdbio; print(lmdbio.is_active())", LD_PRELOAD=lmdbio.library(), LMDBIO_DISABLE="1")
    assert out == "False\n"


def test_prefetch(script, large, slow):
    """Values that were announced are read with more than one request in flight; what is read is the same."""
    fs = slow(large, delay_us=2000)
    text = """
import sys, lmdb, lmdbio
assert lmdbio.is_active()
with lmdb.open(sys.argv[1], readonly=True, readahead=False, max_dbs=1) as env, env.begin() as txn:
    keys = [b"%08d" % (i * 37 % 640) for i in range(200)]
    assert lmdbio.prefetch(txn, keys) is True
    assert all(txn.get(k)[:8] == k for k in keys)
    try:
        lmdbio.prefetch(txn, keys, "no such database")
    except KeyError as error:
        assert "no such database" in str(error)
    else:
        raise AssertionError
with lmdb.open(sys.argv[2]) as env, env.begin() as txn:
    print(lmdbio.prefetch(txn, [b"00000001"]))
"""
    out = script(text, fs.path, large.path, LD_PRELOAD=lmdbio.library(), PYTHONWARNINGS="ignore")
    assert out == "False\n"
    assert fs.counters()["read"]["in_flight_max"] > 4
