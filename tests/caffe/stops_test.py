"""Processes that read as Intel-Caffe does, on one database, some of which are stopped at a random time: the others read what
they would have read, and after the next open and `lmdbio ps --clean` nothing of the stopped ones is left.

    stops_test.py CONFIG BACKEND_PROGRAM [--starts N] [--seed N] [unittest arguments]

The program is tests/shim/caffe_layers.cc: by LMDB with the library preloaded, and by Caffe's backend.
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", folder) for folder in ("shim", "support", "procs")]
import shimtest  # noqa: E402

BACKEND = sys.argv.pop(2)
STARTS, SEED = shimtest.option("--starts", 16), shimtest.option("--seed", 1)
from node_test import OWN_SHM, chunk_files, lmdbio, tables  # noqa: E402  (takes an IPC namespace and /dev/shm of its own)
import slowfs  # noqa: E402

PROCESSES = 4
RECORDS, SIZE = 300, 200000
# A process that is stopped, or reads on after others were, does not take longer than this; on a loaded machine neither.
MOST_S = 60


class Stops(shimtest.Case):
    def setUp(self):
        super().setUp()
        if not OWN_SHM:
            self.skipTest("no /dev/shm of its own can be had here")
        self.top = tempfile.mkdtemp(prefix="shimtest-stops-")
        self.addCleanup(shutil.rmtree, self.top, ignore_errors=True)
        # Stock LMDB has a copy of its own: on a mount and below it, locks of the lock file do not meet.
        for name in ("ours", "stock"):
            os.mkdir(os.path.join(self.top, name))
            subprocess.run([shimtest.program("caffe_layers"), "make", os.path.join(self.top, name), str(RECORDS), str(SIZE)],
                           env=shimtest.environment("stock"), check=True)
        self.processes = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.communicate()

    def start(self, backend, path, seed, settings):
        program = BACKEND if backend else shimtest.program("caffe_layers")
        # The backend is linked with the library.
        env = shimtest.environment("stock" if backend or shimtest.CONFIG["sanitize"] else "preload", settings)
        p = subprocess.Popen([program, "run", path, str(seed)], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        p.seed = seed
        self.processes.append(p)
        return p

    def check(self, p):
        out, err = p.communicate(timeout=MOST_S)
        self.assertEqual((p.returncode, err), (0, ""))
        stock = shimtest.run("stock", ["caffe_layers", "run", os.path.join(self.top, "stock"), str(p.seed), "serial"])
        self.assertEqual(out, stock.out, f"seed {p.seed}")

    def test_at_random(self):
        rng, longest = random.Random(SEED), 0.0
        try:
            with slowfs.SlowFs(shimtest.CONFIG["slowfs"], os.path.join(self.top, "ours"), delay_us=1000, max_background=256) as fs:
                for i in range(STARTS):
                    settings = [{}, {"LMDBIO_NODE": "chunks"}, {"LMDBIO_IO": "direct"}][i // 2 % 3]
                    running = [self.start(i % 2 == 0, fs.path, rng.randrange(1 << 20), settings) for _ in range(PROCESSES)]
                    time.sleep(rng.random() * rng.choice([0.05, 0.3, 1.0]))
                    how = rng.choice([signal.SIGTERM, signal.SIGKILL])
                    stopped = rng.sample(running, rng.randint(1, PROCESSES))
                    with self.subTest(start=i, backend=i % 2 == 0, how=how.name, stopped=len(stopped), **settings):
                        begun = time.monotonic()
                        for p in stopped:
                            p.send_signal(how)
                        for p in stopped:
                            p.communicate(timeout=MOST_S)
                            self.assertIn(p.returncode, (-how, 0))  # it may have ended before
                        for p in running:
                            if p not in stopped:
                                self.check(p)
                        longest = max(longest, time.monotonic() - begun)
                        self.check(self.start(i % 2 == 0, fs.path, rng.randrange(1 << 20), settings))
                        lmdbio("ps", "--clean")
                        self.assertEqual(tables(), [])
                        self.assertEqual(chunk_files(), [])
        except slowfs.Missing as why:
            self.skipTest(str(why))
        print(f"  from the signal to the end of the others: at most {longest:.1f} s", flush=True)


if __name__ == "__main__":
    shimtest.main()
