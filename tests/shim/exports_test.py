"""What the two artifacts show to the loader: names, versions, dependencies, flags."""
import os
import re
import shutil
import subprocess
import unittest

import shimtest


def tool(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout


def golden():
    with open(shimtest.CONFIG["exports"], encoding="utf-8") as f:
        return sorted(line.split("#")[0].strip() for line in f if line.split("#")[0].strip())


@unittest.skipUnless(shutil.which("nm") and shutil.which("readelf"), "needs binutils")
class Exports(shimtest.Case):
    def artifacts(self):
        for name in ("lib", "soname"):
            with self.subTest(artifact=name):
                yield shimtest.CONFIG[name]

    def test_names_are_the_golden_list(self):
        for path in self.artifacts():
            names = sorted(line.split()[-1] for line in tool("nm", "-D", "--defined-only", path).splitlines())
            self.assertEqual(names, golden())

    # The header of 1.0 declares the functions of 0.9 and those that are listed here.
    def test_golden_list_has_all_of_lmdb_h(self):
        with open(shimtest.CONFIG["lmdb_h"], encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/|^\s*#.*?$", "", f.read(), flags=re.S | re.M)
        declared = set(re.findall(r"\b(mdb_\w+)\s*\([^;]*\)\s*;", re.sub(r"typedef[^;]*;", "", text)))
        self.assertEqual(len(declared), 56)
        listed = set(golden())
        self.assertLessEqual(declared, listed)
        others = {"mdb_env_copy3", "mdb_env_copyfd3"}  # py-lmdb's
        modules = {"mdb_modload", "mdb_modunload", "mdb_modsetup"}  # no renamed copy has them
        of_10 = modules | {"mdb_cursor_is_db", "mdb_env_incr_dump", "mdb_env_incr_dumpfd", "mdb_env_incr_loadfd",
                           "mdb_env_rollback", "mdb_env_set_checksum", "mdb_env_set_encrypt", "mdb_env_set_pagesize",
                           "mdb_txn_flags", "mdb_txn_prepare"}
        plain = declared | others | of_10
        self.assertEqual({n for n in listed if n.startswith("mdb_")}, plain)
        for prefix, names in (("mdb09_", declared | others), ("mdb10_", plain - modules)):
            self.assertEqual({n for n in listed if n.startswith(prefix)}, {prefix + n[len("mdb_"):] for n in names})
        self.assertTrue(all(n.startswith(("lmdbio_", "mdb_", "mdb09_", "mdb10_")) for n in listed))
        self.assertIn("lmdbio_version", listed)

    def test_no_symbol_versions_of_ours(self):
        for path in self.artifacts():
            self.assertNotIn("Version definition section", tool("readelf", "-VW", path))
            self.assertNotIn("@", tool("nm", "-D", "--defined-only", path))

    def test_sonames(self):
        expected = {"lib": "liblmdbio.so", "soname": "liblmdb.so.0"}
        for key, name in expected.items():
            self.assertIn(f"soname: [{name}]", tool("readelf", "-dW", shimtest.CONFIG[key]))
            self.assertEqual(os.path.basename(shimtest.CONFIG[key]), name)

    def test_flags(self):
        for path in self.artifacts():
            dynamic = tool("readelf", "-dW", path)
            for flag in ("STATIC_TLS", "TEXTREL", "NODELETE", "RPATH", "RUNPATH"):
                self.assertNotIn(flag, dynamic)
            self.assertNotRegex(tool("readelf", "-lW", path), r"GNU_STACK.*RWE")

    @unittest.skipIf(os.environ.get("SHIMTEST_ANY_LIBS"), "told not to")
    def test_depends_on_libc_only(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("the sanitizer's runtime is a dependency")
        for path in self.artifacts():
            names = {line.split()[0].split("/")[-1] for line in tool("ldd", path).splitlines()}
            self.assertLessEqual(names, {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
                                         "ld-linux-aarch64.so.1"})
            wanted = tool("nm", "-D", "--undefined-only", path)
            for alien in ("GLIBCXX", "CXXABI", "mdb_", "_Unwind_"):
                self.assertNotIn(alien, wanted)

    # Thread-local storage that needs the static block would fail here sooner or later; a second opening must be the
    # same library, and closing it must not take the process down.
    def test_dlopen(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("the sanitizer's runtime must load first")
        code = ("import ctypes, os, sys\n"
                "for _ in range(3):\n"
                "    lib = ctypes.CDLL(sys.argv[1], os.RTLD_NOW | os.RTLD_LOCAL)\n"
                "    lib.mdb_strerror.restype = ctypes.c_char_p\n"
                "    lib.lmdbio_version.restype = ctypes.c_char_p\n"
                "    print(lib.mdb_strerror(-30798).decode(), lib.lmdbio_version().decode())\n"
                "    lib.mdb_env_create.argtypes = [ctypes.c_void_p]\n"
                "    env = ctypes.c_void_p()\n"
                "    print(lib.mdb_env_create(ctypes.byref(env)))\n"
                "    lib.mdb_env_close.argtypes = [ctypes.c_void_p]\n"
                "    lib.mdb_env_close(env)\n")
        for path in self.artifacts():
            got = shimtest.run("stock", ["/usr/bin/python3", "-c", code, path])
            self.assertEqual(got.returncode, 0, got.err)
            self.assertEqual(got.err, "")
            version = shimtest.CONFIG["version"]
            self.assertEqual(got.out.splitlines(), [f"MDB_NOTFOUND: No matching key/data pair found {version}", "0"] * 3)


if __name__ == "__main__":
    shimtest.main()
