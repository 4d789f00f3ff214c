#!/usr/bin/env python3
"""Runs a program as an MPI job on this host, whatever Open MPI would say against that.

    mpi_job.py MPIRUN RANKS [--fails] PROGRAM [arguments]

"TMP" among the arguments is the name of a new directory, removed afterwards.  --fails: a rank says "ends now" and ends;
the job then has to end with an error, within 20 seconds, and leave no process.

Exit status: mpirun's, or 0 if it failed as it has to; 77 without a working mpirun.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time


# As root, more ranks than cores, nothing pinned, no network.
ON_ONE_HOST = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader",
               "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_plm_rsh_agent": "/bin/false",
               "OMPI_MCA_pmix_server_max_wait": "60"}


def processes_in(directory):
    """Processes that work below a directory."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(directory):
                found.append(int(pid))
        except OSError:
            pass
    return found


def fails_as_it_has_to(command, env, directory):
    begun = time.monotonic()
    done = subprocess.run(command, env=env, check=False, timeout=60, stdout=subprocess.PIPE, text=True)
    took = time.monotonic() - begun
    left = processes_in(directory)
    print(f"ended with {done.returncode} after {took:.1f} s; processes that are left: {left}")
    return "ends now" in done.stdout and done.returncode != 0 and took < 20 and not left


def main():
    mpirun, ranks, *command = sys.argv[1:]
    fails = command[0] == "--fails"
    if fails:
        command = command[1:]
    if shutil.which(mpirun) is None:
        print("no mpirun")
        return 77
    env = {k: v for k, v in os.environ.items() if not k.startswith("LMDBIO_")}
    env.update(ON_ONE_HOST)
    probe = subprocess.run([mpirun, "-n", "1", "true"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           check=False, timeout=60)
    if probe.returncode != 0:
        print("mpirun does not work here:", probe.stdout)
        return 77
    with tempfile.TemporaryDirectory(prefix="lmdbio_mpi_") as directory:
        command = [mpirun, "-n", ranks, *(directory if c == "TMP" else c for c in command)]
        if fails:
            return 0 if fails_as_it_has_to(command, env, directory) else 1
        return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
