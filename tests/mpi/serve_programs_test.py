#!/usr/bin/python3
"""Programs that know nothing of LMDBIO, on emulated hosts with servers: an MPI program under Open MPI and under MPICH, and py-lmdb under
torchrun.  Each gets the right records, and bytes from the servers.

    serve_programs_test.py MPIRUN BIN LIBRARY [unittest arguments]

BIN has lmdbio, lmdbio_slowfs and serve_reader, and serve_reader_mpich if MPICH is installed.  Exit status 77: something is missing.
"""
import functools
import importlib.util
import json
import operator
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from served_hosts import HOSTS_PROGRAM, drop_cache, environment, main, mounting, write_database  # noqa: E402

MPIRUN, BIN, LIBRARY = sys.argv[1:4]
RECORDS, VALUE, HOSTS, RANKS = 300, 110000, 2, 2

TORCH_READER = """
import random, sys, zlib
import lmdb, torch, torch.distributed as dist
dist.init_process_group("gloo")
with lmdb.open(sys.argv[1], readonly=True, lock=False, subdir=False) as env, env.begin() as txn:
    order = list(range(txn.stat()["entries"]))
    random.Random(5).shuffle(order)
    mine = order[dist.get_rank()::dist.get_world_size()]
    found = 0
    for i in mine: found ^= zlib.crc32(txn.get(b"%08d" % i))
sums = torch.tensor([found]), torch.tensor([len(mine)])
dist.all_reduce(sums[0], dist.ReduceOp.BXOR)
dist.all_reduce(sums[1])
if dist.get_rank() == 0: print('{"sum": %d, "records": %d}' % (sums[0].item(), sums[1].item()), flush=True)
dist.destroy_process_group()
"""

class ServePrograms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lmdbio_programs_")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.data, cls.mount = (os.path.join(cls.folder.name, d) for d in ("data", "mount"))
        for d in (cls.data, cls.mount):
            os.mkdir(d)
        cls.file, cls.served = (os.path.join(d, "data.mdb") for d in (cls.data, cls.mount))
        values = write_database(cls.file, RECORDS, VALUE)
        cls.want = {"sum": functools.reduce(operator.xor, map(zlib.crc32, values)), "records": RECORDS}

    def script(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def run_with_servers(self, command):
        """Runs a shell command on the head, with servers on all hosts.  Returns what it prints, line by line."""
        drop_cache(self.file)
        inner = f"{command} || exit 1\nMPIRUN cat {self.mount}/.slowfs/counters"
        stats = os.path.join(self.folder.name, "stats")
        if os.path.exists(stats):
            os.remove(stats)
        env = environment() | {"OMP_NUM_THREADS": "1", "TESTED": f"LD_PRELOAD={LIBRARY} LMDBIO_STATS={stats}"}
        job = subprocess.run([sys.executable, "-B", HOSTS_PROGRAM, "--mpirun", MPIRUN, "--hosts", str(HOSTS), "--ranks", "1", "--timeout", "100",
                              "--setup", mounting(BIN, self.data, self.mount), "--head", "--", os.path.join(BIN, "lmdbio"), "run", "--nodes",
                              "--launcher", "MPIRUN", "--", "/bin/sh", "-c", inner],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
        if job.returncode == 77:
            self.skipTest(job.stdout.strip())
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        lines = [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]
        counters = [line["read"]["bytes"] for line in lines if "read" in line]
        self.assertEqual(len(counters), HOSTS)
        with open(stats, encoding="utf-8") as file:
            done = [e["io"] for line in file for e in json.loads(line)["environments"]]
        self.assertGreater(sum(io["server_read"] for io in done), 0)
        # Once, unless servers are late on a busy machine: never more often than without servers.
        self.assertLessEqual(sum(counters), 1.1 * HOSTS * os.path.getsize(self.file))
        return [line for line in lines if "read" not in line]

    def test_open_mpi(self):
        program = os.path.join(BIN, "serve_reader")
        host_ranks = f"sh -c 'exec env $TESTED {program} {self.served}'"
        self.assertEqual(self.run_with_servers(f"MPIRUN {host_ranks}"), [self.want])

    @unittest.skipUnless(os.path.exists(os.path.join(BIN, "serve_reader_mpich")) and shutil.which("mpiexec.mpich"), "MPICH is missing")
    def test_mpich(self):
        # A job on each host: MPICH 4.0 over UCX does not always come back from MPI_Finalize here, with and without LMDBIO.
        program = os.path.join(BIN, "serve_reader_mpich")
        mpich = f"mpiexec.mpich -launcher fork -n {RANKS} env $TESTED {program} {self.served}"
        self.assertEqual(self.run_with_servers(f"MPIRUN sh -c 'exec {mpich}'"), [self.want] * HOSTS)

    @unittest.skipUnless(importlib.util.find_spec("torch") and shutil.which("torchrun"), "PyTorch is missing")
    def test_torchrun(self):
        script = self.script("torch_reader.py", TORCH_READER)
        # torchrun 1.13 fails with its own defaults of -r and -t under Python 3.11.
        torchrun = (f"torchrun -r 9:1 -t 9:1 --nnodes {HOSTS} --nproc_per_node {RANKS} --node_rank $OMPI_COMM_WORLD_RANK --master_addr node0 "
                    f"--master_port 29500 {script} {self.served}")
        self.assertEqual(self.run_with_servers(f"MPIRUN sh -c 'exec env GLOO_SOCKET_IFNAME=eth0 $TESTED {torchrun}'"), [self.want])


if __name__ == "__main__":
    main(BIN)
