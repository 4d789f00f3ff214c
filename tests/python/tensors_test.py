"""lmdbio.torch.TensorLoader: the same records as the datasets, in the same order, whole and copied once; errors; resume."""
import copy
import gc
import os
import random
import struct
import threading
import weakref

import conftest
import numpy
import pytest

torch = pytest.importorskip("torch", reason="no python3-torch")

import lmdbio  # noqa: E402
import lmdbio.torch as lt  # noqa: E402
from lmdbio import _prepared as prepared, _tensors as tensors  # noqa: E402

SEED = 7
IMAGE = [("label", "<i4"), ("image", "u1", (3, 10, 10))]


def image_records(count, seed=3):
    r = random.Random(seed)
    return [(b"%08d" % i, struct.pack("<i", i - 5) + r.randbytes(300)) for i in range(count)]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """1000 records of a label and 300 bytes."""
    return conftest.Database(tmp_path_factory.mktemp("images") / "db", image_records(1000))


@pytest.fixture(scope="module")
def big_images(tmp_path_factory):
    """300 records of a label and 147 KiB."""
    r = random.Random(4)
    records = [(b"%08d" % i, struct.pack("<i", i) + r.randbytes(150528)) for i in range(300)]
    return conftest.Database(tmp_path_factory.mktemp("big") / "db", records)


def values_of(batch):
    """The values of a batch of IMAGE, as bytes."""
    return [struct.pack("<i", int(label)) + image.numpy().tobytes() for label, image in zip(batch["label"], batch["image"])]


def epoch_order(epoch, count=1000):
    return lmdbio.shuffled(SEED, epoch, count, 0, count).tolist()


def cut(items, size):
    return [items[i:i + size] for i in range(0, len(items), size)]


def expected(database, epoch, batch):
    return cut([database.records[i][1] for i in epoch_order(epoch, len(database.records))], batch)


