"""A campaign: processes that read databases of known contents in random ways, under random settings.

    campaign_test.py CONFIG [unittest arguments]                         a short run, for ctest
    campaign_test.py CONFIG --seconds N [--seed N] [--jobs N] [options]  runs until N seconds are over
    campaign_test.py CONFIG --repeat SEED [options]                      one run again, by its seed
    campaign_test.py CONFIG --list                                       the actors

    --only A,B      --without A,B   actors: what a run may do; reading ways stay unless named in --without
    --run-seconds N   of one run, 20                  --hang N   seconds without a step that are a hang, 60
    --mode M          stock, preload, linked, soname  --dir DIR  where databases and failed runs are kept
    --json FILE       all results            --shm-huge MODE   every other run has a /dev/shm of its own, a tmpfs with huge=MODE

Each run draws its settings from its seed: LMDBIO_IO, _NODE, _MEMORY and _ENGINE, the sizes of values, the storage (local disk;
slowfs with 1 ms a request, with faults, without mmap), processes, threads, actors.  A run prints a line; a failed run
leaves its settings, outputs and, after a hang, the stacks of its threads in DIR/SEED.  Timing is not drawn from the seed: what
needs it may need several repeats.  Exit status: 0 if no run failed.
"""
import collections
import concurrent.futures
import errno
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "shim"), os.path.join(HERE, "..", "support")]
import cgroup  # noqa: E402
import namespaces  # noqa: E402
import shimtest  # noqa: E402
import slowfs  # noqa: E402

SUPPRESSIONS = os.path.join(HERE, "..", "support", "tsan.supp")  # also of the preset tsan

# Of campaign.cc.  WAYS only read; a run has several of them.
WAYS = ["walk", "back", "stride", "seek", "get", "prefetch", "dups"]
EVENTS = {"renew": .7, "old": .6, "reopen": .4, "stream": .6, "cancel": .5, "readeropen": .4, "nomem": 1, "fork": .5,
          "closechild": .3, "closeself": .15, "closeenv": .5, "signalfork": .15}
# Of this program: what happens to the processes.
AROUND = {"writer": .7, "evict": .65, "cgroup": .2, "slow": .4, "unmapped": .15, "faults": .35, "processes": .4,
          "databases": .3, "unload": .06}
ACTORS = WAYS + list(EVENTS) + list(AROUND)
# mdb_env_close of the real LMDB closes the numbers of its descriptors whatever they are by then, and so does ours.
SMOKE_WITHOUT = ["closeenv"]

MIB = 1 << 20
AVERAGE = {"small": 180, "3k": 3150, "100k": 103000, "mixed": 26000, "large": 345000}
SLOTS, DONE = 48, 32
HEAD = 4 + DONE
BUS_ERROR = 75


ARGUMENTS = [a for i, a in enumerate(sys.argv) if a != "--seed" and sys.argv[i - 1:i] != ["--seed"]]


def flag(name):
    if name not in sys.argv:
        return False
    sys.argv.remove(name)
    return True


SECONDS = shimtest.option("--seconds", 0)
SEED = shimtest.option("--seed", 1)
JOBS = shimtest.option("--jobs", 1)
ONLY = shimtest.option("--only", "")
WITHOUT = shimtest.option("--without", "closeenv")
RUN_SECONDS = shimtest.option("--run-seconds", 20)
HANG = shimtest.option("--hang", 60)
MODE = shimtest.option("--mode", "")
DIR = shimtest.option("--dir", "")
JSON = shimtest.option("--json", "")
SHM_HUGE = shimtest.option("--shm-huge", "")
REPEAT = shimtest.option("--repeat", -1)
ONE = shimtest.option("--one", -1)  # a run of its own process; prints its result as JSON
LIST = flag("--list")


def allowed(only=ONLY, without=WITHOUT):
    unknown = {a for a in (only + "," + without).split(",") if a} - set(ACTORS)
    if unknown:
        sys.exit(f"no such actors: {', '.join(sorted(unknown))}")
    chosen = set(only.split(",")) | set(WAYS) if only else set(ACTORS)
    return chosen - set(without.split(","))


