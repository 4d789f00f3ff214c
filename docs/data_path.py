#!/usr/bin/env python3
"""Draws docs/data_path.svg, the way of the data:  python3 docs/data_path.py > docs/data_path.svg"""

from drawing import arrow, rect, svg, text


def node(y, number):
    """A node with its LMDBIO and its programs."""
    out = [rect(330, y, 550, 130, "node"), text(345, y + 22, f"node {number}", "small", "start"),
           rect(350, y + 36, 250, 74, "lmdbio"), text(475, y + 60, "page cache, shared memory", "name"),
           text(475, y + 80, "one copy for all processes", "small"), text(475, y + 99, "local disk: a copy for the next job", "small")]
    for i in range(3):
        out += [rect(700, y + 12 + 38 * i, 165, 32), text(782, y + 33 + 38 * i, "program + LMDBIO"),
                arrow(600, y + 73, 695, y + 28 + 38 * i)]
    return out


def picture():
    out = [rect(20, 110, 130, 130, "storage"), text(85, 152, "storage", "name"), text(85, 178, "train.lmdb"),
           text(85, 204, "1 ms or more", "small"), text(85, 222, "for each request", "small")]
    out += node(20, 1) + node(200, 2)
    out += [arrow(150, 160, 345, 95), arrow(150, 190, 345, 265), text(240, 40, "large requests,", "small"), text(240, 57, "many at a time,", "small"),
            text(240, 74, "each byte once", "small"),
            '<path d="M465 130 L465 232"/>', '<path d="M485 235 L485 134"/>', text(500, 180, "what another node has read: with servers, or MPI", "small", "start"),
            text(655, 345, "pointers into memory, as with LMDB", "small")]
    return svg(900, 350, out)


if __name__ == "__main__":
    print(picture())