@pytest.mark.parametrize("threads, prefetch", [(1, 1), (3, 2), (4, 5)])
@pytest.mark.parametrize("batch", [1, 64, 1000, 10**9])
def test_records_of_one_size(images, batch, threads, prefetch):
    loader = lt.TensorLoader(images.path, fields=IMAGE, batch_size=batch, shuffle=True, seed=SEED, threads=threads, prefetch=prefetch)
    for epoch in range(3):
        assert len(loader) == -(-1000 // batch)
        got = list(loader)
        assert got[0]["image"].shape == (min(batch, 1000), 3, 10, 10) and got[0]["image"].dtype == torch.uint8
        assert got[0]["label"].shape == (min(batch, 1000),) and got[0]["label"].dtype == torch.int32
        assert [values_of(b) for b in got] == expected(images, epoch, batch)


def test_large_records_are_whole(big_images):
    loader = lt.TensorLoader(big_images.path, fields=[("label", "<i4"), ("image", "u1", 150528)], batch_size=64, shuffle=True, seed=SEED)
    for epoch in range(3):
        for batch, wanted in zip(loader, expected(big_images, epoch, 64)):
            assert values_of(batch) == wanted


def test_dtypes(tmp_path):
    r = random.Random(1)
    records = [(b"%04d" % i, r.randbytes(16) + b"\1" + r.randbytes(31)) for i in range(50)]  # byte 16 is a bool
    database = conftest.Database(tmp_path / "db", records)
    for fields in ["<f4", ("<i2", (4, 6)), [("z", ">c8", 2), ("y", ">c16"), ("x", "<c16")], [("a", ">i4", 2), ("b", "<f8"), ("c", "?"), ("d", "V7"), ("e", ">f4", (2, 3))],
                   {"names": ["late", "early"], "formats": [">u1", "<i8"], "offsets": [40, 3], "itemsize": 48}]:
        if fields == "<f4":
            fields = ("<f4", 12)
        dtype = numpy.dtype(fields)
        if dtype.names and "d" in dtype.names:  # torch has no tensors of plain bytes
            with pytest.raises(TypeError, match="the field 'd' has the type"):
                lt.TensorLoader(database.path, fields=fields, batch_size=7)
            fields[3] = ("d", "u1", 7)
            dtype = numpy.dtype(fields)
        got = list(lt.TensorLoader(database.path, fields=fields, batch_size=7))
        base, shape = dtype.subdtype or (dtype, ())
        all_values = numpy.frombuffer(b"".join(value for _, value in records), base).reshape(50, *shape)
        for name in dtype.names or [None]:
            whole = torch.cat([b if name is None else b[name] for b in got]).numpy()
            wanted = all_values if name is None else all_values[name]
            assert whole.shape == wanted.shape
            assert whole.tobytes() == wanted.astype(wanted.dtype.newbyteorder("=")).tobytes(), (fields, name)


def varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def field(number, kind, content):
    return varint(number << 3 | kind) + (varint(len(content)) + content if kind == 2 else content)


def datum(shape, label, data=None, floats=None, encoded=None, packed=True, unknown=b""):
    """A message Datum, as protobuf writes it; floats also in the other allowed form."""
    parts = [field(i + 1, 0, varint(n)) for i, n in enumerate(shape)]
    parts += [field(4, 2, data)] if data is not None else []
    parts += [field(5, 0, varint(label))]
    if floats is not None:
        parts += [field(6, 2, struct.pack(f"<{len(floats)}f", *floats))] if packed else [field(6, 5, struct.pack("<f", x)) for x in floats]
    parts += [field(7, 0, varint(encoded))] if encoded is not None else []
    return b"".join(parts) + unknown


UNKNOWN = field(99, 2, b"abc") + field(15, 0, varint(1 << 40)) + field(14, 1, bytes(8)) + field(13, 5, bytes(4))


def test_datums(tmp_path):
    r = random.Random(2)
    pixels = [r.randbytes(2 * 3 * 4) for _ in range(90)]
    values = [datum((2, 3, 4), i - 45, data=p, encoded=0 if i % 2 else None, unknown=UNKNOWN * (i % 3 == 0)) for i, p in enumerate(pixels)]
    path = conftest.Database(tmp_path / "u1", [(b"%04d" % i, v) for i, v in enumerate(values)]).path
    got = list(lt.TensorLoader(path, fields="caffe.Datum", batch_size=16, shuffle=True, seed=SEED))
    order = epoch_order(0, 90)
    assert torch.cat([b["data"] for b in got]).numpy().tobytes() == b"".join(pixels[i] for i in order)
    assert torch.cat([b["label"] for b in got]).tolist() == [i - 45 for i in order]
    assert got[0]["data"].shape == (16, 2, 3, 4) and got[0]["data"].dtype == torch.uint8 and got[0]["label"].dtype == torch.int64

    numbers = [[r.random() for _ in range(6)] for _ in range(20)]
    values = [datum((1, 2, 3), 7, floats=n, packed=i % 2 == 0) for i, n in enumerate(numbers)]
    values[3] = datum((1, 2, 3), 7, floats=numbers[3][:2]) + field(6, 2, struct.pack("<4f", *numbers[3][2:]))  # two pieces
    path = conftest.Database(tmp_path / "f4", [(b"%04d" % i, v) for i, v in enumerate(values)]).path
    got = list(lt.TensorLoader(path, fields="caffe.Datum", batch_size=16))
    assert torch.cat([b["data"] for b in got]).equal(torch.tensor(numbers).view(20, 1, 2, 3))


def test_encoded_datums(tmp_path):
    files = [b"file %d" % i * (i + 1) for i in range(30)]
    path = conftest.Database(tmp_path / "db", [(b"%04d" % i, datum((3, 8, 8), i, data=f, encoded=1)) for i, f in enumerate(files)]).path
    with pytest.raises(ValueError, match="has an encoded image: give a function decode="):
        lt.TensorLoader(path, fields="caffe.Datum")

    def decode(d):
        assert d.encoded and (d.channels, d.height, d.width) == (3, 8, 8) and int(bytes(d.key)) == d.ordinal == d.label
        return bytes(d.data), d.label

    loader = lt.TensorLoader(path, fields="caffe.Datum", decode=decode, collate_fn=list, batch_size=8, shuffle=True, seed=SEED)
    assert [s for b in loader for s in b] == [(files[i], i) for i in epoch_order(0, 30)]


@pytest.mark.parametrize("wrong, message", [
    (datum((2, 3, 4), 1, data=bytes(23)), "has 23 bytes of data, but its shape \\(2, 3, 4\\) has 24"),
    (datum((2, 4, 3), 1, data=bytes(24)), "has the shape \\(2, 4, 3\\), but the first record has \\(2, 3, 4\\)"),
    (datum((2, 3, 4), 1, floats=[0.0] * 24), "has 0 bytes of data"),
    (datum((2, 3, 4), 1, data=bytes(24), encoded=1), "has an encoded image"),
    (datum((2, 3, 4), 1, data=bytes(24))[:-1] + b"\xff", "is not a Datum"),
    (field(4, 2, bytes(24))[:-1], "is not a Datum"),
    (field(6, 2, bytes(23)), "is not a Datum"),
    (b"\x0b" + bytes(30), "is not a Datum"),  # a group
    (b"\xff" * 11, "is not a Datum")])
def test_datums_that_do_not_fit(tmp_path, wrong, message):
    records = [(b"%04d" % i, datum((2, 3, 4), i, data=bytes(24))) for i in range(20)] + [(b"x\x01'", wrong)]
    path = conftest.Database(tmp_path / "db", records).path
    it = iter(lt.TensorLoader(path, fields="caffe.Datum", batch_size=20))
    assert next(it)["label"].tolist() == list(range(20))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"data.mdb|db.*: record 20 \(key b'x\\x01\\x27'\) " + message):
            next(it)