def draw(seed, may, seconds):
    """The settings of a run.  Everything is drawn before `may` leaves something out: a seed means the same with any."""
    r = random.Random(seed)
    has = {name: r.random() < share for name, share in AROUND.items()}
    actors = [w for w in WAYS if r.random() < .8] + [e for e, share in EVENTS.items() if r.random() < share]
    if ONLY:  # what was asked for by name happens in each run
        for name in ONLY.split(","):
            has[name] = True
            actors.append(name)
    actors = sorted((set(actors) & may) - set(AROUND)) or ["walk"]
    has = {name: has[name] and name in may for name in AROUND}
    sanitized = shimtest.CONFIG["sanitize"]
    s = {"seed": seed, "seconds": seconds, "kind": "unload" if has["unload"] else "read"}
    s["mode"] = r.choice([m for m in shimtest.modes() if m != "asneeded"])
    if MODE:
        s["mode"] = MODE
    s["LMDBIO_IO"] = r.choice(["auto", "direct", "direct", "buffered", "mmap"])
    s["LMDBIO_MEMORY"] = r.choice(["8M", "16M", "64M", "25%", "0"])
    s["LMDBIO_NODE"] = r.choice(["auto", "chunks", "chunks", "off"])
    s["LMDBIO_ENGINE"] = r.choice(["auto", "auto", "uring", "threads", "threads" if has["unload"] else "pread"])
    s["storage"] = "unmapped" if has["unmapped"] else "slow" if has["slow"] else "local"
    burst = r.random() < .5
    fault, every = r.choice(["EIO", "EINTR", "short"]), r.randint(20, 400)
    delay, cold_open, raw = r.choice([0, 200, 1000, 1000]), r.random() < .1, r.random() < .2
    s["mount"] = {"delay_us": delay, "cold_open": int(cold_open), "raw_direct": int(raw)}
    s["fault"] = None
    if has["faults"] and s["storage"] != "local":
        # A short answer to the page cache means the end of the file: only where nothing goes through it.
        s["fault"] = "EIO" if fault == "short" and s["storage"] != "unmapped" else fault
        s["every"], s["burst"] = every, burst
    # Faults are the writer's too, where it uses the same mount.
    s["writer"] = has["writer"] and not (s["fault"] and s["storage"] == "slow")
    s["evict"], s["cgroup"] = has["evict"], has["cgroup"] and not sanitized
    s["processes"] = r.randint(2, 3) if has["processes"] else 1
    s["threads"] = r.choice([1, 2, 3, 4, 6])
    s["notls"] = int(r.random() < .7)
    size = r.choice([4, 12, 24, 64]) * MIB // (4 if sanitized else 1)
    if s["storage"] != "local":
        size = min(size, 24 * MIB)
    s["databases"] = []
    for _ in range(2 if has["databases"] else 1):
        sizes = r.choice(list(AVERAGE))
        records = max(30, min(size // AVERAGE[sizes], 30000 // (6 if sanitized else 1)))
        s["databases"].append(f"{sizes}:{records}:{r.randint(5, 60)}")
    if sanitized:
        # Children of fork() that read, of a process with threads, are beyond the sanitizers' runtimes.  Theirs of addresses:
        # its allocator's lock may be taken for ever, and where a thread of the parent had its stack, memory mapped later
        # passes for that stack ("CHECK failed: asan_thread.cpp").  Theirs of threads: "dup thread with used id".
        actors = [a for a in actors if a not in ("fork", "closechild", "signalfork")] or ["walk"]
    if s["mode"] == "stock":
        s["storage"] = "slow" if s["storage"] == "unmapped" else s["storage"]
        actors = [a for a in actors if a != "closeenv"]  # it closes by number, whosever the descriptor is
    s["actors"] = actors
    return s


def has_huge_shm(s):
    return SHM_HUGE != "" and s["seed"] % 2 == 1


def told(s):
    """The settings as a line."""
    if s["kind"] == "unload":
        return f"unload {s['LMDBIO_IO']} {s['LMDBIO_ENGINE']} {s['databases'][0]}"
    parts = [s["mode"], s["LMDBIO_IO"], s["LMDBIO_NODE"], s["LMDBIO_MEMORY"], s["LMDBIO_ENGINE"], s["storage"], "+".join(s["databases"]),
             f"{s['processes']}x{s['threads']}"]
    parts += [w for w in ("writer", "evict", "cgroup") if s[w]] + ([f"huge={SHM_HUGE}"] if has_huge_shm(s) else [])
    if s["fault"]:
        parts.append(f"{s['fault']}/{s['every']}" + ("+bursts" if s["burst"] else ""))
    return " ".join(parts) + " " + ",".join(a for a in s["actors"] if a not in WAYS and a != "nomem")


class Failed(Exception):
    def __init__(self, what, why):
        super().__init__(why)
        self.what = what


class Reader:
    """A process, its counters and its output."""

    def __init__(self, name, argv, env, group, seconds=0):
        self.begun, self.seconds = time.monotonic(), seconds
        self.name, self.board, self.out = name, name + ".board", name + ".out"
        self.steps, self.moved = -1, time.monotonic()
        with open(self.out, "ab") as out:
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                            start_new_session=True, preexec_fn=group.enter if group else None)

    def words(self):
        try:
            with open(self.board, "rb") as f:
                data = f.read()
        except FileNotFoundError:
            return []
        return struct.unpack(f"{len(data) // 8}Q", data[:len(data) // 8 * 8])

    def silent(self):
        """Seconds since any of its threads took a step."""
        words = self.words()
        steps = sum(words[HEAD::3])
        if steps != self.steps:
            self.steps, self.moved = steps, time.monotonic()
        return time.monotonic() - self.moved

    def group(self):
        """It and its children."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[3]) == self.process.pid:
                        yield int(pid)
            except (OSError, IndexError):
                pass

    def stacks(self, path):
        with open(path, "ab") as out:
            for pid in self.group():
                out.write(f"---- process {pid}\n".encode())
                out.flush()
                if shutil.which("gdb"):
                    subprocess.run(["gdb", "-batch", "-nx", "-p", str(pid), "-ex", "thread apply all bt"], stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT, timeout=120, check=False)

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def text(self):
        with open(self.out, encoding="utf-8", errors="backslashreplace") as f:
            return f.read()


def classify(status, text):
    """What ended a process; None: nothing."""
    for mark in ("ThreadSanitizer", "AddressSanitizer", "LeakSanitizer", "runtime error"):
        if mark in text:
            return "sanitizer", next(line for line in text.splitlines() if mark in line)
    faults = [line for line in text.splitlines() if line.startswith("FAULT ")]
    if faults:
        return faults[0][6:].split(":")[0], faults[0]
    if status < 0:
        return f"signal {-status}", text.strip()[-500:]
    if status != 0:
        return f"status {status}", text.strip()[-500:]
    return None


class Run:
    def __init__(self, settings, where):
        self.s, self.where = settings, where
        self.rng = random.Random(settings["seed"] + 1)
        self.source = os.path.join(where, "source")
        self.readers, self.writers, self.counters = [], [], collections.Counter()
        self.fs = self.cgroup = None

    def program(self, name, *argv):
        done = subprocess.run([shimtest.program(name), *argv], env=shimtest.environment("stock"), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise Failed("harness", f"{name}: {done.stdout[-400:]}")

    def environment(self):
        extra = {n: self.s[n] for n in ("LMDBIO_IO", "LMDBIO_MEMORY", "LMDBIO_ENGINE", "LMDBIO_NODE")}
        # The thread sanitizer's atexit() knows no modules: it calls what one registered after that is unloaded.
        if self.s["kind"] != "unload" or shimtest.CONFIG["sanitize"] != "thread":
            extra["LMDBIO_STATS"] = os.path.join(self.where, "stats")
        env = shimtest.environment("linked" if self.s["kind"] == "unload" else self.s["mode"], extra)
        # What a killed or unloaded part leaves open is no leak.
        env["TSAN_OPTIONS"] = (env.get("TSAN_OPTIONS", "") +
                               f" suppressions={SUPPRESSIONS} history_size=4 report_thread_leaks=0")
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        if self.s["fault"] and self.s["storage"] == "slow":
            env["ASAN_OPTIONS"] += ":handle_sigbus=0"
        return env

    def start(self, index, turn, seconds):
        s = self.s
        root = self.fs.path if self.fs else self.source
        number = {"EIO": errno.EIO, "EINTR": errno.EINTR}.get(s["fault"], 0)
        name = os.path.join(self.where, f"reader-{index}-{turn}")
        argv = [shimtest.program("campaign", s["mode"]), f"seed={s['seed'] * 1000 + index * 100 + turn}", f"seconds={seconds}",
                f"threads={s['threads']}", f"notls={s['notls']}", f"fault={number}", f"scratch={self.where}",
                f"progress={name}.board", "actors=" + ",".join(s["actors"])]
        argv += [f"db={root}/{i}:{model}" for i, model in enumerate(s["databases"])]
        return Reader(name, argv, self.environment(), self.cgroup, seconds)

    def evict(self, databases=None):
        for i in range(databases or len(self.s["databases"])):
            for root in {self.source, self.fs.path if self.fs else self.source}:
                fd = os.open(f"{root}/{i}/data.mdb", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                except OSError as why:
                    if not self.s["fault"]:
                        raise Failed("harness", f"evict: {why}") from why
                finally:
                    os.close(fd)
        self.counters["evictions"] += 1

    def shown(self):
        """The directory that the mount shows."""
        if self.s["storage"] != "unmapped":
            return self.source
        # The writer cannot use the mount.  LMDB would make the source's lock file anew when it is opened by way of the
        # mount, which does not show the writer's locks: readers get another one, beside the same data.
        view = os.path.join(self.where, "view")
        for i in range(len(self.s["databases"])):
            os.makedirs(f"{view}/{i}")
            os.link(f"{self.source}/{i}/data.mdb", f"{view}/{i}/data.mdb")
        return view

    def write(self):
        """Writers use the mount, as readers need the same lock file; if the mount cannot be mapped, the source."""
        s = self.s
        unmapped = s["storage"] == "unmapped"
        for i, model in enumerate(s["databases"]):
            root = self.fs.path if self.fs and not unmapped else self.source
            argv = [shimtest.program("campaign_writer"), "write", f"{root}/{i}", model, str(s["seed"]), *(["hold"] if unmapped else [])]
            writer = subprocess.Popen(argv, env=shimtest.environment("stock"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
            self.writers.append(writer)
            if writer.stdout.readline() != "ready\n":
                raise Failed("harness", "the writer: " + writer.communicate()[0])

    def watch(self):
        """Until all readers are done.  A reader that a fault has ended by SIGBUS, as stock would be, is started again."""
        s = self.s
        begun, next_eviction, next_burst, failing = time.monotonic(), 0.0, 1.0, False
        turns = [0] * s["processes"]
        live = {i: self.start(i, 0, s["seconds"]) for i in range(s["processes"])}
        self.readers = list(live.values())
        while live:
            time.sleep(.05)
            now = time.monotonic() - begun
            if s["evict"] and now >= next_eviction:
                self.evict()
                next_eviction = now + self.rng.choice([.05, .3, 1, 3])
            # A page fault asks again what read-ahead did not get: it fails where all requests do for a while.
            if s["fault"] in ("EIO", "EINTR") and s["burst"] and now >= next_burst:
                failing = not failing
                self.fs.set(fail_from=int(failing))
                next_burst = now + (self.rng.choice([.05, .2]) if failing else self.rng.choice([.3, 1, 3]))
            for i, reader in list(live.items()):
                status = reader.process.poll()
                if status is None:
                    if reader.silent() > HANG:
                        reader.stacks(os.path.join(self.where, "stacks"))
                        at = [f"{k}: {w[1]}" for k in range(SLOTS) if (w := reader.words()[HEAD + 3 * k:HEAD + 3 * k + 3]) and w[2]]
                        raise Failed("hang", f"{os.path.basename(reader.name)}: no step in {HANG} s; slot and actor: {', '.join(at)}")
                    continue
                if status == BUS_ERROR and s["fault"] and s["fault"] != "short":
                    self.counters["page faults that failed"] += 1
                elif wrong := classify(status, reader.text()):
                    raise Failed(*wrong)
                elif time.monotonic() - reader.begun < reader.seconds - 1:
                    raise Failed("harness", f"{reader.name} ended early")
                else:
                    del live[i]
                    continue
                if now + 1 >= s["seconds"] or turns[i] == 99:
                    del live[i]
                    continue
                turns[i] += 1
                live[i] = self.start(i, turns[i], max(1, int(s["seconds"] - now)))
                self.readers.append(live[i])

    def unload(self):
        model = self.s["databases"][0]
        rounds = 8
        for i in range(rounds):
            os.makedirs(f"{self.source}/{i}", exist_ok=True)
            if not os.path.exists(f"{self.source}/{i}/data.mdb"):
                self.program("campaign_writer", "make", f"{self.source}/{i}", model)
        self.evict(rounds)
        argv = [shimtest.program("campaign_unload"), shimtest.program("campaign_module"), self.source, model, str(rounds),
                str(self.s["seed"])]
        reader = Reader(os.path.join(self.where, "unload"), argv, self.environment(), None)
        self.readers.append(reader)
        try:
            status = reader.process.wait(timeout=HANG + 60)
        except subprocess.TimeoutExpired:
            reader.stacks(os.path.join(self.where, "stacks"))
            raise Failed("hang", "campaign_unload does not end") from None
        if wrong := classify(status, reader.text()):
            raise Failed("unload, " + wrong[0], wrong[1] or "no output")

    def work(self):
        s = self.s
        for i, model in enumerate(s["databases"][: 1 if s["kind"] == "unload" else None]):
            os.makedirs(f"{self.source}/{i}")
            self.program("campaign_writer", "make", f"{self.source}/{i}", model)
        if s["kind"] == "unload":
            self.unload()
            return
        if s["storage"] != "local":
            options = {**s["mount"], "files": "data.mdb", "no_mmap": int(s["storage"] == "unmapped")}
            self.fs = slowfs.SlowFs(shimtest.CONFIG["slowfs"], self.shown(), **options).__enter__()
        if s["cgroup"]:
            try:
                self.cgroup = cgroup.Memory(s["processes"] * 768 * MIB).__enter__()
            except cgroup.Missing:
                pass
        if s["writer"]:
            self.write()
        if s["evict"]:
            self.evict()
        if s["fault"] == "short":
            self.fs.set(short_every=s["every"], short_bytes=self.rng.choice([1, 512, 4096, 5000]))
        elif s["fault"]:
            self.fs.set(fail_every=s["every"], fail_errno=s["fault"])
        self.watch()
        for writer in self.writers:
            out, _ = writer.communicate(timeout=120)  # closes its standard input
            if writer.returncode != 0:
                raise Failed("writer", out[-400:])
            self.counters["commits"] += int(out.split()[1])

    def done(self):
        """Ends everything."""
        for reader in self.readers:
            reader.end()
            words = reader.words()
            for name, value in zip(("values", "bytes", "errors", "refusals"), words):
                self.counters[name] += value
            for actor, value in zip(NAMES, words[4:HEAD]):
                self.counters["do " + actor] += value
        # What the library did of its own: a run that left everything to page faults shows little.
        stats = os.path.join(self.where, "stats")
        for statistics in shimtest.read_stats(stats) if os.path.exists(stats) else []:
            for env in statistics.get("environments", []):
                for name in ("published", "reclaimed", "read"):
                    self.counters["io " + name] += env.get("io", {}).get(name, 0)
        for writer in self.writers:
            if writer.poll() is None:
                writer.kill()
            writer.communicate()
        if self.cgroup:
            self.cgroup.__exit__()
        if self.fs:
            try:
                if self.s["fault"]:
                    counted = self.fs.counters().get("faults", {})
                    self.counters["faults"] += sum(v for v in counted.values() if isinstance(v, int))
            finally:
                self.fs.__exit__()


NAMES = []


def names():
    """The program's actors, in the order of its counters."""
    if not NAMES:
        out = subprocess.run([shimtest.program("campaign"), "actors"], env=shimtest.environment("stock"), stdout=subprocess.PIPE,
                             text=True, check=True).stdout.split()
        NAMES.extend(["idle", *out])
        if set(out) != set(WAYS) | set(EVENTS):
            sys.exit(f"campaign.cc and campaign_test.py differ: {set(out) ^ (set(WAYS) | set(EVENTS))}")


def one(seed, may, seconds):
    """One run: what it was, what it did, what was wrong."""
    names()
    s = draw(seed, may, seconds)
    begun, cpu = time.monotonic(), os.times()
    result = {"seed": seed, "told": told(s), "failed": None, "why": "", "settings": s}
    where = tempfile.mkdtemp(prefix=f"campaign-{seed}-", dir=DIR or None)
    run = Run(s, where)
    try:
        if has_huge_shm(s) and not namespaces.own_ipc_and_shm(f"mode=1777,huge={SHM_HUGE}".encode()):
            raise slowfs.Missing("a /dev/shm of one's own")
        try:
            run.work()
        finally:
            run.done()
    except Failed as e:
        result["failed"], result["why"] = e.what, str(e)
    except slowfs.Missing as e:
        result["failed"], result["why"] = "skipped", str(e)
    except (OSError, RuntimeError, subprocess.SubprocessError) as e:
        result["failed"], result["why"] = "harness", repr(e)
    now = os.times()
    result.update(counters=dict(run.counters), wall=time.monotonic() - begun,
                  cpu=now.children_user + now.children_system - cpu.children_user - cpu.children_system)
    shutil.rmtree(run.source, ignore_errors=True)
    shutil.rmtree(os.path.join(where, "view"), ignore_errors=True)
    if result["failed"] and result["failed"] != "skipped":
        kept = os.path.join(DIR or tempfile.gettempdir(), f"campaign-failed-{seed}")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.move(where, kept)
        with open(os.path.join(kept, "result.json"), "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
        result["kept"] = kept
    else:
        shutil.rmtree(where, ignore_errors=True)
    return result


def line(result):
    c = result["counters"]
    text = (f"{result['seed']:8} {result['failed'] or 'ok':12} {c.get('values', 0):9} values {c.get('bytes', 0) / MIB:8.0f} MiB "
            f"{result['cpu']:5.0f} CPU s  {result['told']}")
    if result["failed"]:
        text += f"\n         {result['why'][:600]}\n         kept in {result.get('kept', '-')}"
    return text


def again(argv, seed):
    """A run in a process of its own."""
    done = subprocess.run([sys.executable, "-B", *argv, "--one", str(seed)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"seed": seed, "told": "", "failed": "harness", "why": done.stdout[-2000:], "counters": {}, "wall": 0, "cpu": 0}


def summary(results):
    total = collections.Counter()
    for r in results:
        total.update(r["counters"])
    failed = collections.Counter(r["failed"] for r in results if r["failed"])
    print(f"\n{len(results)} runs, {sum(r['cpu'] for r in results) / 3600:.2f} CPU hours; {total['values']} values, "
          f"{total['bytes'] / (1 << 30):.1f} GiB checked")
    print("what was done: " + ", ".join(f"{k[3:] if k.startswith('do ') else k} {v}" for k, v in sorted(total.items())
                                          if v and k not in ("values", "bytes")))
    for what, n in failed.most_common():
        print(f"{what}: {n} runs: " + " ".join(str(r["seed"]) for r in results if r["failed"] == what))
    if not failed:
        print("no run failed")


def campaign(argv):
    begun, seed, results = time.monotonic(), SEED, []
    print(f"seed {SEED}, {JOBS} jobs, {RUN_SECONDS} s a run; actors: {', '.join(a for a in ACTORS if a in allowed())}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        running = set()
        while running or time.monotonic() - begun < SECONDS:
            while len(running) < JOBS and time.monotonic() - begun < SECONDS:
                running.add(pool.submit(again, argv, seed))
                seed += 1
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                results.append(future.result())
                print(line(results[-1]), flush=True)
    results.sort(key=lambda r: r["seed"])
    summary(results)
    if JSON:
        with open(JSON, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    return 1 if any(r["failed"] not in (None, "skipped") for r in results) else 0


class Campaign(shimtest.Case):
    def test_short(self):
        for seed in (3, 4):
            with self.subTest(seed=seed):
                result = one(seed, allowed("", ",".join(SMOKE_WITHOUT)), 3)
                print("\n" + line(result), file=sys.stderr)
                if result["failed"] == "skipped":
                    self.skipTest(result["why"])
                self.assertIsNone(result["failed"], result["why"])
                self.assertGreater(result["counters"]["values"], 100)


def main():
    if LIST:
        print("\n".join(ACTORS))
        return
    if len(sys.argv) > 1 and (SECONDS or REPEAT >= 0 or ONE >= 0):
        with open(sys.argv[1], encoding="utf-8") as f:
            shimtest.CONFIG.update(json.load(f))
        if ONE >= 0:
            print(json.dumps(one(ONE, allowed(), RUN_SECONDS)))
            return
        if REPEAT >= 0:
            result = one(REPEAT, allowed(), RUN_SECONDS)
            print(line(result))
            summary([result])
            sys.exit(1 if result["failed"] else 0)
        sys.exit(campaign(ARGUMENTS))
    shimtest.main()


if __name__ == "__main__":
    main()
