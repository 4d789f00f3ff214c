"""What bench/loaders and bench/gpu have in common: options, the directory of the records, and runs of loaders in turns."""
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile

from cold_bench import TOP, draw
from cold_files import make_cold, make_warm, setup
from journal import Journal
from loading.run import run
from measure import Failed, Skip, device_facts, fail, machine_facts, progress, round_order, size

MODULES = ("torch", "lmdb", "numpy")


class Bench:
    """Runs loaders in turns, each run in its own process.  A case is a dict: what runs have in common that are compared.

    A subclass has `name`; `program`, its path below bench/; `options`, which must be the same for runs that are compared; `memory`,
    True if the memory of the processes is measured; and the functions that raise NotImplementedError here."""

    def __init__(self, args):
        self.args, self.rows, self.failed, self.count = args, [], False, 0
        self.machine = {**machine_facts(), "directory": device_facts(args.dir)}
        options = {**{k: getattr(args, k) for k in self.options}, "cpu": self.machine["cpu"], "kernel": self.machine["kernel"],
                   "programs": checksum([args.library, *package_files(args.build)])}
        self.journal = Journal(os.path.join(args.out, "runs.jsonl"), options, args.fresh)

    def cases(self):
        """Returns all cases, each with its "storage"."""
        raise NotImplementedError

    def files(self, loader):
        """Returns the files that the loader reads, as paths below the directory of the records."""
        raise NotImplementedError

    def arguments(self, where, case, loader, i):
        """Returns the arguments of the program in round i."""
        raise NotImplementedError

    def check(self, loader, result):
        """Raises Failed if the loader returned wrong records."""
        raise NotImplementedError

    def add_rows(self, case, runs):
        """Adds rows to self.rows, and prints them.  `runs`: for each loader, its runs."""
        raise NotImplementedError

    def report(self):
        """Returns what the JSON has besides rows and machine."""
        raise NotImplementedError

    def environment(self, loader):
        env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH") and not k.startswith("LMDBIO_")}
        env["PYTHONPATH"] = os.path.join(self.args.build, "python")
        if loader.endswith("-preload"):
            env["LD_PRELOAD"] = self.args.library
        return env

    def measure(self, where, case, loader, i):
        """Makes one run, unless it was made before.  Raises Failed."""
        env, made = self.environment(loader), {**case, "loader": loader, "round": i}
        done = [run for run in self.journal.runs if made.items() <= run.items()]
        if done:
            return done[0]
        line = f"run {self.count} of {len(self.cases()) * len(self.args.only) * self.args.rounds}: {described(case)}, {loader}"
        progress(f"{line}: emptying the page cache")
        left = where.prepare_files(self.files(loader), make_warm if case["storage"].endswith("-warm") else make_cold)
        result = run(self.program, self.arguments(where, case, loader, i), env, self.args.timeout, self.memory,
                     lambda seconds: progress(f"{line}: {seconds:.0f} s"))
        if said := result.pop("said"):
            progress("")
            print(f"{loader} says: {said.splitlines()[0]}", flush=True)
        if result.pop("preloaded") != ("LD_PRELOAD" in env):
            raise Failed(f"{loader}: {'liblmdbio.so is not in use' if 'LD_PRELOAD' in env else 'liblmdbio.so is preloaded'}")
        try:
            self.check(loader, result)
        except Failed as e:
            raise Failed(f"{described(case)}, {loader}: {e}") from e
        made = {**made, **result, "resident_before": left}
        self.journal.add(made)
        return made

    def all(self):
        for case in self.cases():
            with setup(self.args.set_ups[case["storage"]], self.args) as where:
                self.measure_all(where, case)

    def measure_all(self, where, case):
        runs = {loader: [] for loader in self.args.only}
        for i in range(self.args.rounds):
            for n in round_order(len(runs), i):
                loader = self.args.only[n]
                self.count += 1
                try:
                    runs[loader].append(self.measure(where, case, loader, i))
                except Failed as e:
                    self.failed = True
                    progress("")
                    print(f"FAILED: {e}", flush=True)
        progress("")
        self.add_rows(case, {loader: made for loader, made in runs.items() if made})
        with open(os.path.join(self.args.out, "result.json"), "w", encoding="utf-8") as out:
            json.dump({"bench": self.name, "machine": {**self.machine, "load_average_at_end": os.getloadavg()}, **self.report(),
                       "rows": self.rows}, out, indent=1)


