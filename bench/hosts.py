"""Runs jobs on emulated hosts (tests/support/emulated_hosts.py).  Each host mounts the same directory through its own slow
file system (tests/support/slowfs), with its own page cache.  One cap limits the bandwidth of all hosts together."""
import ctypes
import json
import mmap
import os
import shlex
import subprocess
import sys

import cold_files  # noqa: F401  (puts tests/support on the path)
from measure import Failed, Skip

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(TOP, "tests", "support", "emulated_hosts.py")
# Runs on each host.  The first process of the host owns the mount, because the shell that runs these commands
# ends.
MOUNT = """{command} </dev/null >/dev/null &
until [ -e {mount}/.slowfs/counters ]; do kill -0 $! || exit 1; sleep 0.01; done"""
# Fills the page cache at full speed.  These reads are not counted.
FILL = """
printf 'delay_us=0\\nbandwidth=0\\n' >{control}
cat {file} >/dev/null
printf 'reset=1\\ndelay_us={delay_us}\\nbandwidth={bandwidth}\\n' >{control}"""


def touch(size):
    """Touches this much memory, and frees it.  A hypervisor may give memory to a virtual machine only at the first use.  That takes
    up to several seconds a GiB, which would otherwise be a part of the measured time."""
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = ctypes.c_char.from_buffer(memory)
    ctypes.memset(ctypes.addressof(view), 1, size)
    del view
    memory.close()


# Time limit in seconds of a small job of a test, which usually takes two.  But waiting ranks call
# sched_yield(2).  With 16 of them on two CPUs, some kernels (seen with 6.18) run no other process for up to a
# minute, except for real-time ones.
SMALL_JOB_S = 300


class SlowHosts:
    """Hosts with slow file systems.  `slowfs`: the program.  `directory` appears at `mount` on all hosts; `mount` is empty outside
    of them.  `delay_us`: delay of each request.  `cap`: MB/s of all hosts together; 0: no limit.  `rate`: rate of a host's
    network link, for tc(8); empty: no limit.
    """

    def __init__(self, slowfs, directory, mount, delay_us, cap, rate="", timeout=600):
        self.slowfs, self.directory, self.mount = slowfs, directory, mount
        self.delay_us, self.bandwidth, self.rate, self.timeout = delay_us, cap * 1000000, rate, timeout
        self.counters = os.path.join(mount, ".slowfs/counters")
        os.makedirs(mount, exist_ok=True)

    def setup(self, warm):
        """Returns the shell command that mounts the directory on a host."""
        command = [self.slowfs, "--owner=1", f"--delay-us={self.delay_us}", f"--bandwidth={self.bandwidth}",
                   f"--bandwidth-group={self.directory}/.bandwidth", "--max-background=512", "--", self.directory, self.mount]
        script = MOUNT.format(command=shlex.join(command), mount=shlex.quote(self.mount))
        if warm:
            script += FILL.format(control=shlex.quote(os.path.join(self.mount, ".slowfs/control")), file=shlex.quote(warm),
                                  delay_us=self.delay_us, bandwidth=self.bandwidth)
        return script

    def job(self, label, hosts, ranks, command, env=None, warm=""):
        """Runs a command on new hosts, with `ranks` on each.  Returns the JSON that it prints, and its lines on standard error.
        `warm`: a file below the mount that is in each host's page cache before the job; nothing else is.  `env`: additional
        variables; those of LMDBIO and LD_PRELOAD are not inherited.  Raises Skip if hosts cannot be emulated here, or Failed."""
        lines, said = self.run(label, hosts, ranks, command, env, warm, 1)
        return lines[0], said

    def lines(self, label, hosts, ranks, command, env=None, on_head=False):
        """Runs a command as job() does.  Returns the JSON that each rank prints.  `on_head`: the command runs once, on a host of its own,
        and MPIRUN in it stands for the command that starts the ranks."""
        return self.run(label, hosts, ranks, command, env, "", hosts * ranks, ["--head"] if on_head else [])[0]

    def run(self, label, hosts, ranks, command, env, warm, count, options=()):
        line = [sys.executable, "-B", PROGRAM, "--hosts", str(hosts), "--ranks", str(ranks), "--timeout", str(self.timeout), "--rate",
                self.rate, "--setup", self.setup(warm), *options, "--", *command]
        inherited = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
        job = subprocess.run(line, env=inherited | (env or {}), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if job.returncode == 77:
            raise Skip(job.stdout.strip())
        lines = [line for line in job.stdout.splitlines() if line.startswith("{")]
        if job.returncode != 0 or len(lines) != count:
            raise Failed(f"{label} ended with {job.returncode}: {job.stdout}{job.stderr}")
        # Open MPI prints plm:rsh warnings on emulated hosts.
        return list(map(json.loads, lines)), [said for said in job.stderr.splitlines() if "plm:rsh" not in said]