def test_a_first_datum_that_does_not_fit(tmp_path):
    for i, (value, message) in enumerate([(b"\xff", "is not a Datum"), (datum((1, 2, 2), 0, data=bytes(5)), "shape \\(1, 2, 2\\), but 5 elements"),
                                          (datum((0, 2, 2), 0, data=b""), "shape \\(0, 2, 2\\)")]):
        path = conftest.Database(tmp_path / str(i), [(b"key", value)]).path
        with pytest.raises(ValueError, match=r"record 0 \(key b'key'\).*" + message):
            lt.TensorLoader(path, fields="caffe.Datum")


def test_values_of_any_size(mixed):
    loader = lt.TensorLoader(mixed.path, fields="flat", batch_size=64, shuffle=True, seed=SEED)
    for epoch in range(3):
        for batch, wanted in zip(loader, expected(mixed, epoch, 64)):
            data, offsets = batch["data"], batch["offsets"].tolist()
            assert len(offsets) == len(wanted) + 1 and offsets[0] == 0 and offsets[-1] == len(data)
            assert [data[a:b].numpy().tobytes() for a, b in zip(offsets, offsets[1:])] == wanted
    views = lt.TensorLoader(mixed.path, fields="views", batch_size=64, shuffle=True, seed=SEED)
    assert [[bytes(v) for v in batch] for batch in views] == expected(mixed, 0, 64)


def test_decode(mixed):
    for threads in (1, 3):
        seen = set()

        def decode(record, seen=seen):
            seen.add(threading.get_ident())
            return record.ordinal, len(record.value)

        loader = lt.TensorLoader(mixed.path, decode=decode, batch_size=64, shuffle=True, seed=SEED, threads=threads)
        for epoch in range(2):
            got = list(loader)
            assert [b[0].tolist() for b in got] == cut(epoch_order(epoch), 64)
            assert [n for b in got for n in b[1].tolist()] == [len(mixed.records[i][1]) for i in epoch_order(epoch)]
        assert threading.get_ident() not in seen and len(seen) <= threads
    loader = lt.TensorLoader(mixed.path, decode_batch=lambda batch: list(batch.ordinals), batch_size=64, shuffle=True, seed=SEED)
    assert list(loader) == cut(epoch_order(0), 64)


@pytest.mark.parametrize("how", ["decode", "decode_batch", "collate_fn"])
def test_functions_that_fail(mixed, how):
    failures = [1]

    def fail_once(given):
        ordinals = [r.ordinal for r in given] if how == "decode_batch" else [given.ordinal] if how == "decode" else given
        if 500 in ordinals and failures:
            failures.pop()
            raise ArithmeticError("not this one")
        return ordinals[0] if how == "decode" else ordinals

    functions = {"decode": fail_once, "collate_fn": list} if how == "decode" else {how: fail_once}
    if how == "collate_fn":
        functions["decode"] = lambda record: record.ordinal
    it = iter(lt.TensorLoader(mixed.path, batch_size=64, **functions))
    got = []
    while True:
        try:
            got += next(it)
        except ArithmeticError:
            assert got == list(range(448))
        except StopIteration:
            break
    assert got == list(range(1000)) and not failures


def test_stop_iteration_does_not_end_an_epoch(mixed):
    def stop(record):
        return next(iter(())) if record.ordinal == 500 else record.ordinal

    got = []
    with pytest.raises(RuntimeError, match="StopIteration"):
        for batch in lt.TensorLoader(mixed.path, decode=stop, batch_size=64):
            got += batch.tolist()
    assert got == list(range(448))


@pytest.mark.parametrize("source", ["Assembling", "Decoding"])
def test_two_interrupts_at_once(mixed, monkeypatch, source):
    """An interrupt may come right after a batch was taken, and another one when the loader begins to clean up."""
    kind = getattr(prepared, source)
    take, close, left = kind.take, tensors._close, []

    def interrupted_take(self):
        batch = take(self)
        if left and left.pop() == "take":
            raise KeyboardInterrupt
        return batch

    def interrupted_close(batches):
        if left and left.pop() == "close":
            raise KeyboardInterrupt
        close(batches)

    more = {"fields": "flat"} if source == "Assembling" else {"decode": lambda r: r.ordinal}
    loader = lt.TensorLoader(mixed.path, labels=numpy.arange(1000), batch_size=10, **more)
    monkeypatch.setattr(kind, "take", interrupted_take)
    monkeypatch.setattr(tensors, "_close", interrupted_close)
    it, got, interrupts = iter(loader), [], 0
    while len(got) < 1000:
        if len(got) == 300 and not interrupts:
            left[:] = ["close", "take"]
        try:
            batch = next(it)
        except KeyboardInterrupt:
            interrupts += 1
            continue
        labels = batch["label"] if source == "Assembling" else batch[1]
        if source == "Decoding":
            assert batch[0].tolist() == labels.tolist()
        else:
            assert batch["data"][:8].numpy().tobytes() == b"%08d" % labels[0]
        got += labels.tolist()
    assert interrupts == 1 and got == list(range(1000))


