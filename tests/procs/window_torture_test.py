"""window_torture.cc on a local file, and on one behind a slow file system.

    window_torture_test.py CONFIG [--seconds N] [--mib N] [--dir DIR] [unittest arguments]

--seconds 1800 is a campaign.  --dir: where files go, on a file system with direct reads and writes.
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim"), os.path.join(HERE, "..", "support")]
import shimtest  # noqa: E402
import slowfs  # noqa: E402


SECONDS = shimtest.option("--seconds", 3.0)
MIB = shimtest.option("--mib", 64)
DIR = shimtest.option("--dir", "")


class WindowTorture(shimtest.Case):
    def setUp(self):
        super().setUp()
        self.program = shimtest.CONFIG["torture"]
        near = os.path.dirname(self.program)  # a disk, more likely than where temporary files are
        self.scratch = tempfile.mkdtemp(prefix="torture-", dir=DIR or (near if os.access(near, os.W_OK) else self.dir))
        self.addCleanup(subprocess.run, ["/bin/rm", "-rf", self.scratch])
        self.assertEqual(subprocess.run([self.program, "make", f"{self.scratch}/file", str(MIB)]).returncode, 0)

    def torture(self, path, least):
        done = subprocess.run([self.program, "run", path, str(SECONDS), self.scratch], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 + 2 * SECONDS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        words = done.stdout.split()
        told = dict(zip(words[::2], map(int, words[1::2])))
        print(f"\n{SECONDS} s: {done.stdout.strip()} {done.stderr}", file=sys.stderr)
        self.assertEqual((told["wrong"], told["refused"]), (0, 0))
        for name, n in least.items():
            self.assertGreaterEqual(told[name], n, name)
        return told

    def test_local(self):
        self.torture(f"{self.scratch}/file", {"reads": 100_000, "publishes": 20, "reclaims": 20, "forks": 2,
                                              "piped": 20})

    def test_slow_file_system(self):
        try:
            with slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.scratch, delay_us=200) as fs:
                self.torture(f"{fs.path}/file", {"reads": 10_000, "publishes": 5, "reclaims": 5, "forks": 1,
                                                 "piped": 5})
        except slowfs.Missing as why:
            self.skipTest(str(why))


if __name__ == "__main__":
    shimtest.main()
