"""lmdbio pack: files and tar archives as records, checked by stock LMDB, by tar(1), and by export."""
import ctypes
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile

import command_test
import files_export_test
import files_test
import shimtest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import slowfs  # noqa: E402


def stock_records(path, library="lmdb"):
    """All records of a database, in order, as stock LMDB returns them.  library: "lmdb10" is LMDB 1.0."""
    lib = ctypes.CDLL(shimtest.CONFIG[library])
    env, txn, dbi, cursor = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_void_p()
    key, value = command_test.Val(), command_test.Val()

    def call(name, *args):
        rc = getattr(lib, name)(*args)
        if rc:
            raise AssertionError(f"{name}: {rc}")
    call("mdb_env_create", ctypes.byref(env))
    call("mdb_env_open", env, os.fsencode(path), 0x20000 | command_test.NOLOCK, 0o644)
    call("mdb_txn_begin", env, None, 0x20000, ctypes.byref(txn))
    call("mdb_dbi_open", txn, None, 0, ctypes.byref(dbi))
    call("mdb_cursor_open", txn, dbi, ctypes.byref(cursor))
    found = []
    while lib.mdb_cursor_get(cursor, ctypes.byref(key), ctypes.byref(value), 8) == 0:  # MDB_NEXT
        found.append((ctypes.string_at(key.data, key.size), ctypes.string_at(value.data, value.size)))
    lib.mdb_txn_abort(txn)
    lib.mdb_env_close(env)
    return found


class Case(files_test.Case):
    def tree(self, files, name="tree"):
        root = os.fsencode(self.fresh(name))
        for path, contents in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "wb") as f:
                f.write(contents)
        return os.fsdecode(root)

    def some_files(self, seed, n=400):
        r = random.Random(seed)
        names = [b"a.jpg", b"100%.txt", b"x%20y/z%2fq", b"n01/\xff\n\x01", b".hidden/..x", b"empty", "fü/ñ".encode(), b"d/" * 30 + b"deep",
                 b"long/" + b"l" * 255, b"a-b/1", b"a/1", b"a.b"]
        names += [b"n%02d/%d.%s" % (r.randrange(7), i, r.choice([b"jpg", b"cls"])) for i in range(n)]
        return {name: r.randbytes(r.choice([0, 1, 100, 2000, 2030, 4080, 20000])) for name in names}

    def pack(self, *args, status=0, **kwargs):
        return self.lmdbio("pack", *args, status=status, **kwargs)

    @property
    def out(self):
        """A path that does not exist yet."""
        self.made = getattr(self, "made", 0) + 1
        return os.path.join(self.dir, f"out{self.made}")


class Format10(Case):
    def unpacked(self, db):
        """Names and contents of the files."""
        with tarfile.open(fileobj=io.BytesIO(self.output("export", "--tar", db))) as tar:
            return {m.name: tar.extractfile(m).read() for m in tar}

    def check(self, db, files):
        self.assertTrue(self.json("check", db)["clean"])
        self.assertEqual(self.json("info", db)["format"], "1.0")
        self.assertNotIn("lock.mdb", os.listdir(db))
        if shimtest.CONFIG["lmdb10"]:
            self.assertEqual(stock_records(db, "lmdb10"), sorted(files.items()))

    def test_round_trip(self):
        files = self.some_files(11)
        root, db, old = self.tree(files), self.out, self.out
        self.assertIn(f"{len(files)} files", self.pack("--format", "1", root, db).stdout)
        self.pack(root, old)
        self.check(db, files)
        self.assertEqual(sorted(os.listdir(db)), ["data.mdb", "data.mdb.lmdbio-index"])
        self.assertEqual(self.unpacked(db), self.unpacked(old))
        self.assertEqual(self.json("info", old)["format"], "0.9")

    def test_shuffled_with_labels_in_shards(self):
        files = {b"%d/%04d" % (i % 5, i): b"%d" % i * (i % 900) for i in range(2000)}
        root, db, old, labels, old_labels = self.tree(files), self.out, self.out, self.out, self.out
        for format, to, labels_to in (("1.0", db, labels), ("0.9", old, old_labels)):
            self.pack("--format", format, "--shuffle", "3", "--max-size", "600K", "--label-db", labels_to, root, to)
        shards = sorted(os.listdir(db))
        self.assertGreater(len(shards), 3)
        for shard in shards:
            self.assertTrue(self.json("check", f"{db}/{shard}")["clean"])
            self.assertLessEqual(os.path.getsize(f"{db}/{shard}/data.mdb"), 600 << 10)
        packed = [self.unpacked(f"{d}/{s}") for d in (db, old) for s in sorted(os.listdir(d))]
        merged = [{}, {}]
        for i, part in enumerate(packed):
            merged[i >= len(shards)].update(part)
        self.assertEqual(merged[0], merged[1])
        self.assertEqual(len(merged[0]), len(files))
        self.assertEqual(self.unpacked(labels), self.unpacked(old_labels))

    def test_empty(self):
        db = self.out
        self.pack("--format", "1", self.tree({}), db)
        self.check(db, {})

    def test_other_formats(self):
        self.assertIn("--format", self.pack("--format", "2", self.tree({}), self.out, status=2).stderr)


