"""Signal handlers, cancellation, comparators that do not return, and which threads a process has."""
import os
import subprocess
import sys
import time

import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402


class Signals(shimtest.Case):
    def check(self, scenarios, program="signals"):
        for scenario in scenarios:
            argv = [scenario] if scenario else []
            stock = shimtest.run("stock", [program, self.fresh(), *argv])
            self.assertEqual(stock.returncode, 0, stock.out + stock.err)
            for mode in shimtest.modes():
                with self.subTest(scenario=scenario, mode=mode):
                    ours = shimtest.run(mode, [program, self.fresh(), *argv])
                    self.check_same(stock, ours)

    def test_storm_of_signals(self):
        self.check(["storm-restart", "storm-eintr"])

    def test_open_that_waits_for_a_lock_is_interrupted(self):
        shimtest.skip_under_tsan(self, "runs handlers after the call that they should interrupt")
        self.check(["lock-restart", "lock-eintr"])

    def test_cancelled_scans(self):
        if "address" in (shimtest.CONFIG["sanitize"] or ""):
            self.skipTest("the address sanitizer's runtime writes to the stack of a cancelled thread")
        self.check(["cancel-scan-deferred", "cancel-scan-disabled"])

    # What one call may say of a refused or bad file is its own affair here.
    def test_cancelled_calls(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("the address sanitizer's runtime writes to the stack of a cancelled thread")
        stock = shimtest.run("stock", ["signals", self.fresh(), "cancel-calls"])
        self.assertEqual(stock.returncode, 0, stock.out + stock.err)
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                ours = shimtest.run(mode, ["signals", self.fresh(), "cancel-calls"])
                self.assertEqual(ours.returncode, 0, ours.out + ours.err)
                self.assertEqual(ours.out, stock.out)

    def test_comparator_jumps(self):
        self.check(["jump"])

    def test_comparator_throws(self):
        self.check([""], program="throwing")


def tasks(pid):
    """Name and blocked signals of each thread."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="utf-8") as f:
            status = dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)
        found.append((status["Name"], int(status["SigBlk"], 16)))
    return found


# Which signals can be blocked at all: not SIGKILL, SIGSTOP, nor the two that libc keeps for itself.
ALL_SIGNALS = ((1 << 64) - 1) & ~sum(1 << (n - 1) for n in (9, 19, 32, 33))


class Threads(shimtest.Case):
    def test_none_on_a_local_file_system(self):
        for scenario in ("threads", "exec"):
            for mode in shimtest.modes():
                with self.subTest(scenario=scenario, mode=mode):
                    got = shimtest.run(mode, ["signals", self.fresh(), scenario])
                    self.assertEqual((got.returncode, got.out, got.err), (0, "threads 1 1 1\n", ""))

    # On a file system of user space the lock may hang, so a thread of its own asks for it.
    def test_thread_that_opens(self):
        shimtest.skip_under_tsan(self, "has a thread of its own")
        source = self.fresh()
        made = shimtest.run("stock", ["signals", source, "make"])
        self.assertEqual(made.returncode, 0, made.out)
        try:
            with slowfs.SlowFs(shimtest.CONFIG["slowfs"], source) as fs:
                for mode in shimtest.modes():
                    with self.subTest(mode=mode):
                        self.open_on(fs, mode)
        except slowfs.Missing as why:
            self.skipTest(str(why))

    def open_on(self, fs, mode):
        fs.set(lock_hang_ms="forever")
        program = subprocess.Popen([shimtest.program("signals", mode), fs.path, "open-slowly"],
                                   env=shimtest.environment(mode, {"LMDBIO_LOCK_SECONDS": "600"}),
                                   text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        try:
            fs.set(wait_hung=1)
            opening = [blocked for name, blocked in tasks(program.pid) if name == "lmdbio-open"]
            self.assertEqual(len(opening), 1)
            self.assertEqual(opening[0] & ALL_SIGNALS, ALL_SIGNALS, f"{opening[0]:x}")
            self.assertEqual(len(tasks(program.pid)), 2)
            fs.set(lock_hang_ms=0)
            fs.set(release=1)
            self.assertEqual(program.stdout.readline(), "open\n")
            # It may still be on its way out; bounded by ctest.  A walk may have started another one.
            while any(name == "lmdbio-open" for name, _ in tasks(program.pid)):
                time.sleep(0.001)
            _, err = program.communicate(timeout=60)
            self.assertEqual((program.returncode, err), (0, ""))
        finally:
            fs.set(lock_hang_ms=0)
            fs.set(release=1)
            if program.poll() is None:
                program.kill()
            program.communicate()


if __name__ == "__main__":
    shimtest.main()
