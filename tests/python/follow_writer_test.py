"""lmdbio.Follow beside writers that overwrite records, commit all the time, or are killed."""
import os
import threading

import pytest
from follow_test import Writer, put_some, writer_process  # noqa: F401  pylint: disable=unused-import

import lmdbio


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
