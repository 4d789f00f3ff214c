"""Runs jobs on emulated hosts whose file systems write a line for each read request (tests/support/slowfs/trace.h)."""
import json
import os
import shlex

from hosts import MOUNT, SMALL_JOB_S, SlowHosts
from measure import Failed

LARGEST_REQUEST = 1 << 20  # the kernel divides larger ones
# Each rank writes its process number to a file.
RANK = """echo $$ >{out}/rank.$OMPI_COMM_WORLD_RANK
{debug}
exec "$@"
"""


class TracedHosts(SlowHosts):
    """`out`: an empty directory for traces."""

    def __init__(self, slowfs, directory, mount, out):
        super().__init__(slowfs, directory, mount, 0, 0, timeout=SMALL_JOB_S)
        self.out, self.options = out, []

    def setup(self, _warm):
        command = shlex.join([self.slowfs, "--owner=1", "--max-background=4096", f"--max-read={LARGEST_REQUEST}", *self.options])
        return MOUNT.format(command=f"{command} --trace={self.out}/trace.$HOST -- {self.directory} {self.mount}", mount=self.mount)

    def traced_job(self, label, shape, command, options, env, debug):
        """Runs a job.  `shape`: hosts, and ranks on each.  `options`: of the emulated file systems.  `debug`: a shell command that each rank runs
        before the program.  Returns the report of run_scale, and the read requests for data.mdb, sorted by time, with node and rank."""
        hosts, each = shape
        for file in os.listdir(self.out):
            os.unlink(os.path.join(self.out, file))
        self.options = options
        told, _ = self.job(label, hosts, each, ["/bin/sh", "-c", RANK.format(out=self.out, debug=debug), "sh", *command], env)
        ranks, lines = {}, []
        for rank in range(hosts * each):
            with open(f"{self.out}/rank.{rank}", encoding="ascii") as file:
                ranks[rank // each, int(file.read())] = rank
        for node in range(hosts):
            with open(f"{self.out}/trace.node{node}", encoding="ascii") as file:
                lines += [json.loads(line) | {"node": node} for line in file]
        for line in lines:
            line["rank"] = ranks.get((line["node"], line["process"]))
            if line["rank"] is None:
                raise Failed(f"{label}: a process reads that is no rank: {line}")
        counted = sum(epoch["storage_requests"] for epoch in told["epochs"])
        if counted != len(lines):
            raise Failed(f"{label}: {len(lines)} requests in the traces, {counted} counted")
        return told, sorted((line for line in lines if line["file"] == "data.mdb"), key=lambda line: line["begin_ns"])
