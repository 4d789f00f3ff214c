#!/usr/bin/env python3
"""Draws docs/scale.svg, the first table of docs/scale.md as curves:  python3 docs/scale.py > docs/scale.svg"""
import math
import os

from drawing import svg, text

# For each column of the table: text at the end of its curve, vertical shift of the text, color.
CURVES = [("stock, lmm", 0, "#1f2937"), ("lmm-dm: leaf pages once", 0, "#15803d"), ("lmm-dio: direct", 0, "#dc2626"),
          ("-prov: own leaf pages only", -10, "#7c3aed"), (None, 0, "#0891b2"), ("-coal, -stag, full", 8, "#2563eb")]
LEFT, RIGHT, TOP, BOTTOM = 70, 640, 50, 330
RANKS, SECONDS = (30, 9216), (0.04, 3)
STYLE = "\npolyline { fill: none; stroke-width: 2 } line { stroke: #ddd } .tick { font-size: 12px; fill: #555 }"


def rows():
    """Returns ranks and seconds of a step of each row of the table."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "scale.md"), encoding="utf-8") as page:
        lines = page.read().partition("| ranks | `stock`")[2].split("\n\n")[0].splitlines()
    cells = [[c.strip().replace(",", "") for c in line.strip("|").split("|")] for line in lines]
    return [[float(c) for c in row] for row in cells if row[0].isdigit()]


def along(value, ends, low, high):
    return round(low + (high - low) * math.log(value / ends[0]) / math.log(ends[1] / ends[0]), 1)


def x(ranks):
    return along(ranks, RANKS, LEFT, RIGHT)


def y(seconds):
    return along(seconds, SECONDS, BOTTOM, TOP)


def curve(points, color, more=""):
    return f'<polyline points="{" ".join(f"{x(r)},{y(s)}" for r, s in points)}" stroke="{color}" {more}/>'


def picture():
    table = rows()
    out = [text(24, 28, "seconds of a step, of which 0.05 are computation (simulated)", "name", "start")]
    for row in table:
        out += [f'<line x1="{x(row[0])}" y1="{TOP}" x2="{x(row[0])}" y2="{BOTTOM}"/>', text(x(row[0]), BOTTOM + 20, f"{row[0]:,.0f}", "tick")]
    for seconds in (0.05, 0.1, 0.2, 0.5, 1, 2):
        out += [f'<line x1="{LEFT}" y1="{y(seconds)}" x2="{RIGHT}" y2="{y(seconds)}"/>', text(LEFT - 8, y(seconds) + 4, seconds, "tick", "end")]
    out.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, "ranks, 36 of each node", "small"))
    for column, (name, shift, color) in reversed(list(enumerate(CURVES, 1))):
        points = [(row[0], row[column]) for row in table]
        out.append(curve(points, color, 'stroke-dasharray="7 5"' if column == 1 else ""))
        if name:
            out.append(text(RIGHT + 10, round(y(points[-1][1]) + 4 + shift, 1), name, "small", "start"))
    return svg(860, 390, out, STYLE)


if __name__ == "__main__":
    print(picture())
