"""The workers of data loaders on a slow file system: together they read each byte once, and the next epoch's find it."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim"), os.path.join(HERE, "..", "support")]
import namespaces  # noqa: E402
import shimtest  # noqa: E402
import slowfs  # noqa: E402

# For SharedMemory, which fills it.
OWN_SHM = namespaces.own_ipc_and_shm()
SCRIPT, PYTHON = os.path.join(HERE, "loader_script.py"), "/usr/bin/python3"
RECORDS, VALUE, BATCH = 600, 110 << 10, 8


class Loader(shimtest.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("a sanitizer's runtime cannot be loaded into an interpreter")
        if subprocess.run([PYTHON, "-c", "import lmdb"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no python3-lmdb")
        self.db = self.fresh()
        subprocess.run([PYTHON, "-B", SCRIPT, self.db, "make", str(RECORDS), str(VALUE)], check=True,
                       env=shimtest.environment("stock"))

    def read(self, start, workers, persistent, order, where="worker", epochs=2, kill=None, extra=None):
        """What each epoch reads from storage, as parts of the file."""
        with slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db, max_background=256, delay_us=1000) as fs:
            argv = [PYTHON, "-B", SCRIPT, fs.path, "read", start, str(workers), str(persistent), order, where, str(epochs)]
            p = subprocess.Popen(argv + ([str(kill)] if kill is not None else []),
                                 env=shimtest.environment("preload", extra or {}), stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            try:
                storage, size = [], os.path.getsize(os.path.join(self.db, "data.mdb"))
                for n in range(epochs):
                    line = p.stdout.readline()
                    # The first worker's share is not read to its end.
                    lost = len(range(0, RECORDS, BATCH * workers)) * BATCH if kill is not None and n == 0 else 0
                    self.assertEqual(line, f"epoch {n}: {RECORDS - lost} records\n",
                                     "" if line else p.communicate(timeout=60)[1])
                    storage.append(fs.counters()["read"]["bytes"] / size)
                    fs.set(reset=1)
                    p.stdin.write("\n")
                    p.stdin.flush()
                out, err = p.communicate(timeout=60)
                self.assertEqual((p.returncode, out), (0, ""), err)
            finally:
                if p.poll() is None:
                    os.killpg(p.pid, 9)
                    p.communicate()
        return storage

    def check(self, *args, first=1.1, **options):
        with self.subTest(args=args, **options):
            storage = self.read(*args, **options)
            self.assertLessEqual(storage[0], first)
            for later in storage[1:]:
                self.assertLessEqual(later, 0.02)

    def test_shuffled(self):
        for start, workers, persistent, where in (("fork", 2, 0, "worker"), ("fork", 8, 0, "parent"), ("fork", 8, 1, "worker"),
                                                  ("spawn", 4, 0, "worker"), ("forkserver", 4, 1, "worker")):
            self.check(start, workers, persistent, "shuffled", where)

    def test_in_order(self):
        for start, workers, persistent, where in (("fork", 2, 0, "parent"), ("fork", 8, 0, "worker"), ("fork", 8, 1, "parent"),
                                                  ("spawn", 4, 1, "worker")):
            self.check(start, workers, persistent, "ordered", where)

    # Killed in the midst of what it reads for all: the others go on, and the next epoch finds what is there.
    def test_one_is_killed(self):
        for order in ("shuffled", "ordered"):
            for kill in (0, 1, 6):
                with self.subTest(order=order, kill=kill):
                    storage = self.read("fork", 4, 0, order, kill=kill)
                    self.assertLessEqual(sum(storage), 1.3)

    # PyTorch's workers pass batches through /dev/shm, and die of SIGBUS where it is full.
    def test_shared_memory(self):
        if not OWN_SHM:
            self.skipTest("no /dev/shm of its own can be had here")
        if subprocess.run([PYTHON, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no python3-torch")
        batch, records = 32, 1600  # 3.4 MiB; four workers have at most 27 MiB on their way
        subprocess.run([PYTHON, "-B", SCRIPT, self.fresh(), "make", str(records), str(VALUE)], check=True,
                       env=shimtest.environment("stock"))
        for size in ("64m", "1g"):
            with self.subTest(size=size):
                self.assertTrue(namespaces.mount_shm(options=f"mode=1777,size={size}".encode()))
                try:
                    with slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.db, max_background=256, delay_us=1000) as fs:
                        done = subprocess.run([PYTHON, "-B", SCRIPT, fs.path, "torch", "4", str(batch)], stdin=subprocess.DEVNULL,
                                              env=shimtest.environment("preload", {"LMDBIO_NODE": "chunks"}), capture_output=True,
                                              text=True, timeout=100, check=False)
                    self.assertEqual((done.returncode, done.stdout), (0, f"{records} records\n"), done.stderr)
                finally:
                    namespaces.unmount_shm()


if __name__ == "__main__":
    shimtest.main()
