"""lmdbio.Follow waits for commits, ends, and fails."""
import os
import signal
import threading

import conftest
import pytest
from follow_test import pairs, put_some, writer_process  # noqa: F401  pylint: disable=unused-import

import lmdbio


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
    ({"fresh": 1, "lag": 0}, "lag"), ({"fresh": 1, "lag": 65537}, "lag must be at most 65536"), ({"fresh": 1, "capacity": 0}, "capacity"), ({"fresh": 1, "renew_batches": 0}, "renew_batches"),
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
