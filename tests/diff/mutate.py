#!/usr/bin/env python3
"""Does the differential harness notice when the engine is wrong?

Changes one place of lmdbio/tree or of the search in pages at a time in a copy of the source tree, builds the shim there (one incremental build
each) and runs lmdbio_diff against stock for at most --time seconds.  A mutant is killed if the campaign fails.  Files
on which no answer depends are left out: they decide what is read ahead, or are `lmdbio check`'s, and have unit tests.
Those that serve prefetched keys are tried on cold files, told of lookups.
Places are chosen by --seed.  Results go to WORK/mutants.json; a run that was interrupted goes on where it was.

  tests/diff/mutate.py --work DIR [--count 60] [--seed 1] [--time 60] [--reference liblmdb.so.0]
"""
import argparse
import difflib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEMORY_BYTES = 16 << 30
HANG_SECONDS = 10

# What no program can observe: statistics, hints to the processor, checks of our own bugs, declarations.
NOT_OBSERVABLE = re.compile(
    r"prefetch|counter|n\.bytes|assert|^\s*#|^\s*//|static_assert|template|operator|^\s*using |LMDBIO_|likely\(\)")

NO_ANSWER = re.compile(r"/prefetch_counters")
PREFETCHED = re.compile(r"/(txn_prefetch|prefetch_|bulk_lookup)")

COMPARISONS = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "}


def code_of(line):
    """The line without its comment and without the inside of strings."""
    line = re.sub(r'"(\\.|[^"\\])*"', lambda m: '"' + " " * (len(m.group()) - 2) + '"', line)
    at = line.find("//")
    return line if at < 0 else line[:at]


def comparison(line):
    for old, new in COMPARISONS.items():
        for m in re.finditer(re.escape(old), line):
            yield m.start(), m.end(), new


def logic(line):
    for old, new in ((" && ", " || "), (" || ", " && ")):
        for m in re.finditer(re.escape(old), line):
            yield m.start(), m.end(), new


def off_by_one(line):
    for m in re.finditer(r" [+-] 1u?\b", line):
        yield m.start(), m.end(), ""
    for m in re.finditer(r"(\+\+|--)(?=[\w(])", line):
        yield m.start(), m.end(), "--" if m.group() == "++" else "++"
    for m in re.finditer(r"\b(index|top|count|keys\(\)|size\(\)|slot)\b(?! *[=(+-])", line):
        yield m.end(), m.end(), " + 1"


def dropped_assignment(line):
    m = re.match(r"^(\s+)((?:[\w.\[\]]+(?:->)?)+ (?:=|\|=|&=|\+=|-=) [^;{}]+;)\s*$", line)
    if m and "=" in m.group(2):
        yield m.start(2), m.end(2), ";"


def swapped_branch(line):
    m = re.match(r"^(\s*(?:\} else )?if \()(.*)\)( .*)?$", line)
    if m and m.group(2).count("(") == m.group(2).count(")") and "constexpr" not in line and ";" not in m.group(2):
        yield m.start(2), m.end(2), "!(" + m.group(2) + ")"


def constant(line):
    for old, new in (("true", "false"), ("false", "true"), ("MDB_NOTFOUND", "MDB_BAD_VALSIZE"), ("EINVAL", "EACCES")):
        for m in re.finditer(r"\b%s\b" % old, line):
            yield m.start(), m.end(), new
    for m in re.finditer(r"(?<![\w.])([02-9]|1\d)u?\b(?!\s*[\]>x.])", line):
        yield m.start(), m.end(), str(int(m.group(1)) + 1)


KINDS = (comparison, logic, off_by_one, dropped_assignment, swapped_branch, constant)


def mutable_files(source):
    """The files that decide what LMDB's calls return."""
    return sorted([*source.glob("lmdbio/tree/*"), *source.glob("lmdbio/format/search*"), *source.glob("lmdbio/format/compare.*")])


def places(source):
    """Every place that can be changed, as (file, line number, start, end, new text, kind)."""
    for path in mutable_files(source):
        if NO_ANSWER.search(str(path)):
            continue
        for number, line in enumerate(path.read_text().split("\n")):
            code = code_of(line)
            if NOT_OBSERVABLE.search(line) or not code.strip():
                continue
            for kind in KINDS:
                for start, end, new in kind(code):
                    yield str(path.relative_to(source)), number, start, end, new, kind.__name__


def choose(source, seed):
    """All places in the order in which they are tried: kinds and files take turns."""
    rng = random.Random(seed)
    by_kind = {}
    for place in places(source):
        by_kind.setdefault(place[5], []).append(place)
    for group in by_kind.values():
        rng.shuffle(group)
    order = []
    while any(by_kind.values()):
        for kind in sorted(by_kind):
            if by_kind[kind]:
                order.append(by_kind[kind].pop())
    return order


def mutated(text, place):
    _, number, start, end, new, _ = place
    lines = text.split("\n")
    lines[number] = lines[number][:start] + new + lines[number][end:]
    return "\n".join(lines)


def copy_source(target):
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns("build", ".git", "__pycache__"))


def digest(source):
    h = hashlib.sha256()
    for path in sorted(source.glob("lmdbio/**/*")):
        if path.is_file():
            h.update(path.read_bytes())
    return h.hexdigest()


