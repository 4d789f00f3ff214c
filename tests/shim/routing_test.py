"""Modules opened with RTLD_LOCAL that bring an LMDB of their own, or none: each environment goes to the right one."""
import unittest

import shimtest


def plain(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def told(text, what):
    return [int(line.split()[-1]) for line in text.splitlines() if line.startswith("#") and what in line]


class Routing(shimtest.Case):
    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")

    def module(self, name):
        path = shimtest.CONFIG["modules"][name]
        if not path:
            self.skipTest("no static liblmdb to bundle, or no clang")
        return path

    def compare(self, names, extra=None, ours=1000):
        argv = ["dlopen_host"]
        for i, name in enumerate(names):
            argv += [self.module(name), None]

        def with_dirs():
            return [a if a else self.fresh(f"db{i}") for i, a in enumerate(argv)]

        stock = shimtest.run("stock", with_dirs(), extra)
        got = shimtest.run("preload", with_dirs(), extra)
        self.assertEqual(stock.returncode, 0, stock.out + stock.err)
        self.assertEqual(got.returncode, 0, got.out[-2000:] + got.err)
        if plain(stock.out) != plain(got.out):
            self.fail(shimtest.difference(plain(stock.out), plain(got.out)))
        self.assertEqual(got.err, stock.err)
        self.assertGreaterEqual(got.calls_ours(), ours)
        return stock, got

    def test_real_lmdb_bundled(self):
        stock, got = self.compare(["bundled"])
        self.assertEqual(told(stock.out, "mapped"), [0])
        self.assertEqual(told(got.out, "mapped"), [0], "the module's own LMDB was not the one used")
        self.assertGreater(told(got.out, "own calls")[0], 1000)

    def test_real_lmdb_bundled_with_names_of_its_own(self):
        stock, got = self.compare(["renamed"])
        self.assertEqual(told(got.out, "mapped"), [0], "the module's own LMDB was not the one used")
        self.assertGreater(told(got.out, "own calls")[0], 1000)
        self.assertLess(told(got.out, "own calls")[0], told(stock.out, "own calls")[0] - 1000)

    def test_real_lmdb_bundled_and_no_other_on_the_machine(self):
        _, got = self.compare(["bundled"], {"LD_AUDIT": shimtest.CONFIG["hide"]})
        self.assertEqual(told(got.out, "mapped"), [0])

    def test_nothing_is_hidden_by_accident(self):
        got = shimtest.run("stock", ["dlopen_host", self.module("linked"), self.fresh()],
                           {"LD_AUDIT": shimtest.CONFIG["hide"]})
        self.assertNotEqual(got.returncode, 0, "liblmdb was found although it should not be")

    def test_bundled_stand_in_sees_the_calls(self):
        stock, got = self.compare(["stand_in"])
        self.assertGreater(told(stock.out, "own calls")[0], 1000)
        # The companion's and the writer's calls, but not the lookups.
        self.assertGreater(told(got.out, "own calls")[0], 1000, "the writing alone is a thousand")
        self.assertLess(told(got.out, "own calls")[0], told(stock.out, "own calls")[0] - 1000)

    def test_linked_to_the_systems(self):
        _, got = self.compare(["linked"])
        self.assertEqual(told(got.out, "mapped"), [1])

    def test_three_at_once(self):
        _, got = self.compare(["bundled", "stand_in", "linked"], ours=3000)
        for calls in told(got.out, "own calls")[:2]:
            self.assertGreater(calls, 1000)

    # Calls that the compiler put into the module work on handles of the LMDB in it.
    def test_calls_inlined(self):
        for name in ("inlined", "inlined_midl"):
            with self.subTest(module=name):
                _, got = self.compare([name, "linked"], ours=1000)
                self.assertLess(got.calls_ours(), 3000, "LMDBIO served the module")

    # The statistics name them.
    def test_not_reached(self):
        for name in ("symbolic", "inlined"):
            with self.subTest(module=name):
                _, got = self.compare([name], ours=0)
                self.assertEqual([(line["environments"], line["unreached"]) for line in got.stats],
                                 [([], self.module(name))])
        _, got = self.compare(["symbolic", "bundled"])
        self.assertEqual([line["unreached"] for line in got.stats if "unreached" in line], [self.module("symbolic")])
        _, got = self.compare(["bundled", "renamed", "stand_in", "linked"])
        self.assertEqual([line for line in got.stats if "unreached" in line], [])
        argv = ["dlopen_host", self.module("symbolic"), self.fresh()]
        self.assertEqual(shimtest.run("disabled", argv).stats, [])
        self.assertEqual(shimtest.run("preload", argv, {"LMDBIO_STATS": ""}).err, "")

    def test_bundled_with_disable(self):
        argv = ["dlopen_host", self.module("bundled")]
        stock = shimtest.run("stock", argv + [self.fresh()])
        got = shimtest.run("disabled", argv + [self.fresh()])
        self.assertEqual(got.returncode, 0, got.err)
        self.assertEqual(plain(stock.out), plain(got.out))
        self.assertGreaterEqual(told(got.out, "own calls")[0], told(stock.out, "own calls")[0])

    # No LMDB anywhere: an error code, not a crash.
    def test_no_lmdb_at_all(self):
        code = ("import ctypes, sys\n"
                "lib = ctypes.CDLL(None)\n"
                "lib.mdb_env_create.argtypes = [ctypes.c_void_p]\n"
                "env = ctypes.c_void_p()\n"
                "rc = lib.mdb_env_create(ctypes.byref(env))\n"
                "lib.mdb_strerror.restype = ctypes.c_char_p\n"
                "lib.mdb_version.restype = ctypes.c_char_p\n"
                "print(rc != 0, lib.mdb_strerror(-30798) is not None, lib.mdb_version(None, None, None) is not None)\n")
        got = shimtest.run("preload", ["/usr/bin/python3", "-c", code], {"LD_AUDIT": shimtest.CONFIG["hide"]})
        self.assertEqual(got.returncode, 0, got.err)
        self.assertEqual(got.out, "True True True\n")
        self.assertLessEqual(len(got.err.splitlines()), 1, got.err)


if __name__ == "__main__":
    shimtest.main()
