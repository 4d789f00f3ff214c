"""bench/scale/run --servers PLATFORM: a server on each node (lmdbio serve), simulated (bench/scale/simulation/README.md), beside strategies
without servers.

Each node has one program, which reads the file as fast as it can: the whole file in order, or each N-th record of N nodes, or as many records
in a random order. Efficiency: the time that the file system alone needs for one copy of the file, or a link for what a node receives, whichever
is longer, divided by the time of the job, opening included.
"""
import argparse
import json
import os
import subprocess

from measure import MIB, Failed, fail, machine_facts

from .simulated_campaign import RECORD_BYTES, TOP, ranks
from .simulation import simulated_jobs

CONTENT, ORDERS = "imagenet-like", ["in-order", "strided", "shuffled"]
COLUMNS = ["nodes", "order", "strategy", "seconds", "efficiency", "read / file", "open s", "homes", "senders", "memory MiB (limit)",
           "messages for a MiB", "silence s"]
PEER_BYTES, SERVER_BYTES = 16 << 10, 64 << 20  # memory of a server without chunks: for each other server, and in any case


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/scale/run --servers", description=__doc__)
    add = parser.add_argument
    add("platform", help="the machine, a file of JSON; each node has one program")
    add("--nodes", type=ranks, default="64,512,4096", help="default: %(default)s")
    add("--orders", default="strided,shuffled,in-order", help="default: %(default)s")
    add("--chunks", type=int, default=16, help="of 4 MiB in the file, for each node; in order: an eighth of this, since each program reads all of "
        "it (default: %(default)s)")
    add("--strategies", default="stock,lmm,full", help="to compare with, for strided records (default: %(default)s)")
    add("--most-nodes", type=int, default=64, help="of these strategies, since they take long to simulate (default: %(default)s)")
    add("--out", default=os.path.join(TOP, "build", "scale-servers"), help="where results go (default: build/scale-servers)")
    add("--build", default=os.path.join(TOP, "build", "dev"), help="build directory (default: %(default)s)")
    args = parser.parse_args(words)
    args.orders, args.strategies = args.orders.split(","), [s for s in args.strategies.split(",") if s]
    if not set(args.orders) <= set(ORDERS) or args.chunks < 8 or min(args.nodes) < 2:
        fail(f"--orders: of {', '.join(ORDERS)}; --chunks: at least 8; --nodes: at least 2")
    args.platform, args.build, args.out = map(os.path.abspath, (args.platform, args.build, args.out))
    return args


def file_bytes(args, nodes, order):
    return nodes * (args.chunks // 8 if order == "in-order" else args.chunks) << 22


def with_servers(args, nodes, order):
    """Returns a row of the table."""
    program = os.path.join(args.build, "bin", "simulate_servers")
    command = [program, args.platform, "--nodes", str(nodes), "--order", order, "--bytes", str(file_bytes(args, nodes, order)),
               "--record-bytes", str(RECORD_BYTES[CONTENT])]
    try:
        job = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    except OSError as e:
        raise Failed(f"{program}: {e.strerror}") from e
    if job.returncode != 0:
        raise Failed(job.stderr.strip() or f"{program} ended with {job.returncode}")
    r = json.loads(job.stdout)
    return {**r, "strategy": "servers", "order": order, "efficiency": max(r["file_system_s"], r["links_s"]) / r["seconds"],
            "read_to_file": r["read_bytes"] / r["file_bytes"], "homes": r["most_read"] * nodes / r["read_bytes"],
            "senders": r["most_sent"] * nodes / r["sent"], "memory_limit": SERVER_BYTES + PEER_BYTES * nodes}


def without_servers(args, nodes, strategy, servers):
    """Returns a row for the same file and order with the row `servers`."""
    program = os.path.join(args.build, "bin", "run_scale_simulated")
    batch = 4
    words = ["db", "--make", CONTENT, "--bytes", str(servers["file_bytes"] - RECORD_BYTES[CONTENT] * batch * nodes // 2),
             "--multiple", str(batch * nodes), "--strategy", strategy, "--batch", str(batch), "--compute", "0", "--assignment", "strided"]
    result = simulated_jobs.run(program, args.platform, nodes, words, ranks_of_node=1)
    epoch = result["epochs"][0]
    limit = max(servers["file_system_s"], servers["links_s"])
    return {"strategy": strategy, "nodes": nodes, "order": "strided", "seconds": epoch["seconds"], "efficiency": limit / epoch["seconds"],
            "joined_s": epoch["open_seconds"], "read_to_file": epoch["storage_bytes"] / servers["file_bytes"]}


def show(row):
    cells = [row["nodes"], row["order"], row["strategy"], f"{row['seconds']:.3f}", f"{row['efficiency']:.3f}", f"{row['read_to_file']:.3f}",
             f"{row['joined_s']:.3f}"]
    if row["strategy"] == "servers":
        cells += [f"{row['homes']:.3f}", f"{row['senders']:.3f}", f"{row['most_memory'] / MIB:.1f} ({row['memory_limit'] / MIB:.0f})",
                  f"{row['messages'] / (row['wanted_bytes'] / MIB):.1f}", f"{row['longest_silence_s']:.2f}"]
    cells += [""] * (len(COLUMNS) - len(cells))
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main(words):
    args = parse(words)
    os.makedirs(args.out, exist_ok=True)
    print("SIMULATED.  Homes, senders: what the busiest server reads, and sends, compared with the mean.  Memory: of a server, without "
          "chunks.\nSilence: the longest time for which a server did not show its program that it works.\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    rows = []
    try:
        for nodes in args.nodes:
            for order in args.orders:
                rows.append(with_servers(args, nodes, order))
                show(rows[-1])
                if order != "strided" or nodes > args.most_nodes:
                    continue
                servers = rows[-1]
                for strategy in args.strategies:
                    rows.append(without_servers(args, nodes, strategy, servers))
                    show(rows[-1])
    except Failed as e:
        fail(e)
    report = {"bench": "scale-servers", "machine": machine_facts(), "options": vars(args), "rows": rows}
    with open(os.path.join(args.out, "result.json"), "w", encoding="utf-8") as out:
        json.dump(report, out, indent=1)
    print(f"\nResults: {os.path.join(args.out, 'result.json')}")
    return 0