class Directory(Case):
    def test_round_trip(self):
        files = self.some_files(1)
        root, db = self.tree(files), self.out
        os.symlink(os.path.join(root, "a.jpg"), root + "/link")
        os.symlink(root + "/n01", root + "/linked")
        files[b"link"] = files[b"a.jpg"]
        files |= {b"linked" + k[3:]: v for k, v in files.items() if k.startswith(b"n01/")}
        said = self.pack(root, db)
        self.assertIn(f"{len(files)} files", said.stdout)
        self.assertEqual(said.stderr, "")
        self.assertEqual(stock_records(db), sorted(files.items()))
        self.assertTrue(self.json("check", db)["clean"])
        self.assertEqual(sorted(os.listdir(db)), ["data.mdb", "data.mdb.lmdbio-index", "lock.mdb"])
        self.assertFalse(os.path.exists(db + ".partial"))
        sums = os.path.join(self.dir, "sums")
        with open(sums, "wb") as f:
            for k, v in files.items():
                if b"\n" not in k:
                    f.write(hashlib.sha256(v).hexdigest().encode() + b"  " + k + b"\n")
        back = self.fresh("back")
        subprocess.run(["tar", "-x", "-C", back], input=self.output("export", "--tar", db), check=True)
        subprocess.run(["sha256sum", "-c", "--quiet", sums], cwd=back, check=True)

    def test_the_index_is_valid(self):
        db = self.out
        self.pack(self.tree(self.some_files(2)), db)
        self.assertIn("valid", json.dumps(self.json("info", db)["index"]) if "index" in self.json("info", db) else
                      self.lmdbio("info", db).stdout)
        db = self.out
        self.pack("--no-index", self.tree(self.some_files(2)), db)
        self.assertEqual(sorted(os.listdir(db)), ["data.mdb", "lock.mdb"])

    def test_empty(self):
        db = self.out
        self.pack(self.tree({}), db)
        self.assertEqual(stock_records(db), [])

    def test_labels(self):
        files = {b"cat/1": b"a", b"dog/x/2": b"b", b"cat-b/3": b"c", b"cat/4": b"d"}
        labels = {b"cat/1": b"0", b"cat/4": b"0", b"cat-b/3": b"1", b"dog/x/2": b"2"}
        root, db, second = self.tree(files), self.out, self.out
        self.pack(root, db, "--label-db", second)
        self.assertEqual(stock_records(db), sorted(files.items()))
        self.assertEqual(stock_records(second), sorted(labels.items()))
        db = self.out
        self.pack(root, db, "--label-keys")
        self.assertEqual(stock_records(db), sorted((labels[k] + b"_" + k, v) for k, v in files.items()))
        many = {b"f%02d/x" % i: b"%d" % i for i in range(12)}
        db = self.out
        self.pack(self.tree(many, "many"), db, "--label-keys")
        self.assertEqual(stock_records(db), sorted((b"%02d_f%02d/x" % (i, i), b"%d" % i) for i in range(12)))
        with open(root + "/top", "wb"):
            pass
        db = self.out
        self.assertIn("need a database of their own", self.pack(root, db, "--label-db", db + "/.", status=2).stderr)
        self.assertIn("top: in no folder", self.pack(root, self.out, "--label-keys", status=2).stderr)
        self.assertIn("top: in no folder", self.pack(root, self.out, "--label-db", self.out, status=2).stderr)

    def test_shuffle(self):
        files = self.some_files(3)
        root = self.tree(files)
        orders = []
        for seed in ("1", "2", "1"):
            db = self.out
            self.pack(root, db, "--shuffle", seed)
            records = stock_records(db)
            self.assertEqual([k[:9] for k, _ in records], [b"%08d_" % i for i in range(len(files))])
            self.assertEqual(sorted((k[9:], v) for k, v in records), sorted(files.items()))
            orders.append([k[9:] for k, _ in records])
        self.assertEqual(orders[0], orders[2])
        self.assertNotEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], sorted(files))
        lib = ctypes.CDLL(shimtest.CONFIG["lib"]) if not shimtest.CONFIG["sanitize"] else None
        if lib is not None:
            lib.lmdbio_shuffle.restype = ctypes.c_uint64
            u64 = ctypes.c_uint64
            self.assertEqual(orders[0], [sorted(files)[lib.lmdbio_shuffle(u64(1), u64(0), u64(len(files)), u64(i))]
                                         for i in range(len(files))])

    def test_shards(self):
        files = self.some_files(4, 2000)
        db = self.out
        self.pack(self.tree(files), db, "--max-size", "2M")
        shards = sorted(os.listdir(db))
        self.assertGreater(len(shards), 3)
        self.assertEqual(shards, ["%05d" % i for i in range(len(shards))])
        records = []
        for s in shards:
            self.assertLessEqual(os.path.getsize(f"{db}/{s}/data.mdb"), 2 << 20)
            self.assertTrue(os.path.exists(f"{db}/{s}/data.mdb.lmdbio-index"))
            records += stock_records(f"{db}/{s}")
        self.assertEqual(records, sorted(files.items()))

    def test_what_is_no_file(self):
        root, db = self.tree({b"a": b"1"}), self.out
        os.mkfifo(root + "/pipe")
        self.assertIn("pipe: not a regular file", self.pack(root, db, status=1).stderr)
        self.assertEqual(stock_records(db), [(b"a", b"1")])
        os.symlink("none", root + "/dangling")
        os.symlink("self", root + "/self")
        db = self.out
        errors = self.pack(root, db, status=1).stderr
        for name in ("dangling", "self"):
            self.assertIn(f"{name}: a symbolic link to nothing", errors)
        self.assertEqual(stock_records(db), [(b"a", b"1")])
        os.mkdir(root + "/d")
        os.symlink("..", root + "/d/up")
        self.assertIn("d/up: a symbolic link to a directory above it", self.pack(root, self.out, status=2).stderr)

    def test_keys_that_are_too_long(self):
        root = self.tree({b"d" * 250 + b"/" + b"e" * 250 + b"/" + b"f" * 20: b"1"})
        self.assertIn("its key has 522 bytes; LMDB allows 511", self.pack(root, self.out, status=2).stderr)

    def test_files_that_cannot_be_read(self):
        root = self.tree({b"%03d" % i: b"x" * 5000 for i in range(300)})
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], root)
            fs.__enter__()
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.addCleanup(fs.__exit__, None, None, None)
        fs.set(fail_from=200, fail_errno="EIO")
        db = self.out
        self.assertRegex(self.pack(fs.path, db, status=2).stderr, r"lmdbio: .*/\d{3}: Input/output error\n")
        self.assertFalse(os.path.exists(db))

    def test_slow_storage(self):
        """Directories are listed, and files read, many at a time."""
        files = {b"d/n%02d/%04d" % (i % 40, i): b"%04d" % i * 100 for i in range(400)}
        try:
            fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.tree(files), delay_us=2000, metadata_delay_us=2000, attr_timeout=1000,
                               max_background=256)
            fs.__enter__()
        except slowfs.Missing as why:
            self.skipTest(str(why))
        self.addCleanup(fs.__exit__, None, None, None)
        db = self.out
        self.pack(fs.path, db)
        self.assertEqual(stock_records(db), sorted(files.items()))
        counters = fs.counters()
        self.assertGreater(counters["read"]["in_flight_max"], 4)
        self.assertGreater(counters["lookups"]["in_flight_max"], 4)

    def test_usage(self):
        root = self.tree({b"a": b"1"})
        # CLI11 would take words in brackets for lists.
        os.rename(root, self.dir + "/[a,b]")
        root, db = self.dir + "/[a,b]", os.path.join(self.dir, "[c,d]")
        for words in (("[a,b]", "[c,d]"), ("[a,b]", "[c,d]2")):
            self.lmdbio("pack", *words, cwd=self.dir)
        self.assertEqual(stock_records(db), [(b"a", b"1")])
        for args in ((root,), (), (root, root + "2", self.out), (root, self.out, "--max-size", "0"),
                     (root, self.out, "--max-size", "much")):
            self.pack(*args, status=2)


