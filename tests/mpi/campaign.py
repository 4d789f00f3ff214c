#!/usr/bin/python3
"""Random configurations of mpi_reader at several numbers of ranks, on one host and on emulated ones, at each thread level;
and many starts of jobs whose ranks end early.

    campaign.py BUILD [--configurations 100] [--seed 1] [--starts 0]

BUILD: a build directory.  Each job takes ten configurations.  --starts: of jobs in which a rank closes its stream early,
throws, exits without a word, or closes nothing at all; every third is FUNNELED.  A job that hangs is ended after two
minutes; the stacks of its ranks are printed if gdb is there.  Exit status 0: each rank got what a reader of it alone got.
"""
import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = os.path.join(HERE, "..", "support", "emulated_hosts.py")
SHAPES = [(1, 1), (1, 2), (1, 4), (1, 7), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (7, 1), (3, 2)]  # hosts, ranks
EACH = 10


def print_stacks(program):
    for pid in subprocess.run(["pgrep", "-f", program], capture_output=True, text=True, check=False).stdout.split():
        if shutil.which("gdb"):
            subprocess.run(["gdb", "-batch", "-p", pid, "-ex", "thread apply all bt"], check=False)


def start_jobs(build, n):
    program = os.path.join(build, "bin", "mpi_faults")
    for i in range(n):
        scenario = ("unwinds", "finalize", "closes", "exits")[i % 4]
        fails = ["--fails"] if scenario == "exits" else []
        command = [sys.executable, "-B", os.path.join(HERE, "mpi_job.py"), "mpirun", "3", *fails, program, scenario, "TMP",
                   "1" if i % 3 == 0 else "3"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as job:
            try:
                said = job.communicate(timeout=120)[0]
            except subprocess.TimeoutExpired:
                print_stacks(program)
                os.killpg(job.pid, signal.SIGTERM)  # mpirun ends its ranks
                said = job.communicate()[0]
        if job.returncode != 0:
            print(f"start {i}: {' '.join(command)}: status {job.returncode}\n{said}")
            return 1
        if (i + 1) % 25 == 0:
            print(f"{i + 1} starts", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--configurations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--starts", type=int, default=0)
    args = parser.parse_args()
    program = os.path.join(os.path.abspath(args.build), "bin", "mpi_reader")
    done = 0
    for i, (hosts, ranks) in enumerate(itertools.cycle(SHAPES)):
        if done >= args.configurations:
            break
        options = ["--level", str(i % 4), "--seed", str(args.seed + done), "--rounds", str(EACH),
                   "--io", ("buffered", "mixed", "direct", "automatic", "buffered")[i % 5]]
        if hosts == 1:
            job = [os.path.join(HERE, "mpi_job.py"), "mpirun", str(ranks), program, *options]
        else:
            job = [HOSTS, "--hosts", str(hosts), "--ranks", str(ranks), "--timeout", "600", "--", program, "--hosts", str(hosts), *options]
        status = subprocess.run([sys.executable, "-B", *job], check=False).returncode
        if status != 0:
            print(f"{hosts} hosts x {ranks} ranks: {' '.join(options)}: status {status}")
            return status
        done += EACH
        print(f"{done} configurations ({hosts} hosts x {ranks} ranks, level {i % 4}): the same", flush=True)
    if start_jobs(os.path.abspath(args.build), args.starts) != 0:
        return 1
    print(f"{done + args.starts} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
