#!/usr/bin/python3
"""Tests that simulated jobs make the same requests as real jobs, and take the time that follows from the settings of the model.

    jobs_test.py one MPIRUN RUN_SCALE RUN_SCALE_SIMULATED LIBLMDBIO_MPI LMDBIO_SLOWFS [SEED]   more jobs if a seed is given
    jobs_test.py four ...                                         on four emulated hosts instead of this one; 77: there are none
"""
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCALE = os.path.dirname(HERE)
sys.path[:0] = [os.path.dirname(SCALE), SCALE]
from hosts import SMALL_JOB_S, SlowHosts  # noqa: E402
from measure import Failed, Skip  # noqa: E402
from scale.simulation import simulated_jobs  # noqa: E402
from strategies_test import run as run_on_this_host  # noqa: E402

STRATEGIES = ["lmm-dio", "lmm-dio-prov", "lmm-dio-prov-coal", "lmm-dio-prov-coal-stag"]
CONTENTS = {"cifar10-like": "12MiB", "imagenet-like": "48MiB", "raw-imagenet-like": "32MiB", "photographs": "24MiB",
            "cosmoflow-like": "96MiB"}
MOST_BATCH = {"cosmoflow-like": 2}  # of 16 ranks: all records in one step
KERNEL, KERNEL_OF_MODEL = tuple(int(n) for n in os.uname().release.split(".")[:2]), (6, 17)
HOSTS = {"one": 1, "four": 4}
RANKS = {"one": [1, 3, 8, 16], "four": [1, 2, 4]}  # on each host
RANKS_OF_STREAMS = {"one": [1, 2, 5, 16], "four": [1, 3]}
SAME = ["ranks", "batch", "records", "steps", "nodes", "readers", "requests", "request_bytes", "requests_by_size", "requests_by_rank",
        "places_sent_bytes", "wrong_guesses"]
PLATFORM = {"ranks_of_node": 8, "node_memory_bytes": 1 << 35, "read_ahead_bytes": 128 << 10,
            "cores": 64,
            "cpu": {"next_s": 0, "fault_s": 0, "major_fault_s": 0, "wake_s": 0, "woken_s": 0, "copy_bytes_s": 1e18},
            "kernel": {"wait_queues": 0, "fault_around_bytes": 65536},
            "network": {"bytes_s": 1e10, "latency_s": 1e-6},
            "memory": {"bytes_s": 1e11, "latency_s": 1e-7},
            "storage": {"servers": 1, "stripe_bytes": 1 << 20, "server_bytes_s": 1e9, "request_s": 0, "latency_s": 0, "latency_spread": 0,
                        "requests_in_flight": 64, "client_bytes_s": 1e12,
                        "largest_request_bytes": 0}}


