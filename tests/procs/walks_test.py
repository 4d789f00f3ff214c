"""Threads that walk in all ways, within the memory of eight chunks, while another process commits."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "shim"))
import shimtest  # noqa: E402

SECONDS, THREADS = 12, 6


class Walks(shimtest.Case):
    def check(self, mode, io, forks=1, seconds=SECONDS, threads=THREADS):
        db = self.fresh()
        made = shimtest.run("stock", ["walks", "make", db])
        self.assertEqual(made.returncode, 0, made.err)
        writer = subprocess.Popen([shimtest.program("walks"), "write", db], env=shimtest.environment("stock"),
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            self.assertEqual(writer.stdout.readline(), "ready\n")
            # Children that have threads are beyond the sanitizers' runtimes: they hold locks over a fork.
            forks = 0 if shimtest.CONFIG["sanitize"] else forks
            done = shimtest.run(mode, ["walks", "read", db, str(seconds), str(threads), str(forks)],
                                {"LMDBIO_IO": io, "LMDBIO_MEMORY": "16M"}, timeout=250)
            self.assertEqual(done.returncode, 0, done.out + done.err[-4000:])
            self.assertEqual(done.err, "")
            self.assertGreater(int(done.out.split()[1]), 1000)
            out, _ = writer.communicate(timeout=60)  # closes its standard input
            self.assertEqual(writer.returncode, 0, out)
            print(f"\n{mode} {io}: {done.out.strip()}; {out.strip()}", file=sys.stderr)
        finally:
            if writer.poll() is None:
                writer.kill()
            writer.communicate()
        if io == "direct":
            ways = [e["io"] for e in done.environments() if "io" in e]
            self.assertTrue(ways)
            self.assertGreater(max(w.get("reclaimed", 0) for w in ways), 100)
            self.assertLessEqual(max(w.get("most_resident", 0) * w.get("chunk_bytes", 0) for w in ways), 16 << 20)

    def test_direct(self):
        for mode in shimtest.modes()[::3]:  # preload and soname
            with self.subTest(mode=mode):
                self.check(mode, "direct")

    def test_buffered(self):
        self.check(shimtest.modes()[0], "buffered")


if __name__ == "__main__":
    shimtest.main()
