"""Jobs of bench/scale/run whose ranks SimGrid simulates (bench/scale/simulation/README.md).

    simulated_jobs.run(program, "platform.json", 64, ["DATABASE", "--make", "cifar10-like", "--strategy", "lmm-dio"])
"""
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from measure import Failed, progress

# These options make 9,216 ranks possible.  Collective calls are trees.  SMPI's default calls are flat, and
# the time to simulate some of them grows with the cube of the ranks.  In Open MPI's preferred calls all ranks
# send to each other in log(ranks) rounds, which takes ten times as long to simulate.  Open MPI's MPI_Reduce
# ends SimGrid 3.32 at some numbers of ranks.  Small messages are not detached from their senders, because
# SimGrid walks a list of all detached messages in flight when one of them ends.  The real time of a rank's code
# does not count, because ranks compute by sleeping.  MPI_Test takes no simulated time, because callers sleep
# between calls.
SMPI = ["smpi/coll-selector:ompi", "smpi/allreduce:redbcast", "smpi/reduce:binomial", "smpi/bcast:binomial_tree",
        "smpi/gather:ompi_binomial", "smpi/allgather:GB", "smpi/barrier:ompi_tree", "smpi/simulate-computation:no",
        "smpi/host-speed:1Gf", "smpi/test:0", "smpi/send-is-detached-thresh:0", "contexts/stack-size:256"]
# A process may have about 65,000 memory mappings (vm.max_map_count).  The stack of a rank takes two, one of
# them for the guard.  With `full`, the index takes another one.
MOST_GUARDED_RANKS = 20000
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="nodes" prefix="node" suffix="" radical="0-{last}" speed="1Gf" core="{ranks_of_node}"
           bw="{bytes_s}Bps" lat="{latency_s}s" loopback_bw="{memory_bytes_s}Bps" loopback_lat="{memory_latency_s}s"/>
</platform>
"""


def read_platform(path):
    try:
        with open(path, encoding="utf-8") as file:
            platform = json.load(file)
        unknown = set(platform) - {"about", "cores", "emulated", "ranks_of_node", "node_memory_bytes", "read_ahead_bytes", "kernel", "cpu",
                                   "network", "memory", "storage"}
        if unknown:
            raise Failed(f"{path}: unknown members: {', '.join(sorted(unknown))}")
        facts = {"ranks_of_node": int(platform["ranks_of_node"])}
        for part, prefix in (("network", ""), ("memory", "memory_")):
            for name in ("bytes_s", "latency_s"):
                facts[prefix + name] = float(platform[part][name])
                if not facts[prefix + name] > 0:
                    raise Failed(f"{path}: {part}: {name} has to be above 0")
        if facts["ranks_of_node"] < 1:
            raise Failed(f"{path}: ranks_of_node has to be at least 1")
        return facts
    except (OSError, ValueError, TypeError) as e:
        raise Failed(f"{path}: {e}") from e
    except KeyError as e:
        raise Failed(f"{path}: {e} is missing") from e


RUNNING = set()


def run_side_by_side(workers, work, items, keep, name):
    """Calls `work` with each item, in other threads, and `keep` with the item and the result in this thread.  Prints the items that
    Failed, and returns their number.  If this function ends early, it ends all jobs."""
    pool, failed = concurrent.futures.ThreadPoolExecutor(workers), 0
    try:
        futures = {pool.submit(work, item): item for item in items}
        for n, future in enumerate(concurrent.futures.as_completed(futures)):
            item = futures[future]
            try:
                keep(item, future.result())
            except Failed as e:
                failed += 1
                progress("")
                print(f"{name(item)}: {e}", file=sys.stderr)
            progress(f"{n + 1} of {len(futures)} jobs; last: {name(item)}")
        progress("")
        return failed
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for job in list(RUNNING):
            os.killpg(job.pid, signal.SIGKILL)
        raise
    finally:
        pool.shutdown()


def run_group(command, directory, timeout):
    """Runs a command with all its processes in one group, and ends the group with it: smpirun is a script that starts processes."""
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory,
                           start_new_session=True)
    RUNNING.add(job)
    try:
        out, err = job.communicate(timeout=timeout)
    except BaseException as e:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            raise Failed(f"not done after {timeout:.0f} s") from e
        raise
    finally:
        RUNNING.discard(job)
    return subprocess.CompletedProcess(command, job.returncode, out, err)


def run(program, platform, ranks, words, ranks_of_node=None, timeout=None):
    """Runs a simulated job.  Returns the report of run_scale, and the platform as "simulated".  `ranks_of_node` overrides the
    platform's.  `timeout`: seconds.  Raises Failed with the program's messages."""
    if shutil.which("smpirun") is None or not os.access(program, os.X_OK):
        raise Failed(f"{program} is not built: it needs SimGrid (libsimgrid-dev)")
    facts = read_platform(platform)
    each = ranks_of_node or facts["ranks_of_node"]
    nodes = (ranks - 1) // each + 1
    with tempfile.TemporaryDirectory(prefix="lmdbio_simulation_") as directory:
        hosts, xml = os.path.join(directory, "hosts"), os.path.join(directory, "platform.xml")
        with open(xml, "w", encoding="ascii") as file:
            file.write(PLATFORM.format(**facts | {"last": nodes - 1, "ranks_of_node": each}))
        with open(hosts, "w", encoding="ascii") as file:
            file.writelines(f"node{i}:{each}\n" for i in range(nodes))
        settings = SMPI if ranks <= MOST_GUARDED_RANKS else [*SMPI, "contexts/guard-size:0"]
        command = ["smpirun", "-np", str(ranks), "-platform", xml, "-hostfile", hosts, "-no-privatize", "--log=root.thres:critical",
                   *(f"--cfg={setting}" for setting in settings), program, *words, "--platform", platform]
        job = run_group(command, directory, timeout)
    lines = [line for line in job.stdout.splitlines() if line.startswith("{")]
    if job.returncode != 0 or len(lines) != 1:
        # The messages of the program, or those of SimGrid if there are none.
        said = [line for line in (job.stderr + job.stdout).splitlines() if not line.startswith("{")]
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")] or said
        raise Failed("\n".join(errors) or f"smpirun ended with {job.returncode}")
    with open(platform, encoding="utf-8") as file:
        return json.loads(lines[0]) | {"simulated": json.load(file)}
