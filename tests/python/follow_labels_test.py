"""Label functions of lmdbio.Follow: exceptions, garbage collection, daemon threads."""
import gc
import weakref

import pytest
from follow_test import put_some, writer_process  # noqa: F401  pylint: disable=unused-import

import lmdbio


def test_a_bound_method_is_freed(writer, tmp_path):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)

    class Task:
        def __init__(self):
            self.follow = lmdbio.Follow(path, fresh=1, buffer="class", label=self.label)

        def label(self, key, value):
            assert value == key * 8
            return 2**64 - 1

    task = weakref.ref(Task())
    assert gc.is_tracked(task().follow)
    gc.collect()
    assert task() is None
    lmdbio.Reader(path).close()  # the environment is closed


@pytest.mark.parametrize("label, error", [(-1, OverflowError), (2**64, OverflowError), ("1", TypeError), (None, TypeError)])
def test_what_is_not_a_label(writer, tmp_path, label, error):
    path = str(tmp_path / "db")
    put_some(writer, path, 3)
    with pytest.raises(error):
        lmdbio.Follow(path, fresh=1, buffer="class", label=lambda k, v: label)


@pytest.mark.parametrize("value", ("7", "numpy.int64(7)", "Late()"))
def test_a_daemon_thread_at_exit(writer, tmp_path, script, value):
    """The interpreter ends while a label function runs."""
    path = str(tmp_path / "db")
    put_some(writer, path, 100)
    script("""
import sys, threading, numpy, lmdbio
running = threading.Event()
class Late:
    def __index__(self): return spin()
def spin():
    for _ in range(100000): pass
    return 7
def label(key, value):
    running.set()
    spin()
    return VALUE
def work():
    while True:
        with lmdbio.Follow(sys.argv[1], fresh=8, buffer="class", label=label, on_empty="stop") as follow:
            for _ in follow: pass
threading.Thread(target=work, daemon=True).start()
running.wait()
""".replace("VALUE", value), path)
