#!/usr/bin/env python3
"""Draws docs/data_path.svg, the way of the data:  python3 docs/data_path.py > docs/data_path.svg"""

STYLE = """text { font: 15px sans-serif; fill: #222 } .small { font-size: 13px; fill: #555 } .name { font-weight: bold }
rect { fill: #fff; stroke: #555; stroke-width: 1.5 } .lmdbio { fill: #dbeafe; stroke: #2563eb } .node { fill: #f6f6f6; stroke: #bbb }
.storage { fill: #fef3c7; stroke: #b45309 } path { stroke: #2563eb; stroke-width: 2.5; fill: none; marker-end: url(#arrow) }"""


def rect(x, y, width, height, kind=""):
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'


def text(x, y, words, kind="", anchor="middle"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def arrow(x, y, to_x, to_y):
    return f'<path d="M{x} {y} L{to_x} {to_y}"/>'


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
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 350" width="900" height="350">', f"<style>{STYLE}</style>",
           '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path d="M0 0 L8 4 L0 8 z" style="fill:#2563eb;stroke:none;marker-end:none"/></marker></defs>',
           rect(0, 0, 900, 350, "node"),
           rect(20, 110, 130, 130, "storage"), text(85, 152, "storage", "name"), text(85, 178, "train.lmdb"),
           text(85, 204, "1 ms or more", "small"), text(85, 222, "for each request", "small")]
    out += node(20, 1) + node(200, 2)
    out += [arrow(150, 160, 345, 95), arrow(150, 190, 345, 265), text(240, 40, "large requests,", "small"), text(240, 57, "many at a time,", "small"),
            text(240, 74, "each byte once", "small"),
            '<path d="M465 130 L465 232"/>', '<path d="M485 235 L485 134"/>', text(500, 180, "what another node has read: with servers, or MPI", "small", "start"),
            text(655, 345, "pointers into memory, as with LMDB", "small")]
    return "\n".join(out + ["</svg>"])


if __name__ == "__main__":
    print(picture())
