#!/usr/bin/env python3
"""Draws docs/strategies.svg, who reads what and who sends:  python3 docs/strategies.py > docs/strategies.svg"""

from drawing import arrow, rect, svg, text

WIDTH, LEFT, GAP = 168, 14, 9
STYLE = """
.leaf { fill: #fde68a; stroke: #b45309 } .idle { fill: #fff; stroke: #bbb } .tiny { font-size: 11.5px; fill: #333 } .grey { fill: #888 }
path { stroke-width: 1.8 } path.tree { stroke: #b45309; stroke-dasharray: 5 3; marker-end: url(#tree) } path.send { stroke: #15803d; marker-end: url(#send) }"""


def marker(name, color):
    return (f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" style="fill:{color};stroke:none;marker-end:none"/></marker>')


def path(kind, x, y, to_x, to_y):
    return arrow(x, y, to_x, to_y).replace("<path ", f'<path class="{kind}" ')


def node(x, y, number, memory, readers):
    """A node with its memory and two ranks, of which `readers` read."""
    out = [rect(x, y, 76, 106, "node"), text(x + 38, y + 101, f"node {number}", "tiny grey"),
           rect(x + 6, y + 6, 64, 34, "lmdbio"), *(text(x + 38, y + 20 + 13 * i, word, "tiny") for i, word in enumerate(memory.split()))]
    for i in range(2):
        out += [rect(x + 6 + 34 * i, y + 60, 30, 26, "" if i < readers else "idle"),
                text(x + 21 + 34 * i, y + 77, "rank", "tiny" if i < readers else "tiny grey"),
                arrow(x + 21 + 34 * i, y + 41, x + 21 + 34 * i, y + 59)]
    return out


def panel(n, names, memory, readers, trees, sends, lines):
    """`trees`: the nodes that read leaf pages; `sends`: what nodes send each other."""
    x = LEFT + n * (WIDTH + GAP)
    out = [text(x + WIDTH / 2, 24 + 17 * i, name, "name") for i, name in enumerate(names)]
    out += [rect(x + 18, 66, 62, 34, "leaf"), text(x + 49, 87, "leaf pages", "tiny"), rect(x + 84, 66, 66, 34, "storage"),
            text(x + 117, 87, "values", "tiny")]
    for number in (0, 1):
        at = x + 3 + 86 * number
        out += node(at, 150, number + 1, memory, readers)
        out.append(path("value", x + 107 + 20 * number, 101, at + 46, 155))
        if number in trees:
            out.append(path("tree", x + 40 + 18 * number, 101, at + 24, 155))
    if sends:
        out.append(path("send", x + 74, 167, x + 94, 167))
        if sends == "records":
            out.append(path("send", x + 94, 181, x + 74, 181))
    return out + [text(x + 2, 280 + 16 * i, line, "tiny", "start") for i, line in enumerate(lines)]


def picture():
    out = [f"<defs>{marker('tree', '#b45309')}{marker('send', '#15803d')}</defs>"]
    out += panel(0, ["stock"], "page cache", 2, (0, 1), "",
                 ["page faults of each rank", "each node: all leaf pages", "values: those of its ranks"])
    out += panel(1, ["lmm"], "shared memory", 1, (0, 1), "",
                 ["page faults of one reader", "each node: all leaf pages", "values: those of its ranks"])
    out += panel(2, ["lmm-dm"], "shared memory", 1, (0,), "places",
                 ["the first reader walks, and", "sends where values are", "leaf pages: once"])
    out += panel(3, ["lmm-dio", "-prov, -coal, -stag"], "shared memory", 1, (0, 1), "",
                 ["direct, 64 at a time", "-prov: own leaf pages only", "-coal: 4 MiB requests", "-stag: readers take turns"])
    out += panel(4, ["full"], "LMDBIO's memory", 1, (0, 1), "records",
                 ["each node reads another part,", "4 MiB, ahead, once in the job,", "and sends records to nodes", "that use them"])
    y = 362
    out += [path("tree", 20, y, 60, y), text(66, y + 4, "reads of leaf pages, to find records", "tiny", "start"),
            path("value", 300, y, 340, y), text(346, y + 4, "reads of values", "tiny", "start"),
            path("send", 470, y, 510, y), text(516, y + 4, "messages between nodes: places (lmm-dm), records (full)", "tiny", "start"),
            text(20, y + 24, "black: ranks that read; grey: ranks that get their records from the memory of the node", "tiny", "start")]
    return svg(910, 400, out, STYLE)


if __name__ == "__main__":
    print(picture())
