#!/usr/bin/env python3
"""Rules on the source tree that a compiler does not check.

check_layers.py layers ROOT      each folder includes only what the table allows; the owners of close and munmap
check_layers.py registered ROOT  each tests/**/*_test.{cc,c,py} is named, uncommented, in the nearest build file
check_layers.py tested ROOT      docs/tests.md names each module once, tests that are registered, and each test file
check_layers.py selftest         the rules find what they are for
"""
import fnmatch
import os
import re
import sys
import tempfile

# Folder -> the project's folders (or single headers) that it may include, besides itself.  The longest prefix counts.
PUBLIC = "lmdbio/include"
LAYERS = {
    "lmdbio/include": [],
    "lmdbio/base": [],
    "lmdbio/format": ["lmdbio/base"],
    "lmdbio/io": ["lmdbio/base"],
    "lmdbio/node": ["lmdbio/base"],
    "lmdbio/cache": ["lmdbio/base", "lmdbio/format", "lmdbio/io"],
    "lmdbio/gather": ["lmdbio/base", "lmdbio/io", "lmdbio/node", "lmdbio/cache"],
    "lmdbio/window": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node", "lmdbio/cache", "lmdbio/gather"],
    "lmdbio/ahead": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/gather", "lmdbio/window"],
    "lmdbio/tree": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/gather", "lmdbio/window", "lmdbio/ahead"],
    "lmdbio/check": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/gather", "lmdbio/window", "lmdbio/tree"],
    "lmdbio/records": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/cache", "lmdbio/node/counter_board.h", "lmdbio/gather", "lmdbio/tree", PUBLIC],
    "lmdbio/stats": ["lmdbio/base", "lmdbio/node", "lmdbio/window", "lmdbio/tree", "lmdbio/records"],
    "lmdbio/ranks": ["lmdbio/base", "lmdbio/io", "lmdbio/node", "lmdbio/records", PUBLIC],
    "lmdbio/serve": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node", "lmdbio/cache", "lmdbio/gather", "lmdbio/ranks"],
    "lmdbio/files": ["lmdbio/base", "lmdbio/format/layout.h", "lmdbio/tree/damage.h", PUBLIC],
    "lmdbio/fuse": ["lmdbio/base", "lmdbio/files", "lmdbio/tree/damage.h", PUBLIC],
    "lmdbio/cli": ["lmdbio/files", "lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node", "lmdbio/cache", "lmdbio/window", "lmdbio/tree",
                   "lmdbio/check", "lmdbio/records", "lmdbio/stats", "lmdbio/ranks", "lmdbio/serve/ready.h", PUBLIC],
    "compat": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node", "lmdbio/cache", "lmdbio/gather", "lmdbio/window", "lmdbio/ahead",
               "lmdbio/tree", "lmdbio/check", "lmdbio/records", "lmdbio/stats", "lmdbio/ranks", PUBLIC],
    "lmdbio/python": ["lmdbio/gather/prepared_memory.h", "lmdbio/files/datum.h", PUBLIC],
    "caffe_patch": [PUBLIC],
    "bench": ["lmdbio/base", "lmdbio/format", "lmdbio/io", PUBLIC],
    "bench/scale/simulation": ["bench", "lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node/service.h", "lmdbio/records/build_index.h",
                               "lmdbio/ranks", "lmdbio/serve", PUBLIC],
    "tests": ["lmdbio", "compat", "bench", "caffe_patch"],
}
# System headers that only these folders may include.
RESTRICTED = [
    (re.compile(r"mpi\.h$"), ["lmdbio/ranks", "lmdbio/serve", "lmdbio/include", "lmdbio/python", "bench", "tests", "caffe_patch"]),
    (re.compile(r"liburing"), ["lmdbio/io", "bench", "tests"]),
    (re.compile(r"(?:lz4|zstd)\w*\.h$"), ["lmdbio/cache", "bench", "tests"]),
    (re.compile(r"lmdb\.h$"), ["lmdbio/format", "lmdbio/ahead", "lmdbio/tree", "lmdbio/records", "lmdbio/files", "lmdbio/fuse", "lmdbio/cli", "lmdbio/include", "lmdbio/python",
                               "compat", "caffe_patch", "bench", "tests"]),
]
# Calls that only one file of the product makes.
OWNED = [
    (re.compile(r"(?<![\w>.])(?<!\w::)(?:::)?munmap\s*\("), "lmdbio/base/mapping.h"),
    (re.compile(r"(?<![\w:])::close\s*\("), "lmdbio/base/unique_fd.h"),
]
# What is decided, or done to a database file, in one place only: pattern, the folders and files that may, what to say.
ONLY = [
    (re.compile(r"::preadv?2?\s*\(|\bSYS_preadv?\w*|\bMADV_POPULATE_READ\b"),
     ["lmdbio/io", "lmdbio/cache", "lmdbio/cli",  # a command reads the file that it is given
      "lmdbio/records/index_file.cc",   # an index file
      "lmdbio/files/tar_reader.cc",     # files that are packed into a database
      "lmdbio/files/append_writer_10.cc",  # what a killed process of this command has written
      "lmdbio/fuse/file_system.cc",     # values that are touched next, to get an error instead of SIGBUS
      "lmdbio/window/touched.cc"],      # /proc/self/pagemap
     "reads a file outside lmdbio/io"),
    (re.compile(r"\bIoMode::\w+|[=<>]\s*0\.9\d?(?![\w.])"),
     ["lmdbio/io/read_path.h", "lmdbio/base/config.h", "lmdbio/base/config.cc"],
     "decides how a file is read outside lmdbio/io/read_path.h"),
    (re.compile(r"\bselect_engine\w*\b|\bmake_unique<ReadQueue>"), ["lmdbio/io", "lmdbio/gather"],
     "makes a queue or an engine outside lmdbio/gather"),
    (re.compile(r"\bO_DIRECT\b"), ["lmdbio/io"], "opens for direct reads outside lmdbio/io"),
    (re.compile(r"\bFile::(?:open|keep|reopen)\s*\(|(?:\.|->)again\s*\("), ["lmdbio/io/open_file.cc", "lmdbio/io/file.cc"],
     "opens a database file outside lmdbio/io/open_file.cc"),
]
# The table from modules to tests, and the folders whose modules it has to name.
TABLE = "docs/tests.md"
TESTED = [f"lmdbio/{f}" for f in ("base", "format", "io", "node", "cache", "gather", "window", "ahead", "tree", "check", "records", "ranks", "serve", "stats", "files", "fuse")] + ["compat"]
TEST = (".cc", ".c", ".py")
SOURCE = (".h", ".cc", ".c", ".cpp", ".hpp")
SKIPPED = {"build", ".git", "__pycache__"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)


