"""Workers in a memory cgroup that is smaller than the file: none is killed where stock has none killed, and all bytes are right.

    cgroup_test.py CONFIG [--limits "150 300 600"] [--workers "1 4 16"] [--loader torch] [unittest arguments]

Long matrix, on slow and on local storage, with PyTorch's workers, each combination with stock first:

    cgroup_test.py CONFIG --limits "150 300 600" --workers "1 4 16" --loader torch Cgroup.matrix
"""
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim"), os.path.join(HERE, "..", "support")]
import cgroup  # noqa: E402
import shimtest  # noqa: E402
import slowfs  # noqa: E402

LIMITS = list(map(int, shimtest.option("--limits", "150").split()))
WORKERS = list(map(int, shimtest.option("--workers", "4").split()))
LOADER = shimtest.option("--loader", "fork")
SCRIPT, PYTHON = os.path.join(HERE, "cgroup_script.py"), "/usr/bin/python3"
MARGIN = int(shimtest.option("--margin", "8"))  # MiB: the kernel's own memory of the processes, and some
VALUE, MIB = 110 << 10, 1 << 20
NO_SHARED_MEMORY = ["unshare", "-i", "sh", "-c", 'echo 0 >/proc/sys/kernel/shmmni && exec "$@"', "sh"]


class Cgroup(shimtest.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("a sanitizer's runtime cannot be loaded into an interpreter")
        needs = "import lmdb, torch" if LOADER == "torch" else "import lmdb"
        if subprocess.run([PYTHON, "-c", needs], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no " + needs)

    def make(self, mib):
        db, records = self.fresh(), mib * MIB // VALUE
        subprocess.run([PYTHON, "-B", os.path.join(HERE, "loader_script.py"), db, "make", str(records), str(VALUE)], check=True,
                       env=shimtest.environment("stock"))
        return db, records

    def read(self, db, limit, workers, access="walk", slow=True, mode="preload", extra=None, wrap=(), loader="fork", own=()):
        """What the program printed, and the most memory that is no page cache, in MiB.  The program's own memory and each
        worker's is among it."""
        if not slow:
            with open(os.path.join(db, "data.mdb"), "rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return self.run_in(db, limit, workers, access, mode, extra, wrap, loader, own)
        with slowfs.SlowFs(shimtest.CONFIG["slowfs"], db, max_background=256, delay_us=1000) as fs:
            return self.run_in(fs.path, limit, workers, access, mode, extra, wrap, loader, own)

    def run_in(self, path, limit, workers, access, mode, extra, wrap, loader, own):
        try:
            group = cgroup.Memory(limit=limit * MIB).__enter__()
        except cgroup.Missing as e:
            self.skipTest(str(e))
        try:
            argv = [*wrap, PYTHON, "-B", SCRIPT, path, access, loader, str(workers), *map(str, own)]
            p = subprocess.Popen(argv, env=shimtest.environment(mode, extra or {}), preexec_fn=group.enter, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, start_new_session=True)
            most = 0
            while p.poll() is None:
                most = max(most, group.unreclaimable())
                time.sleep(0.01)
            self.end(p)  # workers whose program was killed keep its pipes open
            out, err = p.communicate()
            return (out.split("\n")[0] if p.returncode == 0 else f"status {p.returncode} {err[-300:]}"), most // MIB
        finally:
            self.end(p)
            group.__exit__()

    def end(self, p):
        try:
            os.killpg(p.pid, 9)
        except ProcessLookupError:
            pass

    # The limits of the workers add up to all of the memory.  The program itself takes 60 MiB of it, partly later.
    def test_workers(self):
        workers, limit, ballast, growth = WORKERS[0], LIMITS[0], 30, 5
        db, records = self.make(limit * 3 // 2)
        own = (ballast, growth)
        said, most = self.read(db, limit, workers, mode="stock", own=own)
        self.assertEqual(said, f"records {records} killed 0 failed 0")
        for extra, wrap in (({}, ()), ({"LMDBIO_NODE": "off"}, ()), ({"LMDBIO_NODE": "off"}, NO_SHARED_MEMORY)):
            with self.subTest(**extra, wrap=wrap):
                said, with_us = self.read(db, limit, workers, extra=extra, wrap=wrap, own=own)
                self.assertEqual(said, f"records {records} killed 0 failed 0")
                # Half of the limit, and 4 MiB in each process that are not in the budget.
                self.assertLessEqual(with_us, most + limit // 2 + 4 * workers)

    # What the program and its workers have themselves leaves nothing to read ahead with, as time goes on.
    def test_nearly_full(self):
        workers, own = WORKERS[0], (30, 10)
        db, records = self.make(LIMITS[0])
        _, most = self.read(db, 4 * LIMITS[0], workers, mode="stock", own=own)
        limit = most + MARGIN
        for mode, extra in (("stock", {}), ("preload", {}), ("preload", {"LMDBIO_MEMORY": "0"})):
            with self.subTest(limit=limit, mode=mode, **extra):
                # So near the limit, memory that the kernel has not yet given back decides now and then.
                for _ in range(6):
                    said, _ = self.read(db, limit, workers, mode=mode, extra=extra, own=own)
                    if "killed 0" in said:
                        break
                if mode == "stock" and "killed 0" not in said:
                    self.skipTest("stock is killed")
                self.assertEqual(said, f"records {records} killed 0 failed 0")

    def matrix(self):
        for limit in LIMITS:
            db, records = self.make(limit * 3 // 2)
            for workers in WORKERS:
                for slow in (True, False):
                    for access in ("walk", "random"):
                        args = {"access": access, "slow": slow, "loader": LOADER}
                        said, most = self.read(db, limit, workers, mode="stock", **args)
                        print(limit, workers, args, "stock:", said[:60], most, flush=True)
                        if said != f"records {records} killed 0 failed 0":
                            continue
                        for node in ("auto", "off"):
                            with self.subTest(limit=limit, workers=workers, node=node, **args):
                                begun = time.monotonic()
                                said, most = self.read(db, limit, workers, extra={"LMDBIO_NODE": node}, **args)
                                print(limit, workers, args, node, said[:60], most, f"{time.monotonic() - begun:.1f} s", flush=True)
                                self.assertEqual(said, f"records {records} killed 0 failed 0")


if __name__ == "__main__":
    shimtest.main()
