#!/usr/bin/env python3
"""Runs a program as an MPI job on this host, whatever Open MPI would say against that.

    mpi_job.py MPIRUN RANKS PROGRAM [arguments]

Exit status: mpirun's; 77 without a working mpirun.
"""
import os
import shutil
import subprocess
import sys


def main():
    mpirun, ranks, *command = sys.argv[1:]
    if shutil.which(mpirun) is None:
        print("no mpirun")
        return 77
    env = {k: v for k, v in os.environ.items() if not k.startswith("LMDBIO_")}
    # As root, more ranks than cores, nothing pinned, no network.
    env.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader",
                "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_plm_rsh_agent": "/bin/false",
                "OMPI_MCA_pmix_server_max_wait": "60"})
    probe = subprocess.run([mpirun, "-n", "1", "true"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           check=False, timeout=60)
    if probe.returncode != 0:
        print("mpirun does not work here:", probe.stdout)
        return 77
    return subprocess.run([mpirun, "-n", ranks, *command], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
