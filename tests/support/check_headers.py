#!/usr/bin/env python3
"""Each header of the product compiles alone, without a warning, and may be included twice; lmdbio.h also as C.

A header that the source file of its name includes first is not compiled here: the build does that.

check_headers.py ROOT CXX CC [--no-mpi] [--no-python] [-- FLAGS ..]

--no-mpi: those that include mpi.h are left out.  --no-python: those that need Python and pybind11.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

FOLDERS = ("lmdbio", "compat", "tests/support")


def is_first_of_its_source(root, path):
    """Returns whether the source file of the same name includes this header before anything else."""
    source = path[:-2] + ".cc"
    if not os.path.exists(source):
        return False
    with open(source, encoding="utf-8") as f:
        first = re.search(r'^#include\s+["<]([^">]+)', f.read(), re.MULTILINE)
    return first is not None and os.path.join(root, first[1]) == path


def compile_alone(job):
    compiler, standard, path, out, flags = job
    # A file of its own, not the header as main file: #pragma once would be warned about.
    with open(out, "w", encoding="utf-8") as f:
        f.write(f'#include "{path}"\n#include "{path}"\n')
    run = subprocess.run([compiler, standard, *flags, "-Werror", "-fsyntax-only", out], capture_output=True, text=True)
    return (path, compiler, run.stderr) if run.returncode != 0 else None


def main():
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    root, cxx, cc, *options = sys.argv[1:cut]
    flags = [f for f in sys.argv[cut + 1:] if f]
    c_flags = [f for f in flags if f != "-Wnon-virtual-dtor"]
    with tempfile.TemporaryDirectory() as at:
        jobs, built = [], 0
        for folder in FOLDERS:
            for here, dirs, names in os.walk(os.path.join(root, folder)):
                dirs.sort()
                for n in sorted(names):
                    if not n.endswith(".h"):
                        continue
                    path = os.path.join(here, n)
                    if "--no-python" in options and os.path.relpath(path, root).startswith("lmdbio/python/"):
                        continue
                    with open(path, encoding="utf-8") as f:
                        text = f.read()
                    if "--no-mpi" in options and re.search(r"^#include <(lmdbio/)?mpi\.h>", text, re.MULTILINE):
                        continue
                    if "\n#pragma once\n" in text and is_first_of_its_source(root, path):
                        built += 1
                        continue
                    jobs.append((cxx, "-std=c++20", path, os.path.join(at, f"h{len(jobs)}.cc"), flags))
                    if path == os.path.join(root, "lmdbio/include/lmdbio/lmdbio.h"):
                        jobs.append((cc, "-std=c11", path, os.path.join(at, f"h{len(jobs)}.c"), c_flags))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [w for w in pool.map(compile_alone, jobs) if w is not None]
    for path, compiler, text in wrong:
        print(f"{path} does not compile alone with {os.path.basename(compiler)}:\n{text}")
    if not jobs:
        sys.exit("no headers found")
    if wrong:
        sys.exit(1)
    print(f"{len(jobs)} compiled, {built} left to the build")


if __name__ == "__main__":
    main()
