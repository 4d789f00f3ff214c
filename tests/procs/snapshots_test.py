"""Readers beside a writer in another process: each sees its snapshot, whole, and old ones stay as they were."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "shim"))
import shimtest  # noqa: E402

READERS = ((0, 60, 150), (1, 60, 150), (1, 60, 150))  # NOTLS, different snapshots at least, rounds at least


class Snapshots(shimtest.Case):
    settings = {}

    def start(self, mode, *argv, stats=None):
        extra = {**self.settings, **({"LMDBIO_STATS": stats} if stats else {})}
        return subprocess.Popen([shimtest.program("snapshots", mode), *map(str, argv)],
                                env=shimtest.environment(mode, extra), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def check(self, writer_mode, reader_modes):
        db = self.fresh()
        made = shimtest.run("stock", ["snapshots", "make", db])
        self.assertEqual(made.returncode, 0, made.out)
        writer = self.start(writer_mode, "write", db)
        readers = []
        try:
            self.assertEqual(writer.stdout.readline(), "ready\n")
            for i, (shape, mode) in enumerate(zip(READERS, reader_modes)):
                stats = os.path.join(self.dir, f"stats-{i}")
                readers.append((mode, stats, self.start(mode, "read", db, *shape, stats=None if mode == "stock" else stats)))
            for mode, stats, reader in readers:
                out, _ = reader.communicate(timeout=150)
                # mdb_txn_begin of 0.9 copies the meta page of its snapshot without a look whether the writer, two
                # commits later, has written it again.
                if mode == "stock" and reader.returncode == 1 and "mdb_txn_id(txn)" in out:
                    print("\na reader of stock's met a meta page of a later commit", file=sys.stderr)
                    continue
                self.assertEqual(reader.returncode, 0, f"{mode}: {out}")
                words = out.split()
                said = dict(zip(words[::2], map(int, words[1::2])))
                self.assertGreaterEqual(said["rounds"], 150)
                self.assertGreaterEqual(said["snapshots"], 60)
                if mode != "stock":
                    lines = shimtest.read_stats(stats)
                    ours = [e for line in lines for e in line["environments"] if e["ours"]]
                    self.assertTrue(ours)
                    self.assertGreater(max(shimtest.count(e["calls"]) for e in ours), 150 * 1200)
            out, _ = writer.communicate(timeout=60)  # closes its standard input
            self.assertEqual(writer.returncode, 0, out)
            words = out.split()
            commits = dict(zip(words[::2], map(int, words[1::2])))["commits"]
            self.assertGreaterEqual(commits, 60)
            print(f"\n{writer_mode} wrote {commits} commits; readers {reader_modes}", file=sys.stderr)
        finally:
            for process in [writer] + [r for _, _, r in readers]:
                if process.poll() is None:
                    process.kill()
                process.communicate()

    def test_ours_beside_a_stock_writer(self):
        for mode in shimtest.modes()[::3]:  # preload and soname
            with self.subTest(mode=mode):
                self.check("stock", [mode] * 3)

    def test_ours_and_stock_beside_a_stock_writer(self):
        self.check("stock", [shimtest.modes()[0], "stock", shimtest.modes()[0]])

    def test_ours_beside_a_writer_with_the_shim(self):
        self.check(shimtest.modes()[0], [shimtest.modes()[0]] * 3)

    # Snapshots that the readers show each other in chunk files, eight of them at most.
    def test_readers_that_share(self):
        self.settings = {"LMDBIO_NODE": "chunks", "LMDBIO_IO": "direct", "LMDBIO_MEMORY": "16M"}
        self.check("stock", [shimtest.modes()[0]] * 3)


if __name__ == "__main__":
    shimtest.main()
