"""A pool of forked children on what their parent opened, beside a writer.

    fork_pool_test.py CONFIG [--rounds N] [--children N] [--table] [unittest arguments]

--rounds 1000 is a campaign; --table shows what stock does, and the children's memory.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "shim"))
import shimtest  # noqa: E402


ROUNDS = shimtest.option("--rounds", 2)
CHILDREN = shimtest.option("--children", 64)
TABLE = "--table" in sys.argv
if TABLE:
    sys.argv.remove("--table")
PARENT_THREADS = {"0": 0, "0x200000": 2}  # by MDB_NOTLS or not


class ForkPool(shimtest.Case):
    def pool(self, mode, flags):
        """The parent's exit status and what it said."""
        db = self.fresh()
        made = shimtest.run("stock", ["fork_pool", "make", db])
        self.assertEqual(made.returncode, 0, made.out)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        writer = subprocess.Popen([shimtest.program("fork_pool"), "write", db], stdin=subprocess.PIPE,
                                  env=shimtest.environment("stock"), **pipes)
        try:
            self.assertEqual(writer.stdout.readline(), "ready\n")
            # Its own process group: children that a failing parent leaves behind end too.
            # ThreadSanitizer dies in a child of a process with threads that makes threads.
            threads = 0 if shimtest.CONFIG["sanitize"] == "thread" else PARENT_THREADS[flags]
            argv = ["read", db, flags, str(CHILDREN), str(ROUNDS), str(threads)]
            parent = subprocess.Popen([shimtest.program("fork_pool", mode), *argv],
                                      env=shimtest.environment(mode), stdin=subprocess.DEVNULL,
                                      start_new_session=True, **pipes)
            try:
                out, _ = parent.communicate(timeout=60 + 30 * ROUNDS)
            finally:
                try:
                    os.killpg(parent.pid, 9)
                except ProcessLookupError:
                    pass
                parent.communicate()
            written, _ = writer.communicate(timeout=60)  # closes its standard input
            self.assertEqual(writer.returncode, 0, written)
            return parent.returncode, out, int(written.split()[1])
        finally:
            if writer.poll() is None:
                writer.kill()
            writer.communicate()

    def test_children_read_right_and_parent_keeps_its_slot(self):
        for mode in shimtest.modes()[::3] + ["linked"]:
            for flags in PARENT_THREADS:
                with self.subTest(mode=mode, flags=flags):
                    status, out, commits = self.pool(mode, flags)
                    self.assertEqual(status, 0, out)
                    self.assertIn(f"rounds {ROUNDS} children {CHILDREN}\n", out)
                    self.assertNotIn("lmdbio:", out)
                    self.assertGreater(commits, 4 * ROUNDS)
                    if TABLE:
                        print(f"\n{mode}, flags {flags}, {commits} commits\n{out}", file=sys.stderr)

    def test_stock(self):
        if not TABLE:
            self.skipTest("only shown")
        for flags in PARENT_THREADS:
            status, out, commits = self.pool("stock", flags)
            lines = out.splitlines()
            print(f"\nstock, flags {flags}: status {status}, {commits} commits, {len(lines)} lines\n  "
                  + "\n  ".join(sorted(set(lines))[:20]), file=sys.stderr)


if __name__ == "__main__":
    shimtest.main()