def files(root, folder, endings):
    for at, dirs, names in os.walk(os.path.join(root, folder)):
        dirs[:] = sorted(d for d in dirs if d not in SKIPPED)
        for n in sorted(names):
            if n.endswith(endings):
                yield os.path.relpath(os.path.join(at, n), root)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def under(path, folder):
    return path == folder or path.startswith(folder + "/")


def layer_of(path):
    fitting = [f for f in LAYERS if under(path, f)]
    return max(fitting, key=len) if fitting else None


def without_comments(text):
    keep_lines = lambda m: "\n" * m.group(0).count("\n")
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", keep_lines, text, flags=re.S))


def resolve(root, path, name):
    """The project's file that `name` means in `path`, or None."""
    for base in (os.path.dirname(path), "", PUBLIC):
        found = os.path.normpath(os.path.join(base, name))
        if os.path.isfile(os.path.join(root, found)):
            return found
    return None


def check_layers(root):
    wrong = []
    tops = sorted({f.split("/")[0] for f in LAYERS})
    for path in (p for top in tops for p in files(root, top, SOURCE)):
        layer = layer_of(path)
        if layer is None:
            wrong.append(f"{path}: in no layer of check_layers.py")
            continue
        text = without_comments(read(root, path))
        for m in INCLUDE.finditer(text):
            where = f"{path}:{text.count(chr(10), 0, m.start()) + 1}"
            quoted, name = m.group(1) == '"', m.group(2)
            target = resolve(root, path, name)
            if target is None and (quoted and "/" in name) and layer_of(name):
                wrong.append(f"{where}: no such file: {name}")
            if target is not None:
                if not any(under(target, f) for f in [layer, *LAYERS[layer]]):
                    wrong.append(f"{where}: {layer} must not include {target}")
                continue
            for pattern, allowed in RESTRICTED:
                if pattern.search(name) and not any(under(path, f) for f in allowed):
                    wrong.append(f"{where}: {layer} must not include {name}")
        if layer.split("/")[0] in ("lmdbio", "compat"):
            for pattern, owner in OWNED:
                if path != owner:
                    wrong += [f"{path}:{text.count(chr(10), 0, m.start()) + 1}: only {owner} calls "
                              f"{m.group(0).rstrip('( ').lstrip(':')}" for m in pattern.finditer(text)]
            for pattern, places, what in ONLY:
                if not any(under(path, p) for p in places):
                    wrong += [f"{path}:{text.count(chr(10), 0, m.start()) + 1}: {what}: {m.group(0)}"
                              for m in pattern.finditer(text)]
    return wrong


