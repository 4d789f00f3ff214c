#!/usr/bin/env python3
"""Draws docs/scale_job.svg, a real and a simulated job side by side:  python3 docs/scale_job.py > docs/scale_job.svg"""

from drawing import arrow, rect, svg, text

ROWS = [  # interface -> what is behind it in a real job, what stands for it
    ("messages, clock", ["MPI, Linux"], ["SimGrid: SMPI, and networks of", "nodes with latency and bandwidth"]),
    ("database", ["a file that stock LMDB wrote"], ["tree pages, made when they are read,", "byte for byte as LMDB writes them"]),
    ("mapped reads", ["LMDB, page faults, page cache"], ["pages that LMDB touches, read-ahead", "of Linux 6.18, a time for each fault"]),
    ("storage", ["a file system"], ["servers: latency, bandwidth, requests", "in flight of each node"]),
]


def picture():
    out = [text(335, 28, "a real job", "name"), text(670, 28, "a simulated job", "name"),
           rect(195, 42, 645, 62, "lmdbio"), text(517, 68, "the same code: training loop, strategies, LMDBIO's index, and its", "small"),
           text(517, 88, "exchange of records between ranks (lmdbio/records, lmdbio/ranks)", "small")]
    for i, (name, real, simulated) in enumerate(ROWS):
        y = 126 + 66 * i
        out += [text(175, y + 30, name, "", "end"), rect(195, y, 280, 50), rect(500, y, 340, 50, "storage")]
        for lines, middle in ((real, 335), (simulated, 670)):
            out += [text(middle, y + 30 + 17 * (n - (len(lines) - 1) / 2), line, "small") for n, line in enumerate(lines)]
    out += [arrow(335, 105, 335, 124), arrow(670, 105, 670, 124)]
    y = 126 + 66 * len(ROWS) + 22
    out += [rect(500, y, 340, 62), text(670, y + 22, "a platform (JSON): all constants", ""),
            text(670, y + 43, "assumed, or measured by --calibrate", "small"), arrow(670, y - 1, 670, y - 36),
            text(335, y + 22, "not simulated: other CPU time,", "small"), text(335, y + 40, "other jobs, failures, metadata", "small")]
    return svg(860, y + 80, out)


if __name__ == "__main__":
    print(picture())
