"""Unmodified programs of Intel-Caffe's shape: two layers open one path at the same time, tests take other numbers of
values than training, readers are interrupted, and shuffled layers read values through pointers, outside of LMDB's calls.

    caffe_layers_test.py CONFIG [--seeds N] [--first N] [unittest arguments]

The program is caffe_layers.cc.  A seed must print the same as with stock LMDB.
"""
import os
import shutil
import subprocess
import sys
import tempfile

import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402

SEEDS, FIRST = shimtest.option("--seeds", 12), shimtest.option("--first", 1)
# Records and largest value; the second one is larger than the memory that LMDBIO may use.
DATABASES = {"small": (700, 3000), "large": (400, 200000)}
# Of a layer alone: of values so large the page tables tell whether a walk reads them.
LATE = (250, 700000)
SETTINGS = [{}, {"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"}, {"LMDBIO_ENGINE": "threads", "LMDBIO_NODE": "off"},
            {"LMDBIO_NODE": "chunks", "LMDBIO_MEMORY": "16M"}]


class CaffeLayers(shimtest.Case):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.mkdtemp(prefix="shimtest-layers-")
        cls.addClassCleanup(shutil.rmtree, cls.top, ignore_errors=True)
        for name, (records, size) in (DATABASES | {"late": LATE}).items():
            os.mkdir(os.path.join(cls.top, name))
            subprocess.run([shimtest.program("caffe_layers"), "make", os.path.join(cls.top, name), str(records), str(size)],
                           env=shimtest.environment("stock"), check=True)

    def check(self, seed, path, settings, modes):
        stock = shimtest.run("stock", ["caffe_layers", "run", path, str(seed), "serial"])
        self.assertEqual((stock.returncode, stock.err), (0, ""))
        for mode in modes:
            with self.subTest(seed=seed, mode=mode, **settings):
                ours = shimtest.run(mode, ["caffe_layers", "run", path, str(seed)], settings)
                self.check_same(stock, ours)
                self.assertEqual(ours.err, "")
                self.assertGreater(ours.calls_ours(), 0)

    def test_in_memory(self):
        for seed in range(FIRST, FIRST + SEEDS):
            name, modes = sorted(DATABASES)[seed % 2], shimtest.modes()
            self.check(seed, os.path.join(self.top, name), {}, [modes[seed // 2 % len(modes)]])

    # On new mounts, so nothing is in the page cache.
    def test_cold(self):
        for seed in range(FIRST, FIRST + SEEDS):
            name, settings = sorted(DATABASES)[seed % 2], SETTINGS[seed // 2 % len(SETTINGS)]
            stock = shimtest.run("stock", ["caffe_layers", "run", os.path.join(self.top, name), str(seed), "serial"])
            try:
                with slowfs.SlowFs(shimtest.CONFIG["slowfs"], os.path.join(self.top, name), delay_us=200) as fs:
                    with self.subTest(seed=seed, **settings):
                        ours = shimtest.run(shimtest.modes()[0], ["caffe_layers", "run", fs.path, str(seed)], settings)
                        self.check_same(stock, ours)
                        self.assertEqual(ours.err, "")
            except slowfs.Missing as why:
                self.skipTest(str(why))

    # Values are read through pointers, outside of LMDB's calls: if many are, all of the file is loaded.
    def test_values_that_are_read_late(self):
        db, values = os.path.join(self.top, "late"), LATE[0]
        for settings in ({}, {"LMDBIO_ENGINE": "threads"}):
            for taken, warm, loads in ((values, False, 1), (values, True, 0), (1, False, 0)):
                with self.subTest(taken=taken, warm=warm, **settings):
                    stock = shimtest.run("stock", ["caffe_layers", "shuffled", db, str(taken)])
                    try:
                        with slowfs.SlowFs(shimtest.CONFIG["slowfs"], db, delay_us=3000) as fs:
                            if warm:
                                with open(os.path.join(fs.path, "data.mdb"), "rb") as f:
                                    while f.read(1 << 20):
                                        pass
                            ours = shimtest.run(shimtest.modes()[0], ["caffe_layers", "shuffled", fs.path, str(taken)], settings)
                    except slowfs.Missing as why:
                        self.skipTest(str(why))
                    self.check_same(stock, ours)
                    # Sanitizers change how a walk looks, and what memory is touched.
                    if not shimtest.CONFIG["sanitize"]:
                        self.assertEqual([e["io"].get("loads_begun", 0) for e in ours.environments()], [loads])


if __name__ == "__main__":
    shimtest.main()
