"""What the shim and procs tests share: where things are, the ways to run a program, statistics.

    NAME_test.py CONFIG [unittest arguments]     CONFIG: written by CMake into the build directory
    SHIMTEST_KEEP="LMDBIO_IO LMDBIO_MEMORY" ..   those of the environment are the programs' as well

A test that skips all of its cases exits with 77.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CONFIG = {}

# Ways to run one and the same program.
OURS = ["preload", "linked", "asneeded", "soname"]


def option(name, default):
    """The value of a campaign's option, taken out of sys.argv before unittest sees it; of default's type."""
    if name not in sys.argv:
        return default
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return type(default)(value)


def modes():
    """Returns the ways to run a program.  With sanitizers only one: all of them run the same code, each process takes long to
    start, and the address sanitizer's runtime must load before a preloaded library."""
    return ["linked"] if CONFIG["sanitize"] else OURS


class Result:
    def __init__(self, returncode, out, err, stats):
        self.returncode = returncode
        self.out = out
        self.err = err
        self.stats = stats  # one object per line written

    def environments(self):
        return [e for line in self.stats for e in line.get("environments", [])]

    def calls_ours(self):
        """Calls of our own engine, all environments: the largest of what was written for each path."""
        most = {}
        for e in self.environments():
            if e.get("ours"):
                path = e.get("path", "")
                most[path] = max(most.get(path, 0), count(e.get("calls")))
        return sum(most.values())


def count(calls):
    if isinstance(calls, dict):
        return sum(count(c) for c in calls.values())
    return calls if isinstance(calls, int) else 0


def parse_stats(text):
    lines = []
    for line in text.splitlines():
        at = line.find("{")
        if at >= 0:
            lines.append(json.loads(line[at:]))
    return lines


def read_stats(path):
    """Of a file that must be there."""
    if not os.path.exists(path):
        raise AssertionError("no statistics were written")
    with open(path, encoding="utf-8") as f:
        return parse_stats(f.read())


def program(name, mode="stock"):
    return CONFIG["programs"][name + {"linked": "_linked", "asneeded": "_asneeded"}.get(mode, "")]


def skip_under_tsan(case, why):
    if CONFIG["sanitize"] == "thread":
        case.skipTest("ThreadSanitizer " + why)


def status_of_a_signal(signal):
    """How a program ends that dies by a signal of its own making: sanitizers turn it into a report and an exit."""
    return {"": -signal, "thread": 66}.get(CONFIG["sanitize"], 1)


# A forked child keeps what belonged to its parent's real environment: a leak where it ends by exit().
ignore_leaks = False


def environment(mode, extra=None):
    kept = os.environ.get("SHIMTEST_KEEP", "").split()
    env = {k: v for k, v in os.environ.items()
           if k in kept or not k.startswith(("LMDBIO_", "LD_", "GETENV_", "FORWARD_"))}
    env["LC_ALL"] = "C"
    if mode in ("preload", "disabled") and not CONFIG["sanitize"]:
        env["LD_PRELOAD"] = CONFIG["lib"]
    elif mode == "soname" or (mode == "disabled" and CONFIG["sanitize"]):
        env["LD_LIBRARY_PATH"] = os.path.dirname(CONFIG["soname"])
    if mode == "disabled":
        env["LMDBIO_DISABLE"] = "1"
    if ignore_leaks:
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    for key, value in (extra or {}).items():
        if key == "LD_PRELOAD" and key in env:
            value = value + ":" + env[key]
        if key == "LD_LIBRARY_PATH" and key in env:
            value = env[key] + ":" + value
        env[key] = value
    return env


def run(mode, argv, extra=None, stats=True, timeout=100):
    """Runs argv (the first element: a program's name here, or a path) and collects its statistics."""
    argv = list(argv)
    if argv[0] in CONFIG["programs"]:
        argv[0] = program(argv[0], mode)
    with tempfile.TemporaryDirectory(prefix="shimtest-") as scratch:
        env = environment(mode, extra)
        file = os.path.join(scratch, "stats")
        if stats and mode != "stock":
            env.setdefault("LMDBIO_STATS", file)
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout)
        lines = read_stats(file) if os.path.exists(file) else []
        return Result(done.returncode, done.stdout.decode(errors="backslashreplace"),
                      done.stderr.decode(errors="backslashreplace"), lines)


def difference(a, b):
    """The first lines in which two transcripts differ, with what came before."""
    left, right = a.splitlines(), b.splitlines()
    for i in range(max(len(left), len(right))):
        l = left[i] if i < len(left) else "<end>"
        r = right[i] if i < len(right) else "<end>"
        if l != r:
            before = "\n".join("      " + x for x in left[max(0, i - 8):i])
            return f"line {i + 1}:\n{before}\nstock {l}\nours  {r}"
    return "none"


# What the programs' own garbage, a file that is no database, is told of.
GARBAGE = re.compile(r"^lmdbio: \S*/garbage: meta page 0: magic number is 0x[0-9a-f]+, which is not LMDB's\n", re.MULTILINE)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="shimtest-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def fresh(self, name="db"):
        path = os.path.join(self.dir, name)
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        return path

    def check_same(self, stock, ours):
        self.assertEqual(ours.returncode, stock.returncode, ours.err + ours.out[-2000:])
        if stock.out != ours.out:
            self.fail("transcripts differ at " + difference(stock.out, ours.out))
        self.assertEqual(GARBAGE.sub("", ours.err), stock.err)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with open(sys.argv.pop(1), encoding="utf-8") as f:
        CONFIG.update(json.load(f))
    done = unittest.main(module="__main__", exit=False, verbosity=2).result
    if not done.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if done.testsRun and len(done.skipped) == done.testsRun else 0)