def test_an_owner_with_its_own_decode_is_collected(mixed):
    class Owner:
        def __init__(self):
            self.loader = lt.TensorLoader(mixed.path, decode=self.decode, batch_size=100)

        def decode(self, record):
            return record.ordinal

    before, owners = threading.active_count(), []
    for _ in range(5):
        owner = Owner()
        assert len(next(iter(owner.loader))) == 100
        owners.append(weakref.ref(owner))
        del owner
    for _ in range(100):
        gc.collect()
        if threading.active_count() <= before and not any(o() for o in owners):
            break
        threading.Event().wait(0.1)
    assert threading.active_count() <= before and not any(o() for o in owners)


def test_a_loader_that_its_own_thread_collects(mixed, script):
    script("""
import gc, sys, time
import lmdbio.torch
def decode(record):
    if dropped:
        gc.collect()
    time.sleep(0.01)
    return record.ordinal
dropped = []
for i in range(5):
    loader = lmdbio.torch.TensorLoader(sys.argv[1], decode=decode, batch_size=64, threads=3)
    loader.cycle = loader
    next(iter(loader))
    del loader
    dropped.append(i)
    time.sleep(0.1)
""", mixed.path)


def test_labels(images, tmp_path):
    labels = numpy.arange(1000) * 3
    order = epoch_order(0)
    for dtype in ("i8", "f4", ">i2"):
        loader = lt.TensorLoader(images.path, fields=("u1", 304), labels=labels.astype(dtype), batch_size=64, shuffle=True, seed=SEED)
        got = list(loader)
        assert torch.cat([label for _, label in got]).tolist() == [3 * i for i in order]
        assert torch.cat([image for image, _ in got]).numpy().tobytes() == b"".join(images.records[i][1] for i in order)
    other = conftest.Database(tmp_path / "labels", [(b"%05d" % i, struct.pack("<hd", i, i / 2)) for i in range(1000)]).path
    loader = lt.TensorLoader(images.path, fields=[("image", "u1", 304)], labels=other, label_fields=[("a", "<i2"), ("b", "<f8")],
                             batch_size=64, shuffle=True, seed=SEED)
    for _ in range(2):
        got = list(loader)
    order = epoch_order(1)
    assert torch.cat([b["a"] for b in got]).tolist() == order and torch.cat([b["b"] for b in got]).tolist() == [i / 2 for i in order]
    assert torch.cat([b["image"] for b in got]).numpy().tobytes() == b"".join(images.records[i][1] for i in order)
    loader = lt.TensorLoader(images.path, decode=lambda r: r.ordinal, labels=(other, None), label_fields=("u1", 10), batch_size=64)
    assert [list(b[0]) for b in loader] == cut(list(range(1000)), 64)


class OneRank:
    rank, size = 0, 1


@pytest.mark.parametrize("arguments, message", [
    ({}, "fields, decode or decode_batch is needed"),
    ({"fields": "jpeg"}, "not 'jpeg'"),
    ({"fields": IMAGE, "decode": len}, "only one of"),
    ({"decode_batch": len, "decode": len}, "only one of"),
    ({"fields": IMAGE, "collate_fn": list}, "collate_fn is for"),
    ({"fields": IMAGE, "prefetch": 0}, "prefetch must be from 1 to 65536, not 0"),
    ({"fields": IMAGE, "prefetch": 1 << 62}, "prefetch must be from 1 to 65536, not 4611686018427387904"),
    ({"fields": IMAGE, "threads": 0}, "threads must be from 1 to 1024, not 0"),
    ({"fields": IMAGE, "threads": 10**5}, "threads must be from 1 to 1024, not 100000"),
    ({"decode": len, "threads": 10**5}, "threads must be from 1 to 1024, not 100000"),
    ({"fields": IMAGE, "batch_size": 0}, "at least 1"),
    ({"fields": IMAGE, "window": 4}, "needs shuffle=True"),
    ({"fields": IMAGE, "rank": 0}, "must be given together"),
    ({"fields": IMAGE, "last": "none"}, "last must be"),
    ({"fields": IMAGE, "labels": [1, 2]}, "there are 2 labels, but .* has 1000 samples"),
    ({"fields": IMAGE, "labels": "nowhere"}, "label_fields is needed"),
    ({"fields": IMAGE, "exclude": [b"a"], "comm": OneRank}, "cannot exclude"),
    ({"fields": IMAGE, "exclude_prefixes": b"a", "comm": OneRank}, "cannot exclude"),
    ({"fields": IMAGE, "rank": 0, "ranks": 1, "comm": OneRank}, "must not be given"),
    ({"fields": IMAGE, "label_fields": "<i4"}, "label_fields is for"),
    ({"fields": []}, "no bytes"),
    ({"fields": [("a", "u1", (0, 3)), ("b", "u1")]}, "the field 'a' has no bytes")])
