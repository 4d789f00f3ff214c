"""lmdbio ls and cat, against a model in Python."""
import json
import os
import pty
import random
import re
import struct
import subprocess
import sys

import command_test
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import namespaces  # noqa: E402
import slowfs  # noqa: E402

DUPSORT, INTEGERKEY = 0x04, 0x08
PAGE = 4096


def key_of(name):
    """The key of a name, by the rule in the man page."""
    codes = {b"%00": b"\0", b"%25": b"%", b"%2E": b".", b"%2F": b"/", b"%+/": b""}
    return re.sub(rb"%00|%25|%2E|%2F|%\+/", lambda m: codes[m.group()], name)


def is_path(name):
    return all(part not in (b"", b".", b"..") and len(part) <= 255 for part in name.split(b"/")) and b"\0" not in name


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def datum(data, encoded=True):
    return b"\x08\x03\x22" + varint(len(data)) + data + b"\x28\x07\x38" + bytes([encoded])


FLOATS = b"\x08\x01\x10\x01\x18\x02\x32\x08" + struct.pack("<2f", 1.5, 2.5)  # a Datum that has float_data only


def tree_pages(pages, flag):
    """The offsets of the pages of trees that have this flag."""
    return [at for at in range(2 * PAGE, len(pages), PAGE)
            if struct.unpack_from("<Q", pages, at)[0] * PAGE == at and struct.unpack_from("<H", pages, at + 10)[0] == flag]


def nodes(pages, at):
    """The offsets of the nodes of a page."""
    return [at + n for n in struct.unpack_from(f"<{(struct.unpack_from('<H', pages, at + 12)[0] - 16) // 2}H", pages, at + 16)]


def keys_of_page(pages, at):
    return [pages[n + 8:n + 8 + struct.unpack_from("<H", pages, n + 6)[0]] for n in nodes(pages, at)]


def overwrite_page(path, at):
    with open(path + "/data.mdb", "r+b") as f:
        f.seek(at)
        f.write(b"\x55" * PAGE)


def read_pages(path):
    with open(path + "/data.mdb", "rb") as f:
        return f.read()


def damage_root(path):
    pages = read_pages(path)
    newest = max((0, PAGE), key=lambda at: struct.unpack_from("<Q", pages, at + 16 + 24 + 96 + 8)[0])
    overwrite_page(path, struct.unpack_from("<Q", pages, newest + 16 + 24 + 48 + 40)[0] * PAGE)


def damage_branch(case, path):
    """Overwrites a branch page above leaves, in the middle.  Returns its number, and the keys below it."""
    pages = read_pages(path)
    children = {at: [struct.unpack_from("<IH", pages, n) for n in nodes(pages, at)] for at in tree_pages(pages, 1)}
    children = {at: [(low | high << 32) * PAGE for low, high in pairs] for at, pairs in children.items()}
    above_leaves = sorted((at for at, below in children.items() if not set(below) & set(children)),
                          key=lambda at: keys_of_page(pages, children[at][0]))
    case.assertGreater(len(above_leaves), 2)
    at = above_leaves[len(above_leaves) // 2]
    overwrite_page(path, at)
    return at // PAGE, {k for below in children[at] for k in keys_of_page(pages, below)}


def damage_leaf(case, path, part=0.5):
    """Overwrites the leaf page at this part of the leaf pages, in the order of their keys.  Returns the keys that it had."""
    pages = read_pages(path)
    leaves = sorted(tree_pages(pages, 2), key=lambda at: keys_of_page(pages, at))
    case.assertGreater(len(leaves), 20)
    at = leaves[min(int(part * len(leaves)), len(leaves) - 1)]
    overwrite_page(path, at)
    return set(keys_of_page(pages, at))


class Case(command_test.Case):
    maxDiff = 2000  # records are long

    def write(self, records, name=None, flags=0, path=None):
        path = path or self.fresh()
        w = command_test.Writer(path)
        w.put(records.items() if isinstance(records, dict) else records, name, flags)
        w.close()
        return path

    def slow_storage(self, source, **options):
        """Mounts `source` as slow storage, whose requests are counted."""
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], source, max_background=256, **options)
            fs.__enter__()
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.addCleanup(fs.__exit__, None, None, None)
        return fs

    def output(self, *args, status=0, **kwargs):
        """The bytes on standard output."""
        done = subprocess.run([shimtest.CONFIG["command"], *args], env=shimtest.environment("stock", kwargs.pop("env", None)),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200, **kwargs)
        self.assertEqual(done.returncode, status, done.stderr)
        self.errors = done.stderr.decode(errors="replace")
        return done.stdout

    def fuzzed(self, seed, n):
        """Keys of all byte values and sizes.  Many of them need to be quoted."""
        r = random.Random(seed)
        special = [b"/", b".", b"..", b"%", b"\0", b"%2F", b"%+", b"a", b"b", b"\xff", b"\n"]
        keys = {}
        while len(keys) < n:
            if r.random() < 0.5:
                key = b"".join(r.choice(special) for _ in range(r.randint(1, 9)))
            else:
                key = r.randbytes(r.choice([1, 2, 3, 8, 20, 100, 256, 511]))
            keys[key] = r.randbytes(r.choice([0, 1, 40, 511, 512, 513, 3000, 9000]))
        return keys


