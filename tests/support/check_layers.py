#!/usr/bin/env python3
"""Rules on the source tree that a compiler does not check.

check_layers.py layers ROOT      each folder includes only what the table allows; the owners of close and munmap
check_layers.py registered ROOT  each tests/**/*_test.{cc,c,py} is named, uncommented, in the nearest build file
check_layers.py selftest         the rules find what they are for
"""
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
    "lmdbio/cache": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node"],
    "lmdbio/db": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/cache"],
    "lmdbio/check": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/cache", "lmdbio/db"],
    "lmdbio/records": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node/counter_board.h", "lmdbio/cache", "lmdbio/db", PUBLIC],
    "lmdbio/stats": ["lmdbio/base", "lmdbio/node", "lmdbio/cache", "lmdbio/db", "lmdbio/records"],
    "lmdbio/ranks": ["lmdbio/base", "lmdbio/io", "lmdbio/node", "lmdbio/records", PUBLIC],
    "lmdbio/cli": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node", "lmdbio/cache", "lmdbio/db",
                   "lmdbio/check", "lmdbio/records", "lmdbio/stats", "lmdbio/ranks", PUBLIC],
    "compat": ["lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/node", "lmdbio/cache", "lmdbio/db", "lmdbio/check",
               "lmdbio/records", "lmdbio/stats", "lmdbio/ranks", PUBLIC],
    "lmdbio/python": [PUBLIC],
    "caffe_patch": [PUBLIC],
    "bench": ["lmdbio/base", "lmdbio/format", "lmdbio/io", PUBLIC],
    "bench/simulation": ["bench", "lmdbio/base", "lmdbio/format", "lmdbio/io", "lmdbio/records/build_index.h", "lmdbio/ranks", PUBLIC],
    "tests": ["lmdbio", "compat", "bench", "caffe_patch"],
}
# System headers that only these folders may include.
RESTRICTED = [
    (re.compile(r"mpi\.h$"), ["lmdbio/ranks", "lmdbio/include", "lmdbio/python", "bench", "tests", "caffe_patch"]),
    (re.compile(r"liburing"), ["lmdbio/io", "bench", "tests"]),
    (re.compile(r"lmdb\.h$"), ["lmdbio/format", "lmdbio/db", "lmdbio/records", "lmdbio/cli", "lmdbio/include", "lmdbio/python",
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
     ["lmdbio/io", "lmdbio/cli",       # a command reads the file that it is given
      "lmdbio/records/index_file.cc",   # an index file
      "lmdbio/cache/touched.cc"],      # /proc/self/pagemap
     "reads a file outside lmdbio/io"),
    (re.compile(r"\bIoMode::\w+|[=<>]\s*0\.9\d?(?![\w.])"),
     ["lmdbio/io/read_path.h", "lmdbio/base/config.h", "lmdbio/base/config.cc"],
     "decides how a file is read outside lmdbio/io/read_path.h"),
    (re.compile(r"\bO_DIRECT\b"), ["lmdbio/io"], "opens for direct reads outside lmdbio/io"),
    (re.compile(r"\bFile::(?:open|keep|reopen)\s*\(|(?:\.|->)again\s*\("), ["lmdbio/io/open_file.cc", "lmdbio/io/file.cc"],
     "opens a database file outside lmdbio/io/open_file.cc"),
]
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


def check_registered(root):
    wrong = []
    for path in files(root, "tests", ("_test.cc", "_test.c", "_test.py")):
        folder = os.path.dirname(path)
        while True:  # the nearest folder with a CMakeLists.txt, with the .cmake files beside it
            lists = os.path.join(root, folder, "CMakeLists.txt")
            if os.path.isfile(lists) or folder in ("", "tests"):
                break
            folder = os.path.dirname(folder)
        text = ""
        here = os.path.join(root, folder)
        for n in sorted(os.listdir(here)):
            if n == "CMakeLists.txt" or n.endswith(".cmake"):
                text += read(root, os.path.join(folder, n)) + "\n"
        text = re.sub(r"#\[(=*)\[.*?\]\1\]", "", text, flags=re.S)
        text = re.sub(r"#[^\n]*", "", text)
        name = re.escape(os.path.relpath(path, folder))
        if not path.endswith(".cc"):  # programs that a loop adds may be named without their ending
            name = name.replace(r"\.py", r"(\.py)?").replace(r"\.c", r"(\.c)?")
        if not re.search(rf"(?<![\w.-]){name}(?![\w.-])", text):
            wrong.append(f"{path}: not named in {os.path.join(folder, 'CMakeLists.txt')}: it is never built or run")
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
    expect(check_layers, {"lmdbio/new/n.h": ""}, "in no layer")
    expect(check_layers, {"lmdbio/io/j.cc": "/*\n*/ ::munmap(p, n);\n  ::close(fd);\n  f.close();\n  x->munmap();\n"},
           "j.cc:2: only lmdbio/base/mapping.h calls munmap", "j.cc:3: only lmdbio/base/unique_fd.h calls close")
    expect(check_layers, {"lmdbio/db/j.cc": "n = ::pread(fd, p, 1, 0);\n// ::pread(\n", "lmdbio/io/k.cc": "::pread(fd, p, 1, 0);"},
           "lmdbio/db/j.cc:1: reads a file outside lmdbio/io: ::pread(")
    expect(check_layers, {"lmdbio/cache/j.cc": "if (config().io == IoMode::direct) f();\ndouble kCached = 0.9;\nconst char* v = \"0.9.24\";"},
           "decides how a file is read", "decides how a file is read")
    expect(check_layers, {"compat/j.cc": "open(p, O_DIRECT);"}, "opens for direct reads")
    expect(check_layers, {"lmdbio/db/j.cc": "auto f = File::open(path, mode);\nauto g = File::keep(origin, kind);\nauto h = f.again(kind);",
                          "lmdbio/io/open_file.cc": "File::keep(origin, kind); OpenFile::open(path);"},
           "db/j.cc:1: opens a database file", "db/j.cc:2: opens a", "db/j.cc:3: opens a")
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
    return []


def main():
    if len(sys.argv) == 2 and sys.argv[1] == "selftest":
        wrong = selftest()
    elif len(sys.argv) == 3 and sys.argv[1] in ("layers", "registered"):
        wrong = {"layers": check_layers, "registered": check_registered}[sys.argv[1]](sys.argv[2])
    else:
        sys.exit(__doc__)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