def build(build_dir, target, jobs):
    r = subprocess.run(["cmake", "--build", build_dir, "--target", target, "--parallel", str(jobs)],
                       capture_output=True, text=True)
    return r.returncode == 0, r.stdout + r.stderr


def campaign(build_dir, args, seconds, prefetched=False):
    """(differs, what the campaign said)"""
    command = [build_dir / "bin/lmdbio_diff", "--quiet", "--reference", args.reference,
               "--tested", build_dir / "lib/liblmdbio.so", "--seeds", "1000000000", "--time", str(seconds),
               "--foreign-order", "--seed", str(args.campaign_seed), "--hang", str(HANG_SECONDS), "--jobs", str(args.jobs)]
    if args.tested_on:
        command += ["--tested-on", args.tested_on]
    if args.other:
        command += ["--other", args.other]
    env = dict(os.environ)
    if prefetched:
        cold = args.work / "cold"
        cold.mkdir(exist_ok=True)
        command += ["--tell", "--large", "--dir", cold]
        env.update(LMDBIO_IO="direct", LMDBIO_MEMORY="16M")
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        r = subprocess.run(command, capture_output=True, text=True, errors="replace", preexec_fn=limit, env=env,
                           timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        return True, "the campaign does not end"
    if r.returncode not in (0, 1):
        raise RuntimeError(r.stdout + r.stderr)
    return r.returncode == 1, r.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="for the copy, the build and the results")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1, help="chooses the places")
    parser.add_argument("--campaign-seed", type=int, default=1)
    parser.add_argument("--time", type=float, default=60, help="seconds of campaign for a mutant, at most")
    parser.add_argument("--reference", default="liblmdb.so.0")
    parser.add_argument("--tested-on", help="LMDBIO_STOCK_LIB for the mutants")
    parser.add_argument("--other", help="a second stock version")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="only say how many places there are")
    args = parser.parse_args()

    if args.list:
        found = list(places(ROOT))
        for kind in KINDS:
            print(f"{kind.__name__}: {sum(p[5] == kind.__name__ for p in found)}")
        return 0
    if ROOT in args.work.resolve().parents:
        sys.exit("--work must lie outside the source tree")
    source, build_dir = args.work / "source", args.work / "build"
    results_file = args.work / "mutants.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else None
    if results is None or not source.exists():
        shutil.rmtree(args.work, ignore_errors=True)
        args.work.mkdir(parents=True)
        copy_source(source)
        results = {"seed": args.seed, "digest": digest(source), "mutants": []}
    elif results["digest"] != digest(ROOT) or results["seed"] != args.seed:
        sys.exit(f"{results_file} belongs to other sources or another seed; remove {args.work} to begin anew")
    for path in mutable_files(source):  # an interrupted run may have left a mutant
        if path.read_bytes() != (ROOT / path.relative_to(source)).read_bytes():
            shutil.copy(ROOT / path.relative_to(source), path)

    if not (build_dir / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", source, "-B", build_dir, "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                        "-DLMDBIO_BENCH=OFF"], check=True, stdout=subprocess.DEVNULL)
    for target in ("lmdbio_diff", "lmdbio"):
        good, log = build(build_dir, target, args.jobs)
        if not good:
            sys.exit(log)
    if not results["mutants"]:
        differs, said = campaign(build_dir, args, min(args.time, 30))
        if differs:
            sys.exit("the engine differs from stock before anything is changed:\n" + said)

    done = {tuple(m["place"]) for m in results["mutants"]}
    counted = sum(m["result"] != "does not compile" for m in results["mutants"])
    for place in choose(ROOT, args.seed):
        if counted >= args.count:
            break
        if place in done:
            continue
        path = source / place[0]
        original = path.read_text()
        changed = mutated(original, place)
        path.write_text(changed)
        began = time.time()
        said = ""
        try:
            good, log = build(build_dir, "lmdbio", args.jobs)
            if good:
                differs, said = campaign(build_dir, args, args.time, PREFETCHED.search(place[0]))
                result = "killed" if differs else "survived"
                counted += 1
            else:
                result = "does not compile"
        finally:
            path.write_text(original)
        diff = [d for d in difflib.unified_diff(original.split("\n"), changed.split("\n"), lineterm="", n=0)
                if not d.startswith(("---", "+++", "@@"))]
        seconds = round(time.time() - began, 1)
        results["mutants"].append({"place": list(place), "where": f"{place[0]}:{place[1] + 1}", "kind": place[5],
                                   "diff": diff, "result": result, "seconds": seconds,
                                   "campaign": said.strip().split("\n")[:3] if result == "killed" else []})
        temporary = results_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(results, indent=1))
        os.replace(temporary, results_file)
        print(f"{counted:3} {result:16} {place[0]}:{place[1] + 1} {place[5]} ({seconds} s)")
        for d in diff:
            print("      " + d[0] + " " + d[1:].strip())
        sys.stdout.flush()

    survived = [m for m in results["mutants"] if m["result"] == "survived"]
    killed = sum(m["result"] == "killed" for m in results["mutants"])
    print(f"{killed} killed, {len(survived)} survived")
    for m in survived:
        print(f"  {m['where']} {m['kind']}: " + "  ->  ".join(d[1:].strip() for d in m["diff"]))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
