"""A mount of a damaged or truncated database: only files that are concerned fail."""
import errno
import os
import signal
import struct
import subprocess

import command_test
import shimtest
from files_mount_test import Case
from files_test import damage_leaf, damage_root, datum


class Damage(Case):
    def test_damaged(self):
        keys = {b"%d/%04d" % (i // 1000, i): b"%04d" % i * 100 for i in range(5000)}
        path = self.write(keys)
        lost = damage_leaf(self, path)
        self.assertGreater(len(lost), 3)
        at = self.mount(path)
        for key, value in keys.items():
            name = os.path.join(at, key.decode())
            if key in lost:
                self.assertEqual(self.error_of(os.stat, name), errno.EIO)
            else:
                with open(name, "rb") as f:
                    self.assertEqual(f.read(), value)
        folders = {k.split(b"/")[0].decode() for k in lost}
        for folder in os.listdir(at):
            if folder in folders:
                self.assertEqual(self.error_of(os.listdir, f"{at}/{folder}"), errno.EIO)
            else:
                self.assertEqual(len(os.listdir(f"{at}/{folder}")), 1000)

    def break_values(self, path, keys):
        """Overwrites the numbers of the pages at which values of these keys begin."""
        with open(path + "/data.mdb", "r+b") as f:
            pages = f.read()
            for key in keys:
                node = pages.index(struct.pack("<H", len(key)) + key) - 6
                while not struct.unpack_from("<H", pages, node + 4)[0] & 1:  # F_BIGDATA
                    node = pages.index(struct.pack("<H", len(key)) + key, node + 7) - 6
                f.seek(node + 8 + len(key))
                f.write(struct.pack("<Q", 1 << 40))

    def test_no_listing_leaves_out_a_damaged_record(self):
        keys = {b"d/%04d" % i: b"%04d" % i * 2000 for i in range(50)}
        path = self.write(keys)
        self.break_values(path, [b"d/0020"])
        at = self.mount(path)
        for _ in range(3):
            self.assertEqual(self.error_of(os.listdir, at + "/d"), errno.EIO)
        done = subprocess.run(["cp", "-r", at + "/d", self.fresh("copy")], stderr=subprocess.DEVNULL)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(self.error_of(os.stat, at + "/d/0020"), errno.EIO)
        for key in keys.keys() - {b"d/0020"}:
            with open(os.fsencode(at) + b"/" + key, "rb") as f:
                self.assertEqual(f.read(), keys[key])

    def test_damage_after_a_commit(self):
        keys = {b"%04d" % i: b"%04d" % i * 2000 for i in range(100)}
        path = self.write(keys)
        lost = [b"%04d" % i for i in range(20, 60)]
        self.break_values(path, lost)
        at = self.mount(path)
        w = command_test.Writer(path)
        w.put([(b"more", b"")])
        w.close()
        for _ in range(2):
            for key in lost:
                self.assertEqual(self.error_of(os.stat, os.fsencode(at) + b"/" + key), errno.EIO)
        for key in keys.keys() - set(lost):
            with open(os.fsencode(at) + b"/" + key, "rb") as f:
                self.assertEqual(f.read(), keys[key])

    def test_damaged_datum(self):
        path = self.write({b"%02d" % i: datum(b"x" * 9000) for i in range(40)})
        at = self.mount(path, "--value", "datum")
        with open(path + "/data.mdb", "r+b") as f:  # the map of the server follows
            f.truncate(os.path.getsize(path + "/data.mdb") - 3 * 4096)
        outcomes = set()
        for i in range(40):
            try:
                outcomes.add(os.path.getsize(f"{at}/{i:02}"))
            except OSError as e:
                outcomes.add(e.errno)
        self.assertIsNone(self.server.poll())
        self.assertEqual(outcomes, {9000, errno.EIO})

    def test_damaged_root(self):
        path, at = self.write({b"%04d" % i: b"x" * 100 for i in range(1000)}), self.fresh("at")
        damage_root(path)
        self.assertIn("MDB_CORRUPTED", self.lmdbio("mount", path, at, status=2).stderr)
        self.assertFalse(os.path.ismount(at))

    def test_truncated(self):
        """As with stock LMDB, the server may end if a page of the tree is gone; but no file has wrong bytes."""
        self.statuses = (0, shimtest.status_of_a_signal(signal.SIGBUS))
        path = self.write({b"%03d" % i: b"%03d" % i * 5000 for i in range(200)})
        at = self.mount(path)
        sizes = {n: os.path.getsize(f"{at}/{n}") for n in os.listdir(at)}
        os.truncate(path + "/data.mdb", os.path.getsize(path + "/data.mdb") // 2)
        outcomes = set()
        for name, size in sizes.items():
            try:
                with open(f"{at}/{name}", "rb") as f:
                    outcomes.add(f.read() == name.encode() * 5000)
            except OSError as e:
                outcomes.add(e.errno)
        self.assertLessEqual(outcomes, {True, errno.EIO, errno.ENOTCONN, errno.ECONNABORTED})


if __name__ == "__main__":
    shimtest.main()
