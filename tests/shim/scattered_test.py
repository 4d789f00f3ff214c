"""Walks over databases whose neighbours lie far apart in the file: right bytes, and nothing is read twice.

    scattered_test.py CONFIG [unittest arguments]

The program is cold.c.  Bytes are counted, by the library and by the file system or, of local files, by the kernel; nothing
is timed.  The library counts a page twice that the program's thread and the I/O thread ask for at the same time, and that
the kernel reads once.
"""
import os
import resource
import subprocess

import cold_test
import shimtest
import slowfs


class Scattered(cold_test.Walks):
    # Values, in how many commits they were written again.
    FILES = (("known 900 110000 0", 40), ("known 400 300000 0", 20), ("known 8000 6000 0", 30))

    def scattered(self, known, parts):
        if (known, f"scattered {parts}") in self.made:
            return self.made[known, f"scattered {parts}"]
        path = self.db(known, f"scattered {parts}")
        done = subprocess.run([shimtest.program("cold"), known, f"scatter {path} {parts}"], stdout=subprocess.PIPE,
                              text=True, env=shimtest.environment("stock"))
        self.assertEqual(done.returncode, 0, done.stdout)
        return path

    def check(self, variables, slow):
        for known, parts in self.FILES:
            source = self.scattered(known, parts)
            size = os.path.getsize(source + "/data.mdb")
            for walk in ("walk", "back"):
                with self.subTest(known=known, walk=walk, **variables):
                    # The page cache of a mount is its own.
                    fs = cold_test.missing_part(self, lambda: slowfs.SlowFs(
                        shimtest.CONFIG["slowfs"], source, delay_us=200).__enter__()) if slow else None
                    try:
                        path = fs.path if slow else source
                        if slow:
                            fs.set(reset=1)
                        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
                        got = self.run_cold([f"evict {path}", f"open {path}", "begin 0", f"{walk} 0", "end 0", "close 0"],
                                            variables, known=known)
                        blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before
                        stored = fs.counters()["read"]["bytes"] if slow else blocks * 512
                    finally:
                        if slow:
                            fs.__exit__()
                    self.assertEqual(got[walk], [f"right {known.split()[1]}"], got.out + got.err)
                    io = got.io()[0]
                    self.assertEqual(io["read_path"], "buffered" if variables["LMDBIO_IO"] == "auto" else "direct")
                    self.assertLessEqual(io["read"], 1.5 * size, io)
                    self.assertLessEqual(stored, 1.1 * size, io)

    def test_local(self):
        for memory in ("16M", "64M", "1G"):
            self.check({"LMDBIO_IO": "direct", "LMDBIO_MEMORY": memory}, slow=False)

    def test_far_away(self):
        self.check({"LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"}, slow=True)
        self.check({"LMDBIO_IO": "auto", "LMDBIO_MEMORY": "1G"}, slow=True)


if __name__ == "__main__":
    shimtest.main()