def build_text(root, path):
    """The nearest folder with a CMakeLists.txt to a file of tests, and its build files without comments."""
    folder = os.path.dirname(path)
    while True:
        if os.path.isfile(os.path.join(root, folder, "CMakeLists.txt")) or folder in ("", "tests"):
            break
        folder = os.path.dirname(folder)
    text = ""
    here = os.path.join(root, folder)
    for n in sorted(os.listdir(here)):
        if n == "CMakeLists.txt" or n.endswith(".cmake"):
            text += read(root, os.path.join(folder, n)) + "\n"
    text = re.sub(r"#\[(=*)\[.*?\]\1\]", "", text, flags=re.S)
    return folder, re.sub(r"#[^\n]*", "", text)


def is_registered(folder, text, path, any_ending=False):
    name = re.escape(os.path.relpath(path, folder))
    if any_ending:
        name = re.sub(r"\\\.(py|cc|c)$", r"(\\.\1)?", name)
        prefix = os.path.basename(folder) + "_"
        if name.startswith(prefix):  # fuzz/fuzz_page.cc: lmdbio_fuzz(page ..)
            name = rf"({name}|(?<=\(){name[len(prefix):]})"
    elif not path.endswith(".cc"):  # programs that a loop adds may be named without their ending
        name = name.replace(r"\.py", r"(\.py)?").replace(r"\.c", r"(\.c)?")
    return re.search(rf"(?<![\w.-]){name}(?![\w.-])", text) is not None


def check_registered(root):
    wrong = []
    for path in files(root, "tests", ("_test.cc", "_test.c", "_test.py")):
        folder, text = build_text(root, path)
        if not is_registered(folder, text, path):
            wrong.append(f"{path}: not named in {os.path.join(folder, 'CMakeLists.txt')}: it is never built or run")
    return wrong


def rows_of_table(root):
    """(line, heading above it, cells) of each row of TABLE."""
    heading = ""
    for number, line in enumerate(read(root, TABLE).split("\n"), 1):
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif line.startswith("|") and not line.startswith("|--"):
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if cells[0] not in ("modules", "covers"):
                yield number, heading, cells


def check_tested(root):
    """Sections of TABLE that are named as a folder of TESTED have rows `modules | what | unit tests | other tests`."""
    wrong = []
    at = {}     # module -> line
    named = []  # patterns of tests
    modules = {}
    for folder in TESTED:
        for path in files(root, folder, (".h", ".cc")):
            modules.setdefault(os.path.splitext(path)[0], set()).add(os.path.splitext(path)[1])
    tests = {os.path.splitext(p)[0]: p for p in files(root, "tests", TEST)}
    for number, heading, cells in rows_of_table(root):
        where = f"{TABLE}:{number}"
        if heading in TESTED:
            if len(cells) != 4:
                wrong.append(f"{where}: {len(cells)} columns instead of 4")
                continue
            columns = cells[2:]
            for name in (n.strip() for n in cells[0].split(",")):
                module = f"{heading}/{name}"
                if module not in modules:
                    wrong.append(f"{where}: no such module: {module}")
                elif module in at:
                    wrong.append(f"{where}: {module} is in line {at[module]} as well")
                own = f"{os.path.basename(heading)}_{name}_test"
                if f"tests/unit/{own}" in tests and f"`{own}`" not in cells[2]:
                    wrong.append(f"{where}: {own} is missing in the row of {module}")
                at[module] = number
        else:
            columns = cells[1:]
        for test in (t for c in columns for t in re.findall(r"`([^`]*)`", c)):
            pattern = "tests/" + (test if "/" in test else "unit/" + test)
            named.append(pattern)
            found = fnmatch.filter(tests, pattern)
            if not found:
                wrong.append(f"{where}: no such test: {test}")
            if "*" not in test:
                wrong += [f"{where}: {test} is not registered" for f in found
                          if not is_registered(*build_text(root, tests[f]), tests[f], any_ending=True)]
    wrong += [f"{TABLE}: no row has {m}" for m in sorted(modules) if ".cc" in modules[m] and m not in at]
    wrong += [f"{TABLE}: no row names {tests[t]}" for t in sorted(tests)
              if t.endswith("_test") and not any(fnmatch.fnmatch(t, p) for p in named)]
    return wrong