def described(case):
    return ", ".join(f"{v} {k}" if isinstance(v, int) else v for k, v in case.items())


def package_files(build):
    """Returns the files of the Python package."""
    directory = os.path.join(build, "python", "lmdbio")
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith((".py", ".so"))]


def checksum(paths):
    made = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            made.update(file.read())
    return made.hexdigest()[:16]


def listed(string, what, known):
    items = string.split(",")
    if unknown := [i for i in items if i not in known]:
        fail(f"--{what}: no such thing: {', '.join(unknown)}")
    return [k for k in known if k in items]


def add_options(parser, name, loaders, rounds, data):
    """Adds the options that both commands have.  `data`: the default of --size, and the help on it."""
    parser.add_argument("--only", default=",".join(loaders), metavar="LOADERS", help="default: all")
    parser.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    parser.add_argument("--size", type=size, default=data[0], help=data[1])
    parser.add_argument("--seed", type=int, default=1, help="of records and orders (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that a run may take (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that were made before")
    parser.add_argument("--dir", help="where the records are written, in a directory that is removed at the end (default: --out)")
    parser.add_argument("--keep", action="store_true", help="keep the records, and use those that were kept")
    parser.add_argument("--out", default=os.path.join(TOP, "build", name),
                        help=f"where runs.jsonl, result.json and result.png go (default: build/{name})")
    parser.add_argument("--build", default=os.path.join(TOP, "build", "dev"), help="build directory (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="few small records, one round: proves that it works, measures nothing")


def complete(args, loaders):
    """Checks and completes the options of add_options()."""
    args.only = listed(args.only, "only", loaders)
    args.local_bytes = args.slow_bytes = args.size
    args.build, args.out = os.path.abspath(args.build), os.path.abspath(args.out)
    args.library = os.path.join(args.build, "lib", "liblmdbio.so")


def check(args):
    """Raises Skip if something that the benchmark needs is missing."""
    if missing := [m for m in MODULES if importlib.util.find_spec(m) is None]:
        raise Skip(f"Python modules are missing: {', '.join(missing)}")
    for needed in (args.library, os.path.join(args.build, "python", "lmdbio")):
        if not os.path.exists(needed):
            raise Skip(f"{needed} is not there: cmake --preset dev && cmake --build --preset dev")
    for name in {*args.set_ups.values()}:
        with setup(name, args):
            pass


def measure(args, kind):
    """Makes the directory of the records, and all runs of kind(args), a Bench.  Draws the results.  Ends the program if something
    is missing or a run failed.  args.set_ups: for each storage, its set-up as cold_files.py names it."""
    temporary = None
    try:
        base = os.path.abspath(args.dir or args.out)
        for directory in (base, args.out):
            os.makedirs(directory, exist_ok=True)
        if args.keep:
            args.dir = os.path.join(base, "records")
            os.makedirs(args.dir, exist_ok=True)
        else:
            temporary = args.dir = tempfile.mkdtemp(prefix="records.", dir=base)
        check(args)
        bench = kind(args)
        bench.all()
    except Skip as e:
        if not args.smoke:
            fail(e)
        print(e)
        sys.exit(77)
    except KeyboardInterrupt:
        progress("")
        print("interrupted: the same command goes on from here")
        sys.exit(130)
    finally:
        progress("")
        if temporary:
            shutil.rmtree(temporary)
    draw(args.out)
    if bench.failed:
        fail("runs have failed (above)")
