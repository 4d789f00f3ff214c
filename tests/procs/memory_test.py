"""One process with a walk, prefetching transactions, readers and index builds: within LMDBIO_MEMORY, every byte right.

    memory_test.py CONFIG [--records N] [--rounds N] [--memory "32M 64M"] [unittest arguments]

Campaign: memory_test.py CONFIG --records 6000 --rounds 3 --memory "32M 64M 256M"
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim")]
import shimtest  # noqa: E402

RECORDS = shimtest.option("--records", 1200)
ROUNDS = shimtest.option("--rounds", 1)
MEMORY = shimtest.option("--memory", "32M 64M")
VALUE = 100_000
# What the process has besides: stacks and heaps of some 30 threads, engines, tables of keys, pages of the tree.
CONSTANT_KIB = 8 << 10


class Memory(shimtest.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("no sanitizer: they have memory of their own, and cannot be preloaded")
        self.where = os.path.join(self.dir, "db")
        os.mkdir(self.where)
        made = shimtest.run("stock", ["memory", "make", self.where, str(RECORDS), str(VALUE)], timeout=600)
        self.assertEqual(made.returncode, 0, made.err)

    def use(self, extra, memory=0):
        return shimtest.run("preload", ["memory", "use", self.where, str(RECORDS), str(VALUE), str(ROUNDS),
                                        str(memory)], {"LMDBIO_IO": "direct", **extra}, timeout=600)

    def test_all_at_once(self):
        for memory in MEMORY.split():
            with self.subTest(memory=memory):
                done = self.use({"LMDBIO_MEMORY": memory})
                self.assertEqual(done.returncode, 0, done.out + done.err)
                words = done.out.split()
                said = dict(zip(words[::2], map(int, words[1::2])))
                print(f"\nLMDBIO_MEMORY={memory}: {done.out.strip()}", file=sys.stderr)
                self.assertEqual(said["walked"], RECORDS * ROUNDS)
                self.assertEqual(said["batches"], 6 * ROUNDS * ((RECORDS + 7) // 8))
                self.assertGreater(said["builds"], 0)
                limit = int(memory[:-1]) << 10
                self.assertLess(said["anonymous_kib"], limit + CONSTANT_KIB)

    def test_none(self):
        done = self.use({"LMDBIO_MEMORY": "0"})
        self.assertEqual(done.returncode, 1, done.out)
        self.assertIn("LMDBIO_MEMORY leaves a reader no memory", done.err)
        # A limit of its own is the reader's then.
        done = self.use({"LMDBIO_MEMORY": "0"}, 16 << 20)
        self.assertEqual(done.returncode, 0, done.err)


if __name__ == "__main__":
    shimtest.main()