def test_wrong_arguments(images, arguments, message):
    with pytest.raises(ValueError, match=message):
        lt.TensorLoader(images.path, **arguments)


def test_more_wrong_arguments(images, large, tmp_path):
    with pytest.raises(TypeError, match="fields of its own"):
        lt.TensorLoader(images.path, fields=[("a", [("b", "u1")])])
    with pytest.raises(FileNotFoundError):
        lt.TensorLoader(tmp_path / "none", fields=IMAGE)
    for wrong in (5, ["a"] * 1000, [None] * 1000, numpy.arange(1000).astype("u2").view("S2")):
        with pytest.raises(TypeError, match="labels must be an array of numbers"):
            lt.TensorLoader(images.path, fields=IMAGE, labels=wrong)
    for what in ("prefetch", "threads"):
        with pytest.raises(TypeError):
            lt.TensorLoader(images.path, fields=IMAGE, **{what: 2.5})
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.copy(lt.TensorLoader(images.path, fields=IMAGE))
    with pytest.raises(BufferError):
        lmdbio._lmdbio._datum(memoryview(b"abcd")[::2])
    with pytest.raises(ValueError, match="has 640 labels, but .* has 1000 samples"):
        lt.TensorLoader(images.path, fields=IMAGE, labels=large.path, label_fields="u1")
    with pytest.raises(ValueError, match="already has a field 'label'"):
        next(iter(lt.TensorLoader(images.path, fields=IMAGE, labels=numpy.arange(1000))))


def test_a_record_of_another_size(images, tmp_path):
    records = [*images.records]
    records[700] = (records[700][0], records[700][1] + b"?")
    path = conftest.Database(tmp_path / "db", records).path
    loader = lt.TensorLoader(path, fields=IMAGE, batch_size=64, threads=3, prefetch=4)
    it, got = iter(loader), []
    for _ in range(10):
        got += values_of(next(it))
    for _ in range(3):
        with pytest.raises(ValueError, match=r"record 700 \(key b'00000700'\) has 305 bytes, but `fields` has 304"):
            next(it)
    state = loader.state_dict()
    assert (state["epoch"], state["records"]) == (0, 640)
    loader.load_state_dict({**state, "records": 704})  # leaves the batch out
    for batch in loader:
        got += values_of(batch)
    assert got == [v for _, v in images.records[:640] + images.records[704:]]


