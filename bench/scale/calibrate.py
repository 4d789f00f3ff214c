"""bench/scale/run --calibrate FILE: measures the constants of this machine, and writes them as a platform for --simulate.

Each constant is measured by itself, by programs that do not run the training loop: simulation/measure_constants.cc,
simulation/measure_faults.cc, simulation/measure_messages.cc and bench/raw_ring.cc.  The file system is the slow one of emulated hosts
(tests/support/slowfs), and the network is that of emulated hosts.  Needs root, as emulated hosts do.
"""
import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time

import cold_files
import slowfs
from hosts import SlowHosts
from measure import Failed, Skip, fail, machine_facts, progress

from . import waits

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
DATABASE_MIB = 256
SMALL, LARGE = 4096, MIB
MANY = 4  # MANY * LARGE is larger than the kernel's largest request
IN_FLIGHT = 512  # of the slow file system: --max-background
WAIT_US = 2000  # delay of a request, in which 64 processes begin to wait for it


class Calibration:
    def __init__(self, args):
        self.args = args
        self.bin = os.path.join(args.build, "bin")

    def told(self, *command):
        lines = self.lines(*command)
        if len(lines) != 1:
            raise Failed(f"{' '.join(command)} printed {len(lines)} lines")
        return lines[0]

    def lines(self, *command):
        """Returns the lines of JSON that a program prints."""
        job = subprocess.run([os.path.join(self.bin, command[0]), *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             check=False)
        if job.returncode != 0:
            raise Failed(f"{' '.join(command)} ended with {job.returncode}: {job.stderr}")
        return list(map(json.loads, job.stdout.splitlines()))

    def requests(self, directory):
        """Measures requests, one at a time and without a cap, and page faults that wait for requests."""
        with slowfs.SlowFs(os.path.join(self.bin, "lmdbio_slowfs"), directory, max_background=IN_FLIGHT) as fs:
            fs.set(delay_us=self.args.delay_us, bandwidth=0)
            told = self.told("measure_constants", "file", os.path.join(fs.path, "db", "data.mdb"))
            # Many requests at a time, without delays: measures the time of the server for each.
            fs.set(delay_us=0, bandwidth=0)
            small, large = (self.told("raw_ring", os.path.join(fs.path, "db"), "--request", str(size), "--depth", "64")
                            for size in (SMALL, LARGE))
            self.largest = self.largest_request(fs)
        return told, small, large

    def waits(self, directory):
        """Measures page faults of several processes on the same pages, with one CPU and with all.  Returns rows for waits.py."""
        rows, cpus = [], sorted(os.sched_getaffinity(0))
        try:
            for cores in sorted({1, len(cpus)}):
                os.sched_setaffinity(0, cpus[:cores])  # also of the server and the processes, which inherit it
                with slowfs.SlowFs(os.path.join(self.bin, "lmdbio_slowfs"), directory, max_background=IN_FLIGHT, delay_us=WAIT_US) as fs:
                    for count in waits.FEW_PROCESSES if self.args.quick else waits.PROCESSES:
                        progress(f"page faults of {count} processes on {cores} CPUs")
                        rows += [{"cores": cores, **row} for row in self.lines(
                            "measure_faults", os.path.join(fs.path, "db", "data.mdb"), "--server", str(fs.process.pid), "--processes",
                            str(count), "--rounds", "5" if self.args.quick else "30")]
        finally:
            os.sched_setaffinity(0, cpus)
        return rows

    def largest_request(self, fs):
        """Returns the size of the requests into which a large read is divided."""
        fs.set(reset=1)
        fd = os.open(os.path.join(fs.path, "db", "data.mdb"), os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, MANY * LARGE) as room:
                os.preadv(fd, [room], 0)
        finally:
            os.close(fd)
        requests = fs.counters()["read"]["numbered"]
        return MANY * LARGE // requests if requests > 1 else 0

    def messages(self, hosts, ranks):
        job = SlowHosts(os.path.join(self.bin, "lmdbio_slowfs"), self.directory, os.path.join(self.directory, "mount"), 0, 0,
                        self.args.rate)
        return job.job("messages", hosts, ranks, [os.path.join(self.bin, "measure_messages")])[0]

    def run(self):
        with tempfile.TemporaryDirectory(prefix="lmdbio_calibrate_") as self.directory:
            database = os.path.join(self.directory, "db")
            progress("making a database")
            subprocess.run([os.path.join(self.bin, "run_scale"), database, "--make", "cifar10-like", "--bytes", f"{DATABASE_MIB}MiB",
                            "--prepare"], check=True, stdin=subprocess.DEVNULL)
            cold_files.make_warm(os.path.join(database, "data.mdb"))  # no disk is measured below the slow file system
            progress("LMDB, page faults, copies")
            cpu = self.told("measure_constants", "cpu", database)
            progress("requests")
            alone, small, large = self.requests(self.directory)
            self.faults = self.waits(self.directory)
            progress("messages")
            network, memory = self.messages(2, 1), self.messages(1, 2)
        return self.platform(cpu, alone, small, large, network, memory)

    def platform(self, cpu, alone, small, large, network, memory):
        by_bytes = {int(size): seconds for size, seconds in alone["seconds_by_bytes"].items()}
        # For one request at a time: seconds = latency + bytes / bandwidth.
        client_bytes_s = (LARGE - SMALL) / max(by_bytes[LARGE] - by_bytes[SMALL], 1e-9)
        latency_s = by_bytes[SMALL] - SMALL / client_bytes_s
        file_bytes = DATABASE_MIB * MIB
        own_bytes_s = file_bytes / large["seconds"]
        request_s = small["seconds"] / (file_bytes / SMALL)
        server_bytes_s = min(self.args.cap * 1e6, own_bytes_s) if self.args.cap else own_bytes_s
        return {
            "about": f"emulated hosts on {machine_facts()['cpu']}, {time.strftime('%Y-%m-%d %H:%M:%S')}: slow file system, "
                     f"{self.args.delay_us} us for each request, {self.args.cap or 'no cap of'} MB/s",
            "ranks_of_node": self.args.ranks_of_node, "node_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "read_ahead_bytes": 128 << 10,
            "cores": len(os.sched_getaffinity(0)), "emulated": {"request_s": request_s, "bytes_s": own_bytes_s},
            "cpu": {**cpu, **waits.constants(self.faults, cpu["fault_s"])},
            "kernel": {"wait_queues": 0, "fault_around_bytes": 64 << 10},
            "network": {name: network[name] for name in ("bytes_s", "latency_s")},
            "memory": {name: memory[name] for name in ("bytes_s", "latency_s")},
            "storage": {"servers": 1, "stripe_bytes": MIB, "server_bytes_s": server_bytes_s, "request_s": request_s,
                        "latency_s": latency_s, "latency_spread": alone["latency_spread"], "requests_in_flight": IN_FLIGHT,
                        "client_bytes_s": client_bytes_s, "largest_request_bytes": self.largest}}


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/scale/run --calibrate", description=__doc__.split("\n\n")[1])
    parser.add_argument("file", help="where the platform is written")
    parser.add_argument("--delay-us", type=int, default=1000, help="of each request (default: %(default)s)")
    parser.add_argument("--cap", type=int, default=400, help="MB/s of all hosts together; 0: none (default: %(default)s)")
    parser.add_argument("--rate", default="", help="of a host's network link, for tc(8) (default: no limit)")
    parser.add_argument("--ranks-of-node", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="page faults of few processes and rounds, for tests")
    parser.add_argument("--build", default=os.path.join(TOP, "build", "dev"), help="build directory (default: %(default)s)")
    return parser.parse_args(words)


def main(words):
    args = parse(words)
    try:
        calibration = Calibration(args)
        platform = calibration.run()
    except (Failed, slowfs.Missing) as e:
        fail(e)
    except Skip as e:
        print(e)
        sys.exit(77)
    progress("")
    with open(args.file, "w", encoding="utf-8") as out:
        json.dump(platform, out, indent=1)
        out.write("\n")
    print(json.dumps(platform, indent=1))
    print("\nPage faults of several processes at a time. same: all wait for the same page; near: each for one of 16 pages of a request;\n"
          "resident: pages that are in the page cache. A process that waits once switches once.\n")
    print(*waits.table(calibration.faults), sep="\n")
