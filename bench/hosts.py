"""Jobs on emulated hosts (tests/support/emulated_hosts.py), each of which mounts the same directory through a slow file
system of its own (tests/support/slowfs) with a page cache of its own; one cap of the bandwidth is for all of them together."""
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
# On each host.  Its first process owns the mount, since the shell that runs this ends.
MOUNT = """{command} </dev/null >/dev/null &
until [ -e {mount}/.slowfs/counters ]; do kill -0 $! || exit 1; sleep 0.01; done"""
# At full speed, and not counted.
FILL = """
printf 'delay_us=0\\nbandwidth=0\\n' >{control}
cat {file} >/dev/null
printf 'reset=1\\ndelay_us={delay_us}\\nbandwidth={bandwidth}\\n' >{control}"""


def touch(size):
    """Touches so much memory, and frees it.  Where a hypervisor gives memory to a machine when it is used first, that takes
    up to several seconds a GiB, and would be measured instead of what uses the memory."""
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = ctypes.c_char.from_buffer(memory)
    ctypes.memset(ctypes.addressof(view), 1, size)
    del view
    memory.close()


# After so many seconds, a small job of a test has stopped.  It usually takes two.  But ranks that wait call sched_yield(2), and with 16
# of them on two CPUs some kernels (seen with 6.18) let no other process run for up to a minute; only real-time ones go on.
SMALL_JOB_S = 300


class SlowHosts:
    """`slowfs`: the program.  `directory` appears at `mount` on all hosts; `mount` is empty outside of them.  `delay_us`: of
    each request.  `cap`: MB/s of all hosts together, 0: none.  `rate`: of a host's network link, for tc(8); empty: no limit.
    """

    def __init__(self, slowfs, directory, mount, delay_us, cap, rate="", timeout=600):
        self.slowfs, self.directory, self.mount = slowfs, directory, mount
        self.delay_us, self.bandwidth, self.rate, self.timeout = delay_us, cap * 1000000, rate, timeout
        self.counters = os.path.join(mount, ".slowfs/counters")
        os.makedirs(mount, exist_ok=True)

    def setup(self, warm):
        """The shell command that mounts the directory on a host."""
        command = [self.slowfs, "--owner=1", f"--delay-us={self.delay_us}", f"--bandwidth={self.bandwidth}",
                   f"--bandwidth-group={self.directory}/.bandwidth", "--max-background=512", "--", self.directory, self.mount]
        script = MOUNT.format(command=shlex.join(command), mount=shlex.quote(self.mount))
        if warm:
            script += FILL.format(control=shlex.quote(os.path.join(self.mount, ".slowfs/control")), file=shlex.quote(warm),
                                  delay_us=self.delay_us, bandwidth=self.bandwidth)
        return script

    def job(self, label, hosts, ranks, command, env=None, warm=""):
        """Runs it on hosts that are made for it, `ranks` on each.  The JSON that it prints, and what it says on standard error.
        `warm`: this file below the mount is in each host's page cache; else nothing is.  `env`: more variables; those of
        LMDBIO and LD_PRELOAD are not inherited.  Skip: there can be no such hosts here.  Failed."""
        line = [sys.executable, "-B", PROGRAM, "--hosts", str(hosts), "--ranks", str(ranks), "--timeout", str(self.timeout), "--rate",
                self.rate, "--setup", self.setup(warm), "--", *command]
        inherited = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("LMDBIO_")}
        job = subprocess.run(line, env=inherited | (env or {}), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if job.returncode == 77:
            raise Skip(job.stdout.strip())
        lines = [line for line in job.stdout.splitlines() if line.startswith("{")]
        if job.returncode != 0 or len(lines) != 1:
            raise Failed(f"{label} ended with {job.returncode}: {job.stdout}{job.stderr}")
        # Open MPI says plm:rsh of emulated hosts.
        return json.loads(lines[0]), [said for said in job.stderr.splitlines() if "plm:rsh" not in said]