def selftest():
    def tree(entries):
        root = tempfile.mkdtemp()
        for path, text in entries.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        return root

    def expect(check, entries, *parts):
        found = check(tree(entries))
        if len(found) != len(parts) or any(p not in f for p, f in zip(parts, found)):
            sys.exit(f"wanted {parts}, found {found} in {entries}")

    base = {"lmdbio/base/a.h": "", "lmdbio/format/f.h": "", "lmdbio/io/i.h": '#include "lmdbio/base/a.h"\n'}
    expect(check_layers, base)
    expect(check_layers, {**base, "lmdbio/base/b.h": '// x\n#include "lmdbio/io/i.h"\n'},
           "lmdbio/base/b.h:2: lmdbio/base must not include lmdbio/io/i.h")
    expect(check_layers, {**base, "lmdbio/io/j.cc": '#include <lmdbio/format/f.h>\n'}, "must not include")
    expect(check_layers, {**base, "lmdbio/io/j.cc": '#include "../format/f.h"\n'}, "must not include")
    expect(check_layers, {**base, "lmdbio/io/j.cc": '// #include "lmdbio/format/f.h"\n'})
    expect(check_layers, {**base, "lmdbio/io/j.cc": '#include "lmdbio/base/none.h"\n'}, "no such file")
    expect(check_layers, {**base, "lmdbio/io/j.cc": "#include <lmdb.h>\n"}, "must not include lmdb.h")
    expect(check_layers, {**base, "compat/c.cc": '#include "lmdbio/io/i.h"\n#include <lmdb.h>\n'})
    expect(check_layers, {**base, "compat/c.cc": "#include <mpi.h>\n"}, "must not include mpi.h")
    expect(check_layers, {**base, "lmdbio/io/j.cc": "#include <zstd.h>\n"}, "must not include zstd.h")
    expect(check_layers, {"lmdbio/new/n.h": ""}, "in no layer")
    expect(check_layers, {"lmdbio/io/j.cc": "/*\n*/ ::munmap(p, n);\n  ::close(fd);\n  f.close();\n  x->munmap();\n"},
           "j.cc:2: only lmdbio/base/mapping.h calls munmap", "j.cc:3: only lmdbio/base/unique_fd.h calls close")
    expect(check_layers, {"lmdbio/tree/j.cc": "n = ::pread(fd, p, 1, 0);\n// ::pread(\n", "lmdbio/io/k.cc": "::pread(fd, p, 1, 0);"},
           "lmdbio/tree/j.cc:1: reads a file outside lmdbio/io: ::pread(")
    expect(check_layers, {"lmdbio/window/j.cc": "if (config().io == IoMode::direct) f();\ndouble kCached = 0.9;\nconst char* v = \"0.9.24\";"},
           "decides how a file is read", "decides how a file is read")
    expect(check_layers, {"compat/j.cc": "open(p, O_DIRECT);"}, "opens for direct reads")
    expect(check_layers, {"lmdbio/tree/j.cc": "auto f = File::open(path, mode);\nauto g = File::keep(origin, kind);\nauto h = f.again(kind);",
                          "lmdbio/io/open_file.cc": "File::keep(origin, kind); OpenFile::open(path);"},
           "tree/j.cc:1: opens a database file", "tree/j.cc:2: opens a", "tree/j.cc:3: opens a")
    expect(check_registered, {"tests/unit/CMakeLists.txt": "t(a SOURCES a_test.cc)", "tests/unit/a_test.cc": ""})
    expect(check_registered, {"tests/unit/CMakeLists.txt": "# t(a SOURCES a_test.cc)", "tests/unit/a_test.cc": ""},
           "tests/unit/a_test.cc: not named")
    expect(check_registered, {"tests/unit/CMakeLists.txt": "t(a SOURCES aa_test.cc)", "tests/unit/a_test.cc": ""},
           "not named")
    expect(check_registered, {"tests/unit/CMakeLists.txt": "", "tests/unit/d.cmake": "t(s/a_test.cc)",
                              "tests/unit/s/a_test.cc": ""})
    expect(check_registered, {"tests/CMakeLists.txt": "", "tests/s/CMakeLists.txt": "foreach(t a_test b_test.c)",
                              "tests/s/a_test.py": "", "tests/s/b_test.c": "", "tests/s/c_test.py": ""},
           "tests/s/c_test.py: not named in tests/s/CMakeLists.txt")
    table = {TABLE: "## lmdbio/base\n| modules | what | unit tests | other tests |\n|---|---|---|---|\n"
                    "| a | x | `base_a_test` | `shim/*`, `diff/run` |\n## Other\n| covers | tests |\n|---|---|\n| y | `procs/p_test` |\n",
             "lmdbio/base/a.cc": "", "lmdbio/base/a.h": "", "lmdbio/base/header_only.h": "",
             "tests/unit/CMakeLists.txt": "t(a SOURCES base_a_test.cc)", "tests/unit/base_a_test.cc": "",
             "tests/shim/CMakeLists.txt": "t(s_test.py)", "tests/shim/s_test.py": "",
             "tests/diff/CMakeLists.txt": "add_executable(d run.cc)", "tests/diff/run.cc": "",
             "tests/procs/CMakeLists.txt": "t(p_test.py)", "tests/procs/p_test.py": ""}
    changed = lambda old, new: {**table, TABLE: table[TABLE].replace(old, new)}
    expect(check_tested, table)
    expect(check_tested, {**table, "lmdbio/base/b.cc": ""}, "no row has lmdbio/base/b")
    expect(check_tested, {**table, "tests/unit/base_b_test.cc": ""}, "no row names tests/unit/base_b_test.cc")
    expect(check_tested, {**table, "tests/unit/CMakeLists.txt": "# base_a_test.cc"}, "tests.md:4: base_a_test is not registered")
    expect(check_tested, {**table, "tests/diff/CMakeLists.txt": ""}, "tests.md:4: diff/run is not registered")
    prefixed = {**changed("diff/run", "fuzz/fuzz_page"), "tests/fuzz/fuzz_page.cc": ""}
    expect(check_tested, {**prefixed, "tests/fuzz/CMakeLists.txt": "fuzz(page 20)"})
    expect(check_tested, {**prefixed, "tests/fuzz/CMakeLists.txt": "fuzz(pages 20 page)"},
           "tests.md:4: fuzz/fuzz_page is not registered")
    expect(check_tested, changed("| a |", "| a, a |"), "tests.md:4: lmdbio/base/a is in line 4 as well")
    expect(check_tested, changed("| a |", "| a, none |"), "tests.md:4: no such module: lmdbio/base/none")
    expect(check_tested, changed("| a |", "| a, header_only |"))
    expect(check_tested, changed("`base_a_test`", ""), "base_a_test is missing in the row", "no row names tests/unit/base_a_test.cc")
    expect(check_tested, changed("diff/run", "diff/none"), "tests.md:4: no such test: diff/none")
    expect(check_tested, changed("shim/*", "none/*"), "no such test: none/*", "no row names tests/shim/s_test.py")
    expect(check_tested, changed(" | `shim/*`, `diff/run` |", " |"), "tests.md:4: 3 columns", "no row has lmdbio/base/a",
           "no row names tests/shim/s_test.py", "no row names tests/unit/base_a_test.cc")
    return []


CHECKS = {"layers": check_layers, "registered": check_registered, "tested": check_tested}


def main():
    if len(sys.argv) == 2 and sys.argv[1] == "selftest":
        wrong = selftest()
    elif len(sys.argv) == 3 and sys.argv[1] in CHECKS:
        wrong = CHECKS[sys.argv[1]](sys.argv[2])
    else:
        sys.exit(__doc__)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
