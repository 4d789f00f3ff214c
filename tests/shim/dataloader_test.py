"""Data loaders over python3-lmdb whose workers use what their parent opened; torch's where there is one.

    dataloader_test.py CONFIG [--table] [unittest arguments]     --table: shows what stock does too
"""
import os
import subprocess
import sys
import unittest

import shimtest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dataloader_script.py")
PYTHON = "/usr/bin/python3"
TABLE = "--table" in sys.argv
if TABLE:
    sys.argv.remove("--table")

FORK = [f"{variant},fork,{workers},{persistent},{lock}" for variant in ("item", "kept")
        for workers in (0, 2, 8) for persistent in ((0, 1) if workers else (0,)) for lock in (0, 1)]
# Each worker starts an interpreter: fewer of them.
SPAWN = [f"reopen,spawn,{workers},{persistent},1" for workers, persistent in ((0, 0), (2, 0), (2, 1), (8, 1))]
# What users report: an environment cannot be pickled.  (Not of ours to change.)
UNPICKLABLE = "opened,spawn,2,0,1"


def has(module):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    return subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


class DataLoader(shimtest.Case):
    def setUp(self):
        super().setUp()
        if not has("lmdb"):
            self.skipTest("no python3-lmdb")
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("a sanitizer's runtime cannot be loaded into an interpreter")
        self.db = self.fresh()
        made = self.start("stock", "make")
        self.assertEqual(made.returncode, 0, made.out)

    def start(self, mode, *argv, timeout=250):
        env = shimtest.environment(mode, {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"})
        # A process group of their own: workers that hang end with their parent.
        process = subprocess.Popen([PYTHON, "-B", SCRIPT, self.db, *argv], env=env, text=True,
                                   start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            out += "did not end\n"
        return shimtest.Result(process.returncode, out, err, [])

    def check(self, kind):
        for mode, cases in (("preload", FORK + SPAWN), ("soname", FORK[::4] + SPAWN[:2])):
            with self.subTest(mode=mode):
                got = self.start(mode, kind, *cases)
                self.assertEqual(got.out.splitlines(), [f"{case} right" for case in cases], got.err)
                self.assertEqual(got.returncode, 0, got.err)
                self.assertNotIn("lmdbio:", got.err)
                got = self.start(mode, kind, UNPICKLABLE)
                self.assertIn("cannot pickle 'Environment' object", got.out)
                if TABLE:
                    print(f"\n{kind}, {mode}: {len(cases)} cases right; {got.out.strip()}",
                          file=sys.stderr)
        if TABLE:
            for case in FORK + SPAWN + [UNPICKLABLE]:
                got = self.start("stock", kind, case, timeout=60)
                last = (got.err.strip().splitlines() or [""])[-1]
                said = got.out.strip() or f"{case} status {got.returncode}: {last}"
                print(f"{kind}, stock: {said}", file=sys.stderr)

    def test_multiprocessing(self):
        self.check("plain")

    @unittest.skipUnless(has("torch"), "no python3-torch")
    def test_torch(self):
        self.check("torch")


if __name__ == "__main__":
    shimtest.main()
