"""dlclose(3) of a module that leaves environments, streams and readers open: LMDBIO stays, as its threads need it."""
import os

import shimtest

LEFT = {"w": "a walk", "t": "prefetched keys", "s": "a stream", "i": "a reader"}


class Leaving(shimtest.Case):
    def host(self, what, extra=None):
        argv = ["leaving_host", shimtest.CONFIG["modules"]["leaving"], self.path, what]
        return shimtest.run("stock", argv, extra, timeout=100)  # the module brings the library

    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("no sanitizer: its runtime must come first, and what is left open is a leak")
        self.path = self.fresh()
        made = self.host("make")
        self.assertEqual(made.returncode, 0, made.out + made.err)
        self.assertTrue(os.path.getsize(self.path + "/data.mdb"))

    def test_library_stays(self):
        for what, name in LEFT.items():
            for engine in ("uring", "threads", "pread"):
                with self.subTest(left=name, engine=engine):
                    got = self.host(what, {"LMDBIO_ENGINE": engine, "LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"})
                    self.assertEqual((got.returncode, got.out, got.err), (0, "LMDBIO mapped: 1\n" * 3 + "threads: some\n", ""))


if __name__ == "__main__":
    shimtest.main()