def test_resume_at_100_places(images):
    r = random.Random(5)
    whole = [batch for epoch in range(4) for batch in expected(images, epoch, 48)]
    loader = lt.TensorLoader(images.path, fields=IMAGE, batch_size=48, shuffle=True, seed=SEED)
    for _ in range(100):
        stop = r.randrange(len(whole) - 1)
        loader.load_state_dict({**loader.state_dict(), "epoch": stop // 21, "records": min(stop % 21 * 48, 1000)})
        it = iter(loader)
        assert values_of(next(it)) == whole[stop]
        state = loader.state_dict()
        other = lt.TensorLoader(images.path, fields=IMAGE, batch_size=48, shuffle=True, seed=SEED, threads=1) if r.random() < .2 else loader
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert values_of(next(iter(other))) == whole[stop + 1]


def test_states_of_the_other_loader(images):
    data = lt.LmdbDataset(images.path)
    arguments = {"batch_size": 48, "shuffle": True, "seed": SEED}
    other, loader = lt.DataLoader(data, **arguments), lt.TensorLoader(images.path, fields=IMAGE, **arguments)
    it = iter(other)
    for _ in range(5):
        next(it)
    loader.load_state_dict(other.state_dict())
    assert values_of(next(iter(loader))) == next(it)
    other.load_state_dict(loader.state_dict())
    assert next(iter(other)) == expected(images, 0, 48)[6]
    with pytest.raises(ValueError, match="seed"):
        lt.TensorLoader(images.path, fields=IMAGE, batch_size=48, shuffle=True, seed=1).load_state_dict(other.state_dict())


@pytest.mark.parametrize("last", ["pad", "keep", "drop"])
@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("exclude", [(), [b"00000003", b"00000998", b"none"]])
def test_shares_are_those_of_the_datasets(images, last, ranks, window, exclude):
    for rank in range(ranks):
        more = {"shuffle": True, "seed": SEED, "window": window, "last": last, "rank": rank, "ranks": ranks, "exclude": exclude}
        data = lt.LmdbIterableDataset(images.path, **more)
        other = lt.DataLoader(data, batch_size=48, collate_fn=list)
        loader = lt.TensorLoader(images.path, fields=IMAGE, batch_size=48, **more)
        for _ in range(2):
            assert [values_of(b) for b in loader] == list(other)


def test_several_databases(images, tmp_path):
    more = conftest.Database(tmp_path / "more", [(b"__len__", b"?"), *image_records(333, 9)])
    paths, records = [images.path, more.path], [*images.records, *more.records[:-1]]
    assert more.records[-1][0] == b"__len__"
    order = [records[i][1] for i in lmdbio.shuffled(SEED, 0, 1333, 0, 1333).tolist()]
    for fields in (IMAGE, "views"):
        loader = lt.TensorLoader(paths, fields=fields, batch_size=64, shuffle=True, seed=SEED, exclude=b"__len__")
        got = [values_of(b) if fields is IMAGE else [bytes(v) for v in b] for b in loader]
        assert got == cut(order, 64)
    data = lt.LmdbIterableDataset(paths, shuffle=True, seed=SEED, exclude=b"__len__")
    assert list(lt.DataLoader(data, batch_size=64, collate_fn=list)) == cut(order, 64)


@pytest.mark.parametrize("prefixes", [b"__", [b"__", b"~"]])
def test_exclude_prefixes(images, tmp_path, prefixes):
    names = [b"__len__", b"__keys__", *([b"~1", b"~2"] if isinstance(prefixes, list) else [])]
    more = conftest.Database(tmp_path / "more", [*((n, b"?") for n in names), (b"length", b"?"), *images.records])
    shares = {"exclude": b"length", "exclude_prefixes": prefixes, "shuffle": True, "seed": SEED}
    for path in (more.path, [more.path]):
        loader = lt.TensorLoader(path, fields=IMAGE, batch_size=64, **shares)
        assert loader.samples == 1000 and [values_of(b) for b in loader] == expected(images, 0, 64)
        data = lt.LmdbIterableDataset(path, **shares)
        assert list(lt.DataLoader(data, batch_size=64, collate_fn=list, num_workers=2)) == expected(images, 0, 64)
        data = lt.LmdbDataset(path, exclude=b"length", exclude_prefixes=prefixes)
        assert len(data) == 1000 and data[b"__len__"] == b"?"
        assert list(lt.DataLoader(data, batch_size=64, shuffle=True, seed=SEED, collate_fn=list, num_workers=2)) == expected(images, 0, 64)
    with pytest.raises(ValueError, match="empty"):
        lt.TensorLoader(more.path, fields=IMAGE, exclude_prefixes=b"")


def test_epochs(images):
    loader = lt.TensorLoader(images.path, fields=IMAGE, batch_size=100, shuffle=True, seed=SEED)
    it = iter(loader)
    first = next(it)
    assert values_of(first) == expected(images, 0, 100)[0]
    again = iter(loader)  # the next epoch; ends the first iteration
    assert values_of(next(again)) == expected(images, 1, 100)[0]
    with pytest.raises(RuntimeError, match="a later iteration"):
        next(it)
    loader.set_epoch(5)
    with pytest.raises(RuntimeError, match="a later iteration"):
        next(again)
    assert loader.state_dict()["epoch"] == 5
    assert [values_of(b) for b in loader] == expected(images, 5, 100)
    loader.close()
    assert [values_of(b) for b in loader] == expected(images, 6, 100)
    assert values_of(first) == expected(images, 0, 100)[0]


def test_an_empty_database(tmp_path):
    path = conftest.Database(tmp_path / "db", []).path
    for fields in (IMAGE, "caffe.Datum", "flat", "views"):
        loader = lt.TensorLoader(path, fields=fields, shuffle=True)
        assert len(loader) == 0 and list(loader) == [] and list(loader) == []


def test_tensors_are_the_programs_own(big_images):
    """Batches that the program keeps do not change; batches that it drops give their memory to later ones."""
    fields = [("label", "<i4"), ("image", "u1", 150528)]
    loader = lt.TensorLoader(big_images.path, fields=fields, batch_size=20, shuffle=True, seed=SEED)
    kept = list(loader)
    kept[0]["image"].zero_()  # may be written to
    assert [values_of(b) for b in kept[1:]] == expected(big_images, 0, 20)[1:]
    one = kept[3]["image"][5]
    wanted = one.clone()
    del kept
    gc.collect()
    places = set()
    for _ in range(5):
        for batch in loader:
            places.add(batch["image"].data_ptr())
            for image in batch["image"][:1]:
                assert image.data_ptr() == batch["image"].data_ptr()
            del batch, image
    assert len(places) <= 8  # of 75 batches
    assert one.equal(wanted)
    loader.close()
    assert one.equal(wanted)


def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("fields", ["flat", "fixed"])
def test_memory_stays_constant(big_images, fields):
    loader = lt.TensorLoader(big_images.path, fields=("u1", 150532) if fields == "fixed" else "flat", batch_size=32, shuffle=True, seed=1)
    sizes = []
    for epoch in range(20):
        for batch in loader:
            del batch
        sizes.append(rss())
    assert max(sizes[3:]) - sizes[3] < 16 << 20  # an epoch has 45 MB, and a batch 5 MB


MEMORY = """
import sys, time
import torch
import lmdbio.torch

if {pinned}:  # without a GPU, PyTorch cannot pin memory
    empty = torch.empty
    torch.empty = lambda *size, pin_memory=False, **more: empty(*size, **more)
    torch.Tensor.is_pinned = lambda self: True
loader = lmdbio.torch.TensorLoader(sys.argv[1], fields={fields}, batch_size={batch}, shuffle=True, seed=7, threads=3, prefetch=8,
                                   pin_memory={pinned})
order, most, kept = [], 0, []
for epoch in range(2):
    for batch in loader:
        data, size = (batch["data"], 112640) if isinstance(batch, dict) else (batch.view(-1), batch.shape[1])
        order += [int(bytes(data[i:i + 8].numpy())) for i in range(0, len(data), size)]
        assembler = loader._prepared[0]._sources[0]._assembler
        while assembler._peak < {least}:
            time.sleep(0.01)  # until the threads have prepared as many batches as they may
        most = max(most, assembler._peak)
        if epoch == 1:  # as a program that keeps batches
            kept = (kept + [batch])[-30:]
    del batch
assert order == [i for epoch in range(2) for i in lmdbio.shuffled(7, epoch, 640, 0, 640).tolist()]
print(most)
"""


@pytest.mark.parametrize("fields, pinned, how", [("'flat'", False, "direct"), ("('u1', 112640)", False, "auto"), ("('u1', 112640)", True, "direct")])
def test_prepared_batches_count_in_the_memory_of_the_process(large, script, fields, pinned, how):
    """Fewer batches are prepared if memory is short.  A batch has 1.7 MiB."""
    def most(memory, batch=16, least=0):
        text = MEMORY.format(fields=fields, pinned=pinned, batch=batch, least=least)
        return int(script(text, large.path, LMDBIO_MEMORY=memory, LMDBIO_IO=how))

    assert most("256M", least=8 * 16 * 112640) <= 32 << 20  # eight batches, and unused buffers
    assert most("16M") <= 10 << 20  # half of it, and one batch
    # A reader and a loader with these batches need more than this memory together.
    assert most("8M", batch=60) <= 8 << 20


def test_two_loaders_share_the_memory(large, script):
    """A loader that has prepared its batches does not keep another one from its own."""
    script("""
import sys
import lmdbio.torch
loaders = [lmdbio.torch.TensorLoader(sys.argv[1], fields="flat", batch_size=20, prefetch=8, threads=2) for _ in range(4)]
its = [iter(loader) for loader in loaders]
for i in range(32):
    for it in its:
        assert [int(bytes(v[:8].numpy())) for v in next(it)["data"].view(20, -1)] == list(range(20 * i, 20 * i + 20))
""", large.path, LMDBIO_MEMORY="32M", LMDBIO_IO="direct")


def test_threads_that_cannot_be_started(large, script):
    script("""
import resource, sys
import lmdbio.torch
loader = lmdbio.torch.TensorLoader(sys.argv[1], fields="flat", batch_size=20, threads=1024)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # the stacks of the threads take 8 GiB
try:
    next(iter(loader))
except OSError as error:
    assert sys.argv[1] in str(error) and "1024 threads cannot be started" in str(error), error
else:
    raise AssertionError("started")
""", large.path)


def test_close_waits_for_functions_of_the_program(mixed):
    begun, may_end, ended, seen = threading.Event(), threading.Event(), [], []

    def decode(record):
        if record.ordinal >= 64:
            begun.set()
            assert may_end.wait(60)
            ended.append(record.ordinal)
        return record.ordinal

    def close():
        loader.close()
        seen.append(len(ended))

    loader = lt.TensorLoader(mixed.path, decode=decode, batch_size=64, threads=2, prefetch=1)
    assert next(iter(loader)).tolist() == list(range(64))
    assert begun.wait(60)
    closes = threading.Thread(target=close)
    closes.start()
    while loader._prepared:  # close() has not begun
        threading.Event().wait(0.01)
    assert not seen
    may_end.set()
    closes.join()
    assert seen[0] == len(ended) > 0 and not any(t.name.startswith("lmdbio-decode") for t in threading.enumerate())


def test_a_function_of_the_program_closes_the_loader(mixed):
    def decode(record):
        loader.close()
        return record.ordinal

    loader = lt.TensorLoader(mixed.path, decode=decode, batch_size=64, threads=2)
    # RuntimeError: the first batch was complete before the loader was closed.
    with pytest.raises((lmdbio.CancelledError, RuntimeError), match=r"was closed|close\(\) was called"):
        list(loader)


def test_reads_fail(large, slow, script):
    """Batches before the failure are whole; the failed one is read as soon as the storage works again."""
    fs = slow(large)
    fs.set(fail_from=200, fail_errno="EIO")
    out = script("""
import sys, time
import lmdbio.torch
loader = lmdbio.torch.TensorLoader(sys.argv[1], fields=("u1", 112640), batch_size=16, shuffle=True, seed=7, memory=16 << 20, threads=2)
keys, failed, it = [], 0, iter(loader)
while True:
    try:
        keys += [int(bytes(v[:8].numpy())) for v in next(it)]
    except OSError as error:
        assert error.errno == 5 and sys.argv[1] in str(error), error
        failed += 1
        if failed == 3:
            print(len(keys), flush=True)
            sys.stdin.readline()
    except StopIteration:
        break
print(keys)
""", fs.path, LMDBIO_IO="direct", talk=lambda process: (process.stdout.readline(), fs.set(fail_from=0)))
    assert out.splitlines()[-1] == str(epoch_order(0, 640))


@pytest.mark.parametrize("decodes", [False, True])
def test_a_forked_child(images, decodes):
    how = {"decode": lambda r: {"label": 0, "image": torch.zeros(300)}} if decodes else {"fields": IMAGE}
    loader = lt.TensorLoader(images.path, batch_size=10, threads=3, **how)
    it = iter(loader)
    batch = next(it)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = decodes or values_of(batch) == expected_first
            try:
                next(it)
            except RuntimeError as error:
                status = 0 if same and "made by another process" in str(error) else 2
            del it, loader, batch
            gc.collect()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert decodes or values_of(next(it)) == [v for _, v in images.records[10:20]]


expected_first = [v for _, v in image_records(1000)[:10]]

PROGRAM = """
import sys
import lmdbio.torch
loader = lmdbio.torch.TensorLoader(sys.argv[1], fields={}, batch_size=32, shuffle=True, threads=3, prefetch=4)
for i, batch in enumerate(loader):
    if i == 3:
        {}
"""


@pytest.mark.parametrize("fields", ["'flat'", "'views'"])
@pytest.mark.parametrize("end", ["break", "sys.exit()", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"])
def test_programs_that_end_early(large, script, fields, end):
    if "SIGINT" in end:
        end = f"try:\n            {end}; [None for batch in loader]\n        except KeyboardInterrupt: break"
    script(PROGRAM.format(fields, end), large.path)


def test_an_interrupt_ends_a_wait(large, slow, script):
    fs = slow(large, delay_us=2_000_000)
    script("""
import os, signal, sys, threading, time
import lmdbio.torch
loader = lmdbio.torch.TensorLoader(sys.argv[1], fields="flat", batch_size=32)
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    for batch in loader: pass
except KeyboardInterrupt:
    print(time.monotonic() - begin)
""", fs.path)


def test_ranks_of_torch_distributed_read_each_byte_once(large, slow, script, tmp_path):
    """8 processes on a node: each takes its share of the ranks, and the storage reads each byte once."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    fs = slow(large)
    script("""
import os, sys
import torch.distributed as dist
import torch.multiprocessing
import lmdbio.torch

def rank(r, path, file):
    dist.init_process_group("gloo", init_method="file://" + file, rank=r, world_size=8)
    loader = lmdbio.torch.TensorLoader(path, fields=("u1", 112640), batch_size=10, shuffle=True, seed=7, threads=1)
    keys = [bytes(v[:8].numpy()) for batch in loader for v in batch]
    assert len(loader) == 8 and len(keys) == 80, (len(loader), len(keys))
    all_keys = [None] * 8
    dist.all_gather_object(all_keys, keys)
    assert sorted(k for some in all_keys for k in some) == [b"%08d" % i for i in range(640)]

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, sys.argv[1:3], 8)
""", fs.path, tmp_path / "meeting", OMP_NUM_THREADS="1", timeout=240)
    size = os.path.getsize(os.path.join(large.path, "data.mdb"))
    assert 0.99 * size <= fs.counters()["read"]["bytes"] <= 1.06 * size, (fs.counters(), size)
