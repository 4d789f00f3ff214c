"""The installed tree: what is in it, and programs built against it with pkg-config and with find_package; what a build needs."""
import os
import shutil
import subprocess
import unittest

import command_test
import shimtest

HERE = os.path.dirname(os.path.abspath(__file__))
CONSUMER = os.path.join(HERE, "install")


class Install(shimtest.Case):
    def call(self, *argv, **extra):
        env = shimtest.environment("stock", extra)
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, " ".join(argv) + "\n" + done.stdout)
        return done.stdout

    def setUp(self):
        super().setUp()
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("sanitized libraries are not for installing")
        self.prefix = os.path.join(self.dir, "first")
        self.call(shimtest.CONFIG["cmake"], "--install", shimtest.CONFIG["build"], "--prefix", self.prefix)
        # An installed tree may be moved.
        moved = os.path.join(self.dir, "prefix")
        os.rename(self.prefix, moved)
        self.prefix = moved
        found = [d for d, _, files in os.walk(self.prefix) if "liblmdbio.so" in files]
        self.assertEqual(len(found), 1)
        self.libdir = found[0]

    def test_what_is_installed(self):
        files = sorted(os.path.relpath(os.path.join(d, f), self.prefix) for d, _, fs in os.walk(self.prefix) for f in fs)
        lib = os.path.relpath(self.libdir, self.prefix)
        expected = {"include/lmdbio/lmdbio.h", f"{lib}/liblmdbio.so", f"{lib}/lmdbio/liblmdb.so.0",
                    f"{lib}/pkgconfig/lmdbio.pc", f"{lib}/cmake/lmdbio/lmdbioConfig.cmake",
                    f"{lib}/cmake/lmdbio/lmdbioConfigVersion.cmake", f"{lib}/cmake/lmdbio/lmdbioTargets.cmake"}
        self.assertLessEqual(expected, set(files))
        # Nothing of LMDB's own name where a linker or loader looks, and nothing that tests or benchmarks brought.
        self.assertNotIn(f"{lib}/liblmdb.so.0", files)
        self.assertNotIn("include/lmdb.h", files)
        for name in files:
            self.assertNotRegex(name, r"gtest|gmock|benchmark|lib[a-z_]*\.a$")
        for name in files:
            if name.endswith((".pc", ".cmake")):
                with open(os.path.join(self.prefix, name), encoding="utf-8") as f:
                    text = f.read()
                self.assertNotIn(shimtest.CONFIG["source"], text, name)
                self.assertNotIn(self.dir, text, name)

    def test_command_finds_its_library(self):
        command = os.path.join(self.prefix, "bin", "lmdbio")
        if not os.path.exists(command):
            self.skipTest("built without the command")
        path = self.fresh()
        w = command_test.Writer(path)
        w.put([(b"a", b"1"), (b"b", b"2")])
        w.close()
        self.assertEqual(self.call(command, "ls", path), "a\nb\n")

    def check_consumers(self, c, cxx):
        version = shimtest.CONFIG["version"]
        stats = os.path.join(self.dir, "stats")
        out = self.call(c, self.fresh(), LD_LIBRARY_PATH=self.libdir, LMDBIO_STATS=stats)
        self.assertEqual(out, f"{version} world\n")
        lines = shimtest.read_stats(stats)
        self.assertTrue(any(e["ours"] for line in lines for e in line["environments"]))
        os.unlink(stats)
        self.assertEqual(self.call(cxx, LD_LIBRARY_PATH=self.libdir), version + "\n")

    @unittest.skipUnless(shutil.which("pkg-config"), "no pkg-config")
    def test_pkg_config(self):
        where = {"PKG_CONFIG_PATH": os.path.join(self.libdir, "pkgconfig")}
        self.assertEqual(self.call("pkg-config", "--modversion", "lmdbio", **where).strip(), shimtest.CONFIG["version"])
        flags = self.call("pkg-config", "--cflags", "lmdbio", **where).split()
        libs = self.call("pkg-config", "--libs", "lmdbio", **where).split()
        c, cxx = os.path.join(self.dir, "c"), os.path.join(self.dir, "cxx")
        strict = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
        self.call(shimtest.CONFIG["cc"], "-std=c99", *strict, *flags, "-o", c, CONSUMER + "/consumer.c", *libs, "-llmdb")
        self.call(shimtest.CONFIG["cxx"], "-std=c++11", *strict, *flags, "-o", cxx, CONSUMER + "/consumer.cc", *libs)
        self.check_consumers(c, cxx)

    def test_find_package(self):
        build = os.path.join(self.dir, "build")
        self.call(shimtest.CONFIG["cmake"], "-S", CONSUMER, "-B", build, "-DCMAKE_PREFIX_PATH=" + self.prefix,
                  "-DCMAKE_C_COMPILER=" + shimtest.CONFIG["cc"], "-DCMAKE_CXX_COMPILER=" + shimtest.CONFIG["cxx"])
        self.call(shimtest.CONFIG["cmake"], "--build", build)
        self.check_consumers(build + "/consumer_c", build + "/consumer_cxx")

    # As Caffe: policies of CMake 2, and C++11 that is no C++20.
    def test_find_package_in_an_old_project(self):
        folder, build = os.path.join(self.dir, "old_consumer"), os.path.join(self.dir, "old_build")
        os.mkdir(folder)
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as f:
            f.write("cmake_minimum_required(VERSION 2.8.7)\nproject(consumer C CXX)\nfind_package(lmdbio REQUIRED)\n"
                    'set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -std=c++11")\n'
                    f"add_executable(consumer_c {CONSUMER}/consumer.c old.cc)\n"
                    "target_link_libraries(consumer_c lmdbio::lmdbio lmdb)\n")
        with open(os.path.join(folder, "old.cc"), "w", encoding="utf-8") as f:
            f.write("#include <lmdbio/lmdbio.h>\ntemplate <class T> struct Layer { ~Layer<T>() {} };\ntemplate struct Layer<int>;\n")
        done = subprocess.run([shimtest.CONFIG["cmake"], "-S", folder, "-B", build, "-DCMAKE_PREFIX_PATH=" + self.prefix,
                               "-DCMAKE_C_COMPILER=" + shimtest.CONFIG["cc"], "-DCMAKE_CXX_COMPILER=" + shimtest.CONFIG["cxx"]],
                              env=shimtest.environment("stock"), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("CMP0057", done.stderr)
        self.call(shimtest.CONFIG["cmake"], "--build", build)

    def test_mpi(self):
        if "liblmdbio_mpi.so" not in os.listdir(self.libdir):
            self.skipTest("built without MPI")
        example = os.path.join(shimtest.CONFIG["source"], "docs", "examples", "mpi_batches.c")
        where = {"PKG_CONFIG_PATH": os.path.join(self.libdir, "pkgconfig")}
        flags = self.call("pkg-config", "--cflags", "--libs", "lmdbio-mpi", **where).split()
        program = os.path.join(self.dir, "mpi")
        self.call(shimtest.CONFIG["cc"], example, *flags, "-llmdb", "-o", program)
        folder = os.path.join(self.dir, "mpi_consumer")
        os.mkdir(folder)
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as f:
            f.write("cmake_minimum_required(VERSION 3.16)\nproject(consumer C CXX)\nset(CMAKE_CXX_STANDARD 20)\n"
                    "find_package(lmdbio REQUIRED COMPONENTS mpi)\n"
                    f"add_executable(consumer {example})\ntarget_link_libraries(consumer lmdbio::mpi lmdb)\n"
                    "add_executable(consumer_cc main.cc)\ntarget_link_libraries(consumer_cc lmdbio::mpi lmdb)\n")
        with open(os.path.join(folder, "main.cc"), "w", encoding="utf-8") as f:
            f.write("#include <lmdbio/mpi_reader.h>\nint main(int argc, char** argv) {\n"
                    "  if (argc > 1) lmdbio::MpiRanks(MPI_COMM_WORLD).open(argv[1]);\n  return lmdbio_version() == nullptr;\n}\n")
        build = os.path.join(self.dir, "mpi_build")
        self.call(shimtest.CONFIG["cmake"], "-S", folder, "-B", build, "-DCMAKE_PREFIX_PATH=" + self.prefix,
                  "-DCMAKE_C_COMPILER=" + shimtest.CONFIG["cc"], "-DCMAKE_CXX_COMPILER=" + shimtest.CONFIG["cxx"])
        self.call(shimtest.CONFIG["cmake"], "--build", build)
        self.call(build + "/consumer_cc")

    def test_the_header_for_cxx_says_which_standard_it_needs(self):
        source = os.path.join(self.dir, "reader.cc")
        with open(source, "w", encoding="utf-8") as f:
            f.write("#include <lmdbio/reader.h>\nint main() {}\n")
        command = [shimtest.CONFIG["cxx"], "-fsyntax-only", "-I" + self.prefix + "/include", source]
        self.call(*command, "-std=c++20")
        done = subprocess.run([*command, "-std=c++17"], stderr=subprocess.PIPE, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("lmdbio/reader.h needs C++20", done.stderr)


class Configure(shimtest.Case):
    def test_what_is_missing_is_named_at_once(self):
        done = subprocess.run([shimtest.CONFIG["cmake"], "-S", shimtest.CONFIG["source"], "-B", os.path.join(self.dir, "build"),
                               "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON",
                               "-DCMAKE_C_COMPILER=" + shimtest.CONFIG["cc"],
                               "-DCMAKE_CXX_COMPILER=" + shimtest.CONFIG["cxx"]],
                              env=shimtest.environment("stock"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("sudo apt-get install -y --no-install-recommends libcli11-dev libgtest-dev libgmock-dev\n", done.stderr)
        self.assertIn("CLI11 (or -DLMDBIO_COMMAND=OFF)", done.stderr)
        self.assertNotIn("liblmdb-dev", done.stderr)


if __name__ == "__main__":
    shimtest.main()
