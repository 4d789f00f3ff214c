#!/usr/bin/python3
"""Tests simulated jobs with a server on each node: what programs get, what is read and sent, and how long it takes.

    servers_test.py SIMULATE_SERVERS PLATFORM
"""
import json
import subprocess
import sys

CHUNK, RECORD = 4 << 20, 112 << 10
# Nodes, order, and chunks of the file for each node.
JOBS = [(2, "in-order", 8), (16, "in-order", 8), (16, "strided", 16), (16, "shuffled", 32)]


def main():
    program, platform = sys.argv[1:3]
    failed = 0

    def expect(right, what):
        nonlocal failed
        if not right:
            failed += 1
        print(f"{'' if right else 'WRONG: '}{what}")

    def simulate(nodes, order, size):
        command = [program, platform, "--nodes", str(nodes), "--order", order, "--bytes", str(size), "--record-bytes", str(RECORD)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    for nodes, order, chunks in JOBS:
        out = simulate(nodes, order, nodes * chunks * CHUNK)
        r, name = json.loads(out), f"{nodes} nodes, {order}"
        size = r["file_bytes"]
        wanted = size * nodes if order == "in-order" else size
        expect(r["wanted_bytes"] == wanted and r["failed"] == 0, f"{name}: programs have got {r['wanted_bytes']} bytes of {wanted}")
        expect(r["read_bytes"] == size and r["alone_bytes"] == 0, f"{name}: {r['read_bytes']} bytes were read of a file of {size}")
        expect(r["most_read"] * nodes <= 1.02 * size, f"{name}: a home has read {r['most_read']} bytes at most")
        # A node gets everything from others, except what it is the home of.
        between = wanted * (nodes - 1) / nodes
        expect(between * 0.95 <= r["sent"] <= between * 1.05, f"{name}: {r['sent']} bytes were sent, {between:.0f} by the formula")
        limit = max(r["file_system_s"], r["links_s"], r["copies_s"])
        expect(0.8 <= limit / r["seconds"] <= 1, f"{name}: {limit / r['seconds']:.3f} of the speed of the slowest part")
        most = (64 << 20) + (16 << 10) * nodes
        expect(r["most_memory"] <= most, f"{name}: a server took {r['most_memory']} bytes of at most {most}")
        expect(r["joined_s"] < 2 and r["longest_silence_s"] < 1, f"{name}: joined after {r['joined_s']} s, {r['longest_silence_s']} s of silence")
    expect(simulate(*JOBS[-1][:2], 1 << 30) == simulate(*JOBS[-1][:2], 1 << 30), "the same job gives the same numbers")
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