class Ls(Case):
    def test_fuzzed(self):
        keys = self.fuzzed(1, 4000)
        path = self.write(keys)
        names = self.output("ls", "-0", path).split(b"\0")
        self.assertEqual(names.pop(), b"")
        self.assertEqual([key_of(n) for n in names], sorted(keys))
        self.assertTrue(all(map(is_path, names)))
        self.assertEqual(self.output("ls", path), b"".join(n + b"\n" for n in names))
        listed = json.loads(self.output("ls", "--json", path))
        self.assertEqual([(bytes.fromhex(r["key_hex"]), r["bytes"]) for r in listed["records"]],
                         [(k, len(v)) for k, v in sorted(keys.items())])

    def test_prefix_and_range(self):
        keys = {b"%04d" % i: b"v" for i in range(3000)} | {b"\xff": b"", b"\xff\xffa": b"", b"b/%": b"", b"%2F": b""}
        path = self.write(keys)
        inside = lambda f: b"".join(k + b"\n" for k in sorted(keys) if f(k))
        self.assertEqual(self.output("ls", path, "01"), inside(lambda k: k.startswith(b"01")))
        self.assertEqual(self.output("ls", path, b"\xff"), inside(lambda k: k.startswith(b"\xff")))
        self.assertEqual(self.output("ls", path, "--range", "0100:02"), inside(lambda k: b"0100" <= k < b"02"))
        self.assertEqual(self.output("ls", path, "--range", "0100:"), inside(lambda k: b"0100" <= k).replace(b"%2F", b"%252F"))
        self.assertEqual(self.output("ls", path, "--range", ":0100"), inside(lambda k: k < b"0100").replace(b"%2F", b"%252F"))
        self.assertEqual(self.output("ls", path, "01", "--range", "0150:0160"), inside(lambda k: b"0150" <= k < b"0160"))
        self.assertEqual(self.output("ls", path, "none"), b"")
        self.assertEqual(self.output("ls", path, "--range", "2:1"), b"")
        colons = {b"a:1": b"", b"a:2": b"", b"a": b"", b"b": b"", b"%3A": b""}
        colon = self.write(colons)
        self.assertEqual(self.output("ls", colon, "--range", "a%3A2:"), b"a:2\nb\n")
        self.assertEqual(self.output("ls", colon, "--range", "a:a%3A2"), b"a\na:1\n")
        self.assertEqual(self.output("ls", colon, "--range", "%253A:a"), b"%3A\n")
        for other in ("-l", "-0"):
            self.lmdbio("ls", path, "--json", other, status=2)
        path = self.write(keys)
        self.assertIn("FIRST:END", self.lmdbio("ls", path, "--range", "x", status=2).stderr)

    def test_sizes_and_named_databases(self):
        path = self.database()
        lines = self.output("ls", "-l", "-0", path).split(b"\0")
        self.assertEqual(lines[0], b"        14 beside")
        self.assertEqual([l.split()[0] for l in lines[1:-1]], [b"database"] * 5)
        self.assertEqual(self.output("ls", "--db", "plain", "-l", path, "00999"), b"        39 00999\n")
        self.assertIn("no_such", self.lmdbio("ls", "--db", "no_such", path, status=2).stderr)
        self.assertEqual(self.output("ls", "--db", "dups", path, "few"), b"few\n" * 5)
        self.assertEqual([r["name"] for r in json.loads(self.output("ls", "--json", path))["records"] if "database" in r],
                         ["dups", "fixed", "long", "odd\n\ufffd", "plain"])

    def test_integer_keys(self):
        path = self.write([(struct.pack("<Q", i), b"") for i in (300, 1, 2)], flags=INTEGERKEY)
        self.assertEqual(self.output("ls", path).split(b"\n")[2], struct.pack("<Q", 300).replace(b"\0", b"%00"))
        self.assertIn("integers", self.lmdbio("ls", path, "a", status=2).stderr)

    def test_on_a_terminal(self):
        path = self.write({b"a\x1b[2Jb": b""})
        try:
            master, slave = pty.openpty()
        except OSError as why:
            if not namespaces.own_terminals():
                self.skipTest(str(why))
            master, slave = pty.openpty()
        subprocess.run([shimtest.CONFIG["command"], "ls", path], env=shimtest.environment("stock"), stdout=slave, check=True)
        os.close(slave)
        shown = os.read(master, 4096)
        os.close(master)
        self.assertEqual(shown.strip(), rb"a\x1b[2Jb")

    def test_reads_no_values(self):
        records, value = 1500, 40000
        source = self.write({b"%0200d" % i: b"x" * value for i in range(records)})
        fs = self.slow_storage(source)
        self.assertEqual(len(self.output("ls", "-l", fs.path).splitlines()), records)
        self.assertLess(fs.counters()["read"]["bytes"], records * value / 4)

    def test_damaged(self):
        """Keys on damaged pages are left out, with the number of the page; sizes of the others are right."""
        for pages in (1, 3):
            for prefix in (b"", b"1", b"15"):
                with self.subTest(pages=pages, prefix=prefix):
                    keys = [b"%04d" % i for i in range(2000)]
                    path = self.write({k: b"v" * (500 + i % 7) for i, k in enumerate(keys)}, path=self.fresh(f"db{pages}{prefix}"))
                    lost = set().union(*(damage_leaf(self, path, part) for part in [0.5, 0.5004, 0.8][:pages]))
                    self.check_damaged(path, keys, lost, prefix)

    def check_damaged(self, path, keys, lost, prefix):
        expected = [k for k in keys if k not in lost and k.startswith(prefix)]
        status = int(any(k.startswith(prefix) for k in lost))
        self.assertEqual(self.output("ls", path, prefix, status=status), b"".join(k + b"\n" for k in expected))
        if status:
            self.assertRegex(self.errors, r"page \d+ is damaged; its keys are left out")
        listed = json.loads(self.output("ls", "--json", path, prefix, status=status))
        self.assertEqual([(r["name"].encode(), r["bytes"]) for r in listed["records"]], [(k, 500 + int(k) % 7) for k in expected])
        self.assertEqual("damaged" in listed, bool(status))

    def test_damaged_ends(self):
        keys = [b"%04d" % i for i in range(2000)]
        for part in (0.0, 1.0):
            path = self.write({k: b"v" * 500 for k in keys}, path=self.fresh(f"db{part}"))
            lost = damage_leaf(self, path, part)
            self.assertIn(keys[-int(part)], lost)
            self.assertEqual(self.output("ls", "-l", path, status=1), b"".join(b"       500 " + k + b"\n" for k in keys if k not in lost))

    def test_damaged_branch(self):
        """The pages below the others are listed."""
        keys = [b"%0200d" % i for i in range(12000)]
        path = self.write({k: b"" for k in keys})
        number, lost = damage_branch(self, path)
        self.assertEqual(self.output("ls", path, status=1), b"".join(k + b"\n" for k in keys if k not in lost))
        self.assertIn(f"page {number} is damaged", self.errors)
        damage_root(path)
        self.assertEqual(self.output("ls", path, status=1), b"")
        self.assertRegex(self.errors, r"page \d+ is damaged")

    def test_damaged_among_several_values(self):
        records = [(b"%03d" % (i // 500), b"%08d" % i * 4) for i in range(50000)]
        path = self.write(records, name=b"dups", flags=DUPSORT)
        damage_leaf(self, path)  # of the values of one key: in this tree, they are keys
        listed = self.output("ls", "--db", "dups", path, status=1).split(b"\n")[:-1]
        self.assertEqual(listed, sorted(listed))
        counts = {k: listed.count(k) for k in {k for k, _ in records}}
        self.assertEqual(sorted(set(counts.values()))[-1], 500)
        self.assertEqual([n < 500 for n in counts.values()].count(True), 1)


class Cat(Case):
    def test_values(self):
        keys = self.fuzzed(2, 300)
        path = self.write(keys)
        names = self.output("ls", "-0", path).split(b"\0")[:-1]
        for name in random.Random(3).sample(names, 40):
            self.assertEqual(self.output("cat", path, b"--", name) if name.startswith(b"-") else self.output("cat", path, name),
                             keys[key_of(name)])
        self.assertIn("no key none", self.lmdbio("cat", path, "none", status=1).stderr)

    def test_datum(self):
        path = self.write({b"a": datum(b"JPEG" * 100), b"b": b"\x0f", b"floats": FLOATS, b"empty": datum(b"")})
        self.assertEqual(self.output("cat", path, "a", "--value", "datum"), b"JPEG" * 100)
        self.assertEqual(self.output("cat", path, "a"), datum(b"JPEG" * 100))
        self.assertIn("not a Datum", self.lmdbio("cat", path, "b", "--value", "datum", status=2).stderr)
        self.assertIn("without data", self.lmdbio("cat", path, "floats", "--value", "datum", status=2).stderr)
        self.assertEqual(self.output("cat", path, "empty", "--value", "datum"), b"")

    def test_integer_keys(self):
        for form in ("<I", "<Q"):
            records = {struct.pack(form, i): b"%d" % i for i in (0x2F61, 0x622F61, 0x01010101)}
            path = self.write(records, flags=INTEGERKEY)
            for name in self.output("ls", "-0", path).split(b"\0")[:-1]:
                self.assertEqual(self.output("cat", path, name), records[key_of(name)])
            # A key that is shorter or longer, whose bytes beside it may make a key.
            for name in (b"a", b"a/", b"a%2F", struct.pack(form, 0x01010101).replace(b"\0", b"%00") + b"x", b"\1\1\1\1\1\1\1", b"\1\1\1"):
                self.assertEqual(self.output("cat", path, name, status=1), b"", name)
            self.assertEqual(self.output("cat", self.write({}, name=b"none", flags=INTEGERKEY), "--db", "none", "a", status=1), b"")
        # export looks up the directories of names.
        path = self.write({k.ljust(8, b"\0"): k for k in (b"abc", b"abc/d", b"abc/xyz")}, flags=INTEGERKEY)
        self.assertEqual(self.output("export", "--tar", path).count(b"ustar"), 3)

    def test_named_database(self):
        path = self.database()
        self.assertEqual(self.output("cat", path, "plain", status=1), b"")
        self.assertIn("a named database", self.errors)
        self.assertEqual(self.output("cat", path, "beside"), b"the named ones")

    def test_other_files(self):
        self.assertIn("data.mdb", self.lmdbio("cat", self.dir, "a", status=2).stderr)
        self.assertIn("No such file", self.lmdbio("cat", self.dir + "/none", "a", status=2).stderr)
        path = self.write({b"a": b"1"})
        os.truncate(path + "/data.mdb", 4096)
        self.lmdbio("cat", path, "a", status=2)


if __name__ == "__main__":
    shimtest.main()