class Tar(Case):
    def test_formats(self):
        files = {k: v for k, v in self.some_files(5).items()}
        root = self.tree(files)
        for form in ("gnu", "pax", "posix"):
            archive = os.path.join(self.dir, form + ".tar")
            subprocess.run(["tar", "-c", f"--format={form}", "-f", archive, "-C", root, "."], check=True)
            db = self.out
            self.pack(archive, db)
            self.assertEqual(stock_records(db), sorted(files.items()), form)
        short = {k: v for k, v in files.items() if len(k) < 100}
        root = self.tree(short, "short")
        for form in ("ustar", "v7"):
            archive = os.path.join(self.dir, form + ".tar")
            subprocess.run(["tar", "-c", f"--format={form}", "-f", archive, "-C", root, "."], check=True)
            db = self.out
            self.pack(archive, db)
            self.assertEqual(stock_records(db), sorted(short.items()), form)

    def test_webdataset(self):
        samples = {b"%06d.%s" % (i, e): b"%d%s" % (i, e) * 50 for i in range(300) for e in (b"jpg", b"cls", b"json")}
        archives = []
        for s in range(3):
            archives.append(os.path.join(self.dir, f"{s}.tar"))
            with tarfile.open(archives[-1], "w") as tar:
                for k in [k for k in samples if int(k[:6]) % 3 == s]:
                    info = tarfile.TarInfo(k.decode())
                    info.size = len(samples[k])
                    tar.addfile(info, io.BytesIO(samples[k]))
        db = self.out
        self.pack(*archives, db)
        self.assertEqual(stock_records(db), sorted(samples.items()))
        self.assertIn("two files of one key", self.pack(archives[0], archives[0], self.out, status=2).stderr)

    def test_any_keys(self):
        keys = self.fuzzed(6, 3000)
        source = self.write(keys)
        names = self.output("ls", "-0", source).split(b"\0")[:-1]
        lost = {files_test.key_of(n) for n in files_export_test.left_out(names)}
        archive = os.path.join(self.dir, "a.tar")
        with open(archive, "wb") as f:
            f.write(self.output("export", "--tar", source, status=1))
        db = self.out
        self.pack(archive, db)
        self.assertEqual(stock_records(db), sorted((k, v) for k, v in keys.items() if k not in lost))

    def test_other_entries(self):
        archive, db = os.path.join(self.dir, "a.tar"), self.out
        with tarfile.open(archive, "w") as tar:
            for name, kind in (("d", tarfile.DIRTYPE), ("f", tarfile.REGTYPE), ("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE),
                               ("p", tarfile.FIFOTYPE), ("c", tarfile.CHRTYPE)):
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, "f"
                tar.addfile(info)
        errors = self.pack(archive, db, status=1).stderr
        for name in "lhpc":
            self.assertIn(f"a.tar: {name}: not a regular file", errors)
        self.assertEqual(stock_records(db), [(b"f", b"")])

    def test_sparse_files(self):
        root = self.tree({b"after": b"1", b"before": b"2"})
        with open(root + "/holes", "wb") as f:
            for at in range(0, 60 << 16, 2 << 16):  # more pieces than one header has room for
                f.seek(at)
                f.write(b"x" * 4096)
        for form in ("gnu", "pax --sparse-version=0.0", "pax --sparse-version=0.1", "pax --sparse-version=1.0"):
            archive, db = os.path.join(self.dir, "s.tar"), self.out
            subprocess.run(["tar", "-c", "--sparse", *f"--format={form}".split(), "-f", archive, "-C", root, "before", "holes", "after"],
                           check=True)
            self.assertLess(os.path.getsize(archive), 2 << 20)
            self.assertIn("s.tar: holes: a sparse file", self.pack(archive, db, status=1).stderr, form)
            self.assertEqual(stock_records(db), [(b"after", b"1"), (b"before", b"2")], form)

    def test_without_zeros_at_the_end(self):
        good = self.archive()
        with tarfile.open(fileobj=io.BytesIO(good)) as tar:
            last = tar.getmembers()[-1]
        end = last.offset_data + (last.size + 511) // 512 * 512
        self.assertEqual(self.packs(good[:end]), self.packs(good))
        self.assertIn("truncated", self.packs(good[:end - 512])[1])
        # After the header of a long name, the entry is missing.
        long = [i for i in range(0, len(good), 512) if good[i:i + 13] == b"././@LongLink"][-1]
        self.assertIn("truncated", self.packs(good[:long + 1024])[1])

    def archive(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for i in range(40):
                info = tarfile.TarInfo("x" * (i * 7 + 1))
                info.size = 700 * i
                tar.addfile(info, io.BytesIO(b"y" * info.size))
        return out.getvalue()

    def packs(self, archive):
        """The status, and the records or the message."""
        path, db = os.path.join(self.dir, "t.tar"), self.out
        with open(path, "wb") as f:
            f.write(archive)
        done = command_test.command("pack", "--no-index", path, db)
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
        self.assertEqual(os.path.exists(db), done.returncode < 2)
        if done.returncode == 2:
            self.assertTrue(done.stderr.startswith("lmdbio: "), done.stderr)
        return done.returncode, done.stderr if done.returncode == 2 else stock_records(db)

    def test_bad_archives(self):
        good = self.archive()
        self.assertEqual(self.packs(good)[0], 0)
        for bad, text in ((good[:1000], "truncated"), (good[:512 * 5 + 100], "truncated"), (good[:len(good.rstrip(b"\0"))], "truncated"),
                          (b"", "truncated"), (b"garbage" * 200, "not a tar archive"), (b"\x1f\x8b" + good, "compressed"),
                          (b"\x28\xb5\x2f\xfd" + good, "compressed"), (good[:148] + b"9" + good[149:], "not a tar archive"),
                          (b"\xff" * 2048, "not a tar archive")):
            status, said = self.packs(bad)
            self.assertEqual(status, 2)
            self.assertIn(text, said)
        # A pipe cannot be packed.
        self.assertIn("neither a directory nor a file", self.pack("/dev/null", self.out, status=2).stderr)

    def test_damaged_archives(self):
        """Any bytes give an error, or records that Python finds as well."""
        good, r = self.archive(), random.Random(7)
        headers = [i for i in range(0, len(good), 512) if good[i + 257:i + 262] == b"ustar"]
        outcomes = {0: 0, 1: 0, 2: 0}
        for _ in range(150):
            bad = bytearray(good)
            for _ in range(r.randint(1, 3)):
                at = r.choice(headers) + r.randrange(512)
                bad[at] = r.randrange(256)
            if r.random() < 0.7:  # with right checksums, so that the fields are read
                for h in headers:
                    block = bytes(bad[h:h + 148]) + b" " * 8 + bytes(bad[h + 156:h + 512])
                    bad[h:h + 512] = block[:148] + b"%06o\0 " % sum(block) + block[156:]
            outcomes[self.packs(bytes(bad))[0]] += 1
        self.assertGreater(outcomes[0], 5)
        self.assertGreater(outcomes[2], 5)

    def test_contents_that_end_early(self):
        path, db = os.path.join(self.dir, "t.tar"), self.out
        with tarfile.open(path, "w") as tar:
            info = tarfile.TarInfo("a")
            info.size = 1 << 20
            tar.addfile(info, io.BytesIO(b"x" * info.size))
        os.truncate(path, 700000)
        self.assertIn("truncated", self.pack(path, db, status=2).stderr)


if __name__ == "__main__":
    shimtest.main()