def processes_with(word):
    """Returns the processes whose command lines contain the word."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if word.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            pass  # it has ended
    return found


def waits_for(what):
    """Returns whether the condition becomes true within 30 s."""
    end = time.monotonic() + 30
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class Test:
    def __init__(self, where, mpirun, program, simulated, library, slowfs, seed):
        self.mpirun, self.program, self.simulated, self.library, self.slowfs = mpirun, program, simulated, library, slowfs
        self.where, self.hosts = where, HOSTS[where]
        self.rng, self.failed, self.checked, self.all = random.Random(seed), 0, 0, False
        self.directory = tempfile.TemporaryDirectory(prefix="lmdbio_jobs_")
        self.path = self.directory.name

    def expect(self, right, what):
        self.checked += 1
        if not right:
            self.failed += 1
            print(what)

    def platform(self, **storage):
        path = os.path.join(self.path, f"platform{len(os.listdir(self.path))}.json")
        with open(path, "w", encoding="utf-8") as file:
            own = {name: storage.pop(name) for name in list(storage) if name in (*PLATFORM, "emulated")}
            json.dump(PLATFORM | own | {"storage": PLATFORM["storage"] | storage}, file)
        return path

    def simulate(self, platform, ranks, *words, ranks_of_node=None):
        return simulated_jobs.run(self.simulated, platform, ranks, ["db", *words], ranks_of_node)

    def batch(self, content):
        return str(self.rng.randint(1, MOST_BATCH.get(content, 6)))

    def real(self, each, database, words):
        command = ["/usr/bin/env", "LMDBIO_IO=direct", self.program]
        if self.hosts == 1:
            status, told = run_on_this_host(self.mpirun, each, *command, database, *words)
            if status != 0:
                raise Failed(f"{words}: status {status}")
            return told
        job = SlowHosts(self.slowfs, os.path.dirname(database), os.path.join(self.path, "mount"), 0, 0, timeout=SMALL_JOB_S)
        mounted = os.path.join(job.mount, os.path.basename(database))
        return job.job("a job", self.hosts, each, [*command, mounted, *words])[0]

    def requests_are_those_of_real_jobs(self):
        platform = self.platform()
        data = os.path.join(self.path, "data")
        os.mkdir(data)
        strategies = itertools.cycle(STRATEGIES)
        for i, (content, size) in enumerate(CONTENTS.items()):
            made = ["--make", content, "--bytes", size]
            database = os.path.join(data, content)
            run_on_this_host(self.mpirun, 1, self.program, database, *made, "--prepare")
            for each in RANKS[self.where] if self.all else RANKS[self.where][i % 2::2]:
                strategy = next(strategies)
                words = [*made, "--strategy", strategy, "--batch", self.batch(content), "--epochs", "2",
                         "--assignment", self.rng.choice(["strided", "contiguous"]),
                         "--readers-per-node", str(self.rng.randint(1, 2))]
                real = self.real(each, database, words)
                model = self.simulate(platform, self.hosts * each, *words, ranks_of_node=each)
                for field in SAME:
                    self.expect(real[field] == model[field],
                                f"{self.hosts} x {each}: {' '.join(words)}: {field}: real {real[field]}, simulated {model[field]}")
                for a, b in zip(real["epochs"], model["epochs"], strict=True):
                    self.expect((a["records"], a["bytes"]) == (b["records"], b["bytes"]), f"{words}: {a} {b}")
                self.expect(sum(e["storage_bytes"] for e in model["epochs"]) == model["request_bytes"],
                            f"{words}: the file system did not give what was asked for")

    def streams_exchange_what_real_ones_do(self):
        """Streams read the same bytes of the file, except for leaf pages.  Whether a leaf page is still kept when it is needed again
        depends on the speed of reads.  This differs at most once for each part of a round."""
        platform = self.platform(server_bytes_s=1e10)
        data = os.path.join(self.path, "data")
        for each in RANKS_OF_STREAMS[self.where]:
            content = self.rng.choice(list(CONTENTS))
            words = ["--make", content, "--bytes", CONTENTS[content], "--strategy", "full", "--batch", self.batch(content),
                     "--epochs", "3", "--assignment", self.rng.choice(["strided", "contiguous"])]
            real = self.real(each, os.path.join(data, content), [*words, "--library", self.library])
            model = self.simulate(platform, self.hosts * each, *words, ranks_of_node=each)
            what = f"{self.hosts} x {each}: {' '.join(words)}: real {real['library']}, simulated {model['library']}"
            for field in ("ranks", "batch", "records", "steps", "nodes", "readers"):
                self.expect(real[field] == model[field], f"{what}: {field}: {real[field]}, {model[field]}")
            a, b = real["library"], model["library"]
            for field in ("messages", "rank_bytes", "node_bytes"):
                self.expect(a[field] == b[field], what)
            parts = b["file_bytes"] // (4 << 20) + 2 * self.hosts
            self.expect(abs(a["file_bytes"] / b["file_bytes"] - 1) < 0.01, what)
            self.expect(abs(a["file_requests"] - b["file_requests"]) <= parts, what)
            for x, y in zip(real["epochs"], model["epochs"], strict=True):
                self.expect((x["records"], x["bytes"]) == (y["records"], y["bytes"]), what)

    def mapped_files_are_read_as_real_ones_are(self):
        """If one rank of a node reads, the requests do not depend on time, except for a page that another process holds at the moment.
        If several ranks read, the requests depend on time, because the first page fault reads around."""
        if KERNEL < KERNEL_OF_MODEL:
            return print(f"kernel {os.uname().release}: mapped strategies are not compared, an older kernel reads ahead otherwise")
        platform = self.platform(latency_s=1e-3)
        job = SlowHosts(self.slowfs, os.path.join(self.path, "data"), os.path.join(self.path, "mount"), 1000, 0, timeout=SMALL_JOB_S)
        for content, size in CONTENTS.items():
            if content == "cosmoflow-like":  # glibc copies values of some MB backwards, and the kernel reads nothing ahead
                continue
            for each, strategy in ((1, "stock"), (2, "stock"), (2, "lmm"), (3, "lmm-dm")):
                words = ["--make", content, "--bytes", size, "--strategy", strategy, "--batch", self.batch(content),
                         "--epochs", "2", "--assignment", self.rng.choice(["strided", "contiguous"])]
                real = job.job("a job", self.hosts, each, [self.program, os.path.join(job.mount, content), *words, "--no-check",
                                                           "--counters", job.counters])[0]
                model = self.simulate(platform, self.hosts * each, *words, ranks_of_node=each)
                one_reads = strategy != "stock" or each == 1
                for field, close in {"storage_requests": 0.01, "storage_bytes": 0.01}.items() if one_reads else [("storage_bytes", 0.2)]:
                    a, b = (sum(epoch[field] for epoch in run["epochs"]) for run in (real, model))
                    self.expect(abs(a / b - 1) <= close, f"{self.hosts} x {each}: {' '.join(words)}: {field}: real {a}, simulated {b}")
                self.expect(model["epochs"][1]["storage_bytes"] == 0, f"{words}: what was read does not stay")

    def times_are_those_of_the_settings(self):
        words = ["--make", "imagenet-like", "--bytes", "1GiB", "--multiple", "256", "--strategy", "lmm-dio-prov-coal"]
        batch = {32: "8", 64: "4"}

        def seconds(platform, ranks, *more):
            return [e["seconds"] for e in self.simulate(platform, ranks, *words, "--batch", batch[ranks], *more)["epochs"]]

        fast = self.platform(server_bytes_s=1e18, client_bytes_s=1e18)
        computes = self.simulate(fast, 32, *words, "--batch", "8", "--compute", "0.1")
        self.expect(abs(computes["epochs"][0]["seconds"] / (computes["steps"] * 0.1) - 1) < 0.01,
                    f"without a file system's limits: {computes['epochs'][0]['seconds']} s for {computes['steps']} steps of 0.1 s")
        # A server that is always busy.
        slow = self.platform(server_bytes_s=1e8)
        job = self.simulate(slow, 32, *words, "--batch", "8", "--overlap", "ahead")
        takes = job["epochs"][0]["storage_bytes"] / 1e8
        self.expect(abs(job["epochs"][0]["seconds"] / takes - 1) < 0.01, f"{job['epochs'][0]['seconds']} s for what takes {takes} s")
        twice = self.simulate(slow, 64, *words, "--batch", "4", "--overlap", "ahead")
        ratio = twice["epochs"][0]["seconds"] / job["epochs"][0]["seconds"] * (
            job["epochs"][0]["storage_bytes"] / twice["epochs"][0]["storage_bytes"])
        self.expect(abs(ratio - 1) < 0.02, f"twice the ranks take {ratio} times the time for a byte")
        # The ranks of a stream get all events that they wait for.
        for ranks in (2, 32):
            job = self.simulate(slow, ranks, *words[:-1], "full", "--batch", str(256 // ranks))
            takes = job["library"]["file_bytes"] / 1e8
            self.expect(abs(job["epochs"][0]["seconds"] / takes - 1) < 0.03,
                        f"full, {ranks} ranks: {job['epochs'][0]['seconds']} s for what takes {takes} s")
        # Programs see no difference if clients divide requests.
        whole, divided = (self.simulate(self.platform(largest_request_bytes=size), 32, *words, "--batch", "8") for size in (0, 128 << 10))
        self.expect(whole["requests"] == divided["requests"], f"{whole['requests']} requests, {divided['requests']} if divided")
        asked, parts = whole["epochs"][0], divided["epochs"][0]
        self.expect(asked["storage_bytes"] == parts["storage_bytes"]
                    and parts["storage_requests"] >= asked["storage_bytes"] / (128 << 10) > asked["storage_requests"],
                    f"{parts['storage_requests']} requests of at most 128 KiB for {asked['storage_bytes']} bytes")
        # The CPU time is that of the platform, even if it is longer than the read that a fault waits for.
        walk = ["--make", "cifar10-like", "--bytes", "8MiB", "--batch", "8", "--strategy", "stock"]
        cpu = PLATFORM["cpu"]
        platforms = [self.platform(latency_s=1e-3, cpu=cpu | more) for more in ({}, {"next_s": 1e-3}, {"major_fault_s": 5e-3})]
        quick, steps, faults = ([self.simulate(p, ranks, *walk)["epochs"][0] for ranks in (1, 4)] for p in platforms)
        for i, ranks in ((0, 1), (1, 4)):
            records = quick[i]["records"]
            self.expect(abs((steps[i]["seconds"] - quick[i]["seconds"]) / (records * 1e-3) - 1) < 0.1,
                        f"{records} steps of 1 ms take {steps[i]['seconds']} s instead of {quick[i]['seconds']} s")
            # The rank whose fault starts a request takes this time.  Ranks can do so at the same time; opening does so before the epoch.
            takes = faults[i]["storage_requests"] * 5e-3 / ranks
            self.expect(0.9 * takes < faults[i]["seconds"] < 1.1 * takes + quick[i]["seconds"],
                        f"{ranks} ranks, slow faults: {faults[i]['seconds']} s instead of {takes} s")
        # Randomness has a seed.
        drawn = self.platform(latency_s=1e-3, latency_spread=0.5, server_bytes_s=1e8)
        for strategy in ("stock", "lmm-dio-prov-coal", "full"):
            once, again = (self.simulate(drawn, 32, *words[:-1], strategy, "--batch", "8") for _ in range(2))
            self.expect(once == again, f"{strategy}: the same job is not the same again: {once} {again}")
        self.expect(seconds(drawn, 32) != seconds(slow, 32), "latency takes no time")

    def nothing_outlives_the_command(self):
        platform = self.platform()
        build = os.path.dirname(os.path.dirname(self.simulated))
        command = [os.path.join(SCALE, "run"), "--simulate", platform, "--build", build, "--out", self.path, "--ranks", "64", "db",
                   "--make", "cifar10-like", "--bytes", "4GiB", "--batch", "1", "--strategy", "stock"]
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs this in the background makes the process ignore it
        for sent in (signal.SIGINT, signal.SIGTERM):
            job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.expect(waits_for(lambda: len(processes_with(platform)) > 2), "a simulated job does not start")
            job.send_signal(sent)
            job.wait(timeout=60)
            self.expect(waits_for(lambda: not processes_with(platform)), f"{sent.name}: left behind: {processes_with(platform)}")

    def what_is_wrong_is_refused(self):
        right = self.platform()
        nowhere = os.path.join(self.path, "nowhere.json")
        for platform, strategy, size, says in (
                (self.platform(servers=0), "lmm-dio", "1MiB", "servers"), (self.platform(misspelt=1), "lmm-dio", "1MiB", "misspelt"),
                (self.platform(read_ahead_bytes=100), "lmm", "1MiB", "read_ahead_bytes"), (self.platform(cores=0), "lmm", "1MiB", "cores"),
                (self.platform(kernel={"wait_queues": 0, "fault_around_bytes": 100}), "lmm", "1MiB", "fault_around_bytes"),
                (self.platform(emulated={"request_s": -1, "bytes_s": 1}), "lmm", "1MiB", "emulated"), (nowhere, "lmm-dio", "1MiB", nowhere),
                (right, "lmm-dio", "x", "--bytes")):
            try:
                self.simulate(platform, 2, "--make", "cifar10-like", "--bytes", size, "--strategy", strategy, "--batch", "1")
                self.expect(False, f"{says}: not refused")
            except Failed as e:
                self.expect(says in str(e) and "Killing" not in str(e), f"{says}: {e}")


def main():
    where, mpirun, program, simulated, library, slowfs, seed = [*sys.argv[1:], "1"][:7]
    test = Test(where, mpirun, program, simulated, library, slowfs, int(seed))
    test.all = len(sys.argv) > 7
    with test.directory:
        try:
            test.requests_are_those_of_real_jobs()
            test.streams_exchange_what_real_ones_do()
            if where == "four":
                test.mapped_files_are_read_as_real_ones_are()
        except Skip as why:
            print(why)
            return 77
        if where == "one":
            test.what_is_wrong_is_refused()
            test.times_are_those_of_the_settings()
            test.nothing_outlives_the_command()
    print(f"{test.checked} checks, {test.failed} failed")
    return 0 if test.failed == 0 and test.checked > 100 else 1


if __name__ == "__main__":
    sys.exit(main())
