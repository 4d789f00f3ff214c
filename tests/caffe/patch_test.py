#!/usr/bin/python3 -B
"""caffe_patch: its patch inserts lines and nothing else, and apply changes a tree in full or not at all.

The tree is synthetic: files of numbered lines, in the places of Caffe's files.  usage: patch_test.py SOURCE_DIRECTORY"""
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.abspath(sys.argv.pop(1))
APPLY = os.path.join(TOP, "caffe_patch", "apply")


def load_apply():
    loader = importlib.machinery.SourceFileLoader("apply", APPLY)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("apply", loader))
    loader.exec_module(module)
    return module


apply = load_apply()


def contents(tree):
    found = {}
    for at, _, files in os.walk(tree):
        for name in files:
            path = os.path.join(at, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, tree)] = file.read(), os.stat(path).st_mode
    return found


class IntelCaffe(unittest.TestCase):
    name, most_lines = "intel_caffe.patch", 40

    def setUp(self):
        self.file = os.path.join(TOP, "caffe_patch", self.name)
        self.patch = apply.read_patch(self.file)
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.tree = os.path.join(place.name, "tree")
        for change in self.patch:
            path = os.path.join(self.tree, change.path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as file:
                file.writelines(f"line {i + 1} of {change.path}\n" for i in range(2000))
        for path in apply.OWN_FILES.values():
            os.makedirs(os.path.join(self.tree, os.path.dirname(path)), exist_ok=True)
        os.chmod(os.path.join(self.tree, "src/caffe/proto/caffe.proto"), 0o755)
        # A copy of caffe_patch for this tree: the same patches, this one with the object ids of these files.
        self.own = os.path.join(place.name, "caffe_patch")
        os.makedirs(self.own)
        for name in apply.VERSIONS:
            shutil.copy(os.path.join(TOP, "caffe_patch", name), self.own)
        with open(self.file, encoding="utf-8") as file:
            text = file.read()
        for change in self.patch:
            with open(os.path.join(self.tree, change.path), "rb") as file:
                content = file.read()
            text = text.replace(change.before, apply.object_id(content)).replace(change.after, apply.object_id(change.apply(content)))
        with open(os.path.join(self.own, self.name), "w", encoding="utf-8") as file:
            file.write(text)
        for name in ["apply", *apply.OWN_FILES]:
            with open(os.path.join(TOP, "caffe_patch", name), "rb") as source, open(os.path.join(self.own, name), "wb") as copy:
                copy.write(source.read())

    def apply(self, *options, rc=0):
        done = subprocess.run([sys.executable, "-B", os.path.join(self.own, "apply"), self.tree, *options], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        self.assertEqual(done.stderr == "", rc == 0)
        return done.stdout + done.stderr

    def test_only_insertions_and_nothing_of_caffe(self):
        with open(self.file, encoding="utf-8") as file:
            lines = file.read().splitlines()
        inserted = [line for line in lines if line.startswith("+") and not line.startswith("+++ ")]
        self.assertLessEqual(len(inserted), self.most_lines)
        self.assertGreater(len(inserted), 10)
        for line in lines:
            self.assertNotRegex(line, r"^( |-(?!-- ))")
            if line.startswith("@@"):
                self.assertRegex(line, r"^@@ -\d+,0 \+\d+(,\d+)? @@$")

    def test_the_double_has_the_inserted_interface(self):
        with open(os.path.join(TOP, "tests/support/caffe_double/caffe/util/db.hpp"), "rb") as file:
            double = file.read()
        for change in (c for c in self.patch if c.path == "include/caffe/util/db.hpp"):
            for _, lines in change.insertions:
                self.assertIn(b"".join(lines), double)

    def test_the_makefile_respects_what_the_user_leaves_out(self):
        makefile = os.path.join(os.path.dirname(self.tree), "Makefile")
        inserted = [b"".join(lines) for c in self.patch if c.path == "Makefile" for _, lines in c.insertions]
        with open(makefile, "wb") as file:
            file.write(b"USE_LMDB ?= 1\n" + b"".join(inserted) + b"all:\n\t@echo $(LIBRARIES) $(COMMON_FLAGS)\n")
        for settings, linked in [([], True), (["USE_LMDBIO=0"], False), (["USE_LMDB=0"], False), (["USE_LMDB=0", "USE_LMDBIO=1"], False)]:
            done = subprocess.run(["make", "-s", "-f", makefile, *settings], capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout.strip(), "lmdbio -DUSE_LMDBIO" if linked else "", settings)

    def test_cmake_asks_for_lmdbio_only_with_lmdb(self):
        if not shutil.which("cmake"):
            self.skipTest("no cmake")
        inserted = [line.decode() for c in self.patch if c.path == "CMakeLists.txt" for _, lines in c.insertions for line in lines]
        # The part of Caffe's own function that this needs: the option exists if the condition after IF holds.
        script = ("function(caffe_option name text value)\n  list(REMOVE_ITEM ARGN IF)\n  if(${ARGN})\n"
                  "    set(${name} ${value} PARENT_SCOPE)\n  endif()\nendfunction()\n" + "".join(inserted) +
                  'message("USE_LMDBIO=${USE_LMDBIO}")\n')
        file = os.path.join(os.path.dirname(self.tree), "options.cmake")
        with open(file, "w", encoding="utf-8") as out:
            out.write(script)
        for lmdb, linked in [("ON", "ON"), ("OFF", "")]:
            done = subprocess.run(["cmake", f"-DUSE_LMDB={lmdb}", "-P", file], capture_output=True, text=True, check=True)
            self.assertIn(f"USE_LMDBIO={linked}\n", done.stderr)

    def test_apply_twice_and_reverse_twice(self):
        before = contents(self.tree)
        self.assertIn("can be added", self.apply("--check"))
        self.assertEqual(contents(self.tree), before)
        self.apply()
        applied = contents(self.tree)
        self.assertEqual(set(applied) - set(before), set(apply.OWN_FILES.values()))
        for change in self.patch:
            self.assertEqual(applied[change.path][1], before[change.path][1])
            self.assertEqual(change.reverse(applied[change.path][0]), before[change.path][0])
        self.assertIn("nothing to do", self.apply())
        self.assertEqual(contents(self.tree), applied)
        self.apply("--reverse")
        self.assertEqual(contents(self.tree), before)
        self.assertIn("nothing to do", self.apply("--reverse"))
        self.assertEqual(contents(self.tree), before)

    def test_other_tools_do_the_same(self):
        before = contents(self.tree)
        self.apply()
        applied = {path: content for path, (content, _) in contents(self.tree).items() if path not in apply.OWN_FILES.values()}
        self.apply("--reverse")
        tools = [["patch", "-s", "-p1", "-i", self.file]]
        if shutil.which("git"):
            tools.append(["git", "apply", "--unidiff-zero", self.file])
        for tool in tools:
            for direction, wanted in [([], applied), (["-R"], {path: content for path, (content, _) in before.items()})]:
                subprocess.run([*tool[:2], *direction, *tool[2:]], cwd=self.tree, check=True)
                self.assertEqual({path: content for path, (content, _) in contents(self.tree).items()}, wanted)

    def test_another_tree_is_refused_and_untouched(self):
        for damage in ["append", "remove"]:
            for reverse in [[], ["--reverse"]]:
                if reverse:
                    self.apply()
                path = os.path.join(self.tree, "src/caffe/util/db.cpp")
                with open(path, "rb") as file:
                    content = file.read()
                if damage == "append":
                    with open(path, "ab") as file:
                        file.write(b"\n")
                else:
                    os.unlink(path)
                before = contents(self.tree)
                said = self.apply(*reverse, rc=1)
                self.assertRegex(said, re.escape("src/caffe/util/db.cpp: ") + "(differs|is not there)")
                self.assertNotIn("Makefile", said)
                self.assertEqual(contents(self.tree), before)
                with open(path, "wb") as file:
                    file.write(content)
                self.apply("--reverse")

    def test_a_file_of_ours_that_was_changed_is_not_lost(self):
        self.apply()
        path = os.path.join(self.tree, "src/caffe/util/db_lmdbio.cpp")
        with open(path, "ab") as file:
            file.write(b"// mine\n")
        before = contents(self.tree)
        for options in [[], ["--reverse"]]:
            self.assertIn("db_lmdbio.cpp", self.apply(*options, rc=1))
            self.assertEqual(contents(self.tree), before)

    def test_an_interrupted_apply_is_completed(self):
        before = contents(self.tree)
        self.apply()
        applied = contents(self.tree)
        for path in ["Makefile", "src/caffe/util/db.cpp"]:
            with open(os.path.join(self.tree, path), "wb") as file:
                file.write(before[path][0])
        self.apply()
        self.assertEqual(contents(self.tree), applied)


class BvlcCaffe(IntelCaffe):
    name, most_lines = "bvlc_caffe.patch", 19


if __name__ == "__main__":
    unittest.main()
