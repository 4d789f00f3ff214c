"""Common parts of bench/cold, bench/random, bench/index, bench/node and bench/factors: databases, reader processes, results."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import cold_files  # puts tests/support on the path
import cgroup  # noqa: E402
from measure import Failed, Skip, device_facts, device_line, fail, machine_facts, progress, shown_size  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)


class ColdBench:
    """Base class.  A benchmark defines its name, options (the names of recorded arguments), and labels of its readers."""
    name, options, labels = "", (), {}
    timeout_s = 3600  # of one run

    def __init__(self, args):
        self.args = args
        self.rows, self.databases, self.notes = [], {}, []
        self.machine = {**machine_facts(), "directory": device_facts(args.dir)}
        self.libraries = {}
        self.failed = False
        self.backends = [b for b in self.labels if b in args.backends.split(",")]
        if unknown := set(args.backends.split(",")) - set(self.labels):
            fail(f"no such readers: {', '.join(unknown)}")
        if "stock" not in self.backends:
            fail("without stock there is nothing to compare with")

    def without(self, backend, program, note="The raw ring is not built (liburing): no limit is shown."):
        """Removes a reader whose program is not built, and prints a note."""
        if backend in self.backends and not os.access(self.program(program), os.X_OK):
            self.backends.remove(backend)
            self.note(note)

    def program(self, name):
        return os.path.join(self.args.build, "bin", name)

    def note(self, line):
        if line not in self.notes:
            self.notes.append(line)
            progress("")
            print(line, flush=True)

    def has_failed(self, line):
        """Records a failure.  Other runs go on."""
        self.failed = True
        self.note("FAILED: " + line)

    def database(self, value_bytes, file_bytes):
        """Writes the database with stock LMDB unless it exists.  Returns its name below args.dir."""
        progress(f"writing: values of {shown_size(value_bytes)}, {shown_size(file_bytes)}")
        made = subprocess.run([self.program("warm"), "--only-generate", "--dir", self.args.dir, "--values", str(value_bytes),
                               "--small-bytes", str(file_bytes), "--large-bytes", str(file_bytes)],
                              stdout=subprocess.PIPE, text=True)
        if made.returncode != 0:
            fail("the database could not be written")
        path = made.stdout.split()[0]
        if self.args.uid is not None:  # stock opens it for writing; the data stay their owner's
            os.chmod(os.path.join(path, "lock.mdb"), 0o666)
        name = os.path.basename(path)
        self.databases[name] = {"value_bytes": value_bytes,
                                "file_bytes": os.stat(os.path.join(path, "data.mdb")).st_size}
        return name

    def environment(self, ours, extra=None):
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
        if ours:
            env.update(v.split("=", 1) for v in self.args.env)
            if self.args.library != "stock":
                env["LD_PRELOAD"] = self.args.library
        return env | (extra or {})

    def execute(self, command, backend, ours, memory=None, extra=None):
        """Runs a reader, and returns the JSON that it prints.  `ours`: with the library preloaded.  `memory`: limit in bytes,
        including the page cache.  `extra`: environment variables.  Raises Skip if the reader cannot run here (77), or Failed."""
        result = self.run(command, self.labels[backend], self.environment(ours, extra), memory)
        self.goes_to(backend, ours, result["library"])
        return result

    def goes_to(self, backend, ours, library):
        """Records the library that a reader calls.  Ends the program if it should be ours and is not."""
        self.libraries.setdefault(backend, library)
        if ours and self.args.library != "stock" and library == self.libraries["stock"]:
            fail(f"{self.args.library} is not in use: calls go to {library}")

    def run(self, command, label, env, memory=None):
        with contextlib.ExitStack() as stack:
            other = {} if self.args.uid is None else {"user": self.args.uid, "group": self.args.uid, "extra_groups": []}
            if memory is not None:
                try:
                    group = stack.enter_context(cgroup.Memory(memory))
                except cgroup.Missing as e:
                    raise Skip(f"needs {e}") from e
                uid, other = self.args.uid, {}

                def enter():
                    group.enter()
                    if uid is not None:
                        os.setgroups([])
                        os.setgid(uid)
                        os.setuid(uid)

                other["preexec_fn"] = enter
            try:
                done = subprocess.run(command, env=env, capture_output=True, text=True,
                                      timeout=self.timeout_s, cwd="/", **other)
            except subprocess.TimeoutExpired as e:
                raise Failed(f"{' '.join(command)} ({label}): no end after {self.timeout_s} s") from e
        if done.returncode == 77:
            raise Skip((done.stderr.splitlines() or ["?"])[0])
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} ({label}) ended with {done.returncode}: "
                         f"{done.stdout}{done.stderr}")
        if done.stderr:
            self.note(f"{label} says: {done.stderr.splitlines()[0]}")
        return json.loads(done.stdout)

    def more(self):
        """Returns additional members of result.json."""
        return {}

    def write(self):
        with open(os.path.join(self.args.out, "result.json"), "w", encoding="utf-8") as out:
            json.dump({"bench": self.name, "machine": {**self.machine, "load_average_at_end": os.getloadavg()},
                       "options": {k: getattr(self.args, k) for k in self.options}, "libraries": self.libraries,
                       "databases": self.databases, "notes": self.notes, "rows": self.rows, **self.more()}, out, indent=1)

    def device_line(self):
        return device_line(self.machine["directory"])

    def user_line(self):
        if self.args.uid is not None:
            print(f"All readers run as user {self.args.uid} on files of user {os.geteuid()} (the lock file alone may be "
                  "written).")

    def columns(self, names):
        print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)

    def all(self):
        raise NotImplementedError

    def finish(self):
        if not self.rows and not self.failed:
            print("nothing could be measured")
            sys.exit(77)


def add_options(parser, labels, out, usual=None):
    others = [b for b in labels if usual and b not in usual]
    parser.add_argument("--backends", default=",".join(usual or labels), help="readers (default: %(default)s"
                        + (f"; also: {', '.join(others)})" if others else ")"))
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s; an interval needs 6")
    parser.add_argument("--as", dest="uid", type=int, help="run the readers as this user (number; needs root)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for ours, e.g. LMDBIO_LOG=info")
    parser.add_argument("--dir", help="where databases are kept and used again (default: a new one below --out, removed)")
    parser.add_argument("--out", default=os.path.join(TOP, "build", out),
                        help=f"where result.json and result.png go (default: build/{out})")
    parser.add_argument("--build", default=os.path.join(TOP, "build", "dev"), help="build directory (default: %(default)s)")
    parser.add_argument("--library", help="library to preload, or 'stock' (default: the one in --build)")


def draw(out):
    """Draws the result.json of a directory, and prints the paths of both files."""
    result, png = (os.path.join(out, "result" + end) for end in (".json", ".png"))
    print(f"\nResults: {result}")
    drawn = subprocess.run([sys.executable, os.path.join(HERE, "plot"), result, png], capture_output=True, text=True)
    if drawn.returncode == 0:
        print(f"Plot:    {png}")
    else:
        print(f"no plot: {(drawn.stderr.splitlines() or ['?'])[-1]}")


def usable_by(uid, paths):
    for path in paths:
        if subprocess.run(["test", "-r", path], user=uid, group=uid, extra_groups=[]).returncode != 0:
            fail(f"{path} cannot be read by user {uid} (a directory above it may be closed to others)")


def run(bench, args, programs):
    """Runs bench(args) with the arguments of `add_options`, and draws its result."""
    args.build = os.path.abspath(args.build)
    args.library = args.library or os.path.join(args.build, "lib", "liblmdbio.so")
    if args.library != "stock":
        args.library = os.path.abspath(args.library)
    args.out = os.path.abspath(args.out)
    programs = [os.path.join(args.build, "bin", p) for p in programs]
    libraries = [args.library] if args.library != "stock" else []
    for needed in programs + libraries:
        if not os.path.exists(needed):
            fail(f"{needed} is not there: cmake --preset dev && cmake --build --preset dev")
    os.makedirs(args.out, exist_ok=True)
    temporary = None
    if args.dir is None:
        temporary = args.dir = tempfile.mkdtemp(prefix="data.", dir=args.out)
        os.chmod(temporary, 0o755)  # for other users
    args.dir = os.path.abspath(args.dir)
    os.makedirs(args.dir, exist_ok=True)
    try:
        if args.uid is not None:
            usable_by(args.uid, [args.dir, *programs[1:], *libraries])
        made = bench(args)
        made.all()
    except Failed as e:
        fail(e)
    finally:
        progress("")
        if temporary:
            shutil.rmtree(temporary)
    draw(args.out)
    if made.failed:
        fail("readers have failed (above)")
