"""The parts of the pictures of docs/.  docs/NAME.svg is what docs/NAME.py prints; the test check_pictures compares them."""

STYLE = """text { font: 15px sans-serif; fill: #222 } .small { font-size: 13px; fill: #555 } .name { font-weight: bold }
rect { fill: #fff; stroke: #555; stroke-width: 1.5 } .lmdbio { fill: #dbeafe; stroke: #2563eb } .node { fill: #f6f6f6; stroke: #bbb }
.storage { fill: #fef3c7; stroke: #b45309 } path { stroke: #2563eb; stroke-width: 2.5; fill: none; marker-end: url(#arrow) }"""


def rect(x, y, width, height, kind=""):
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'


def text(x, y, words, kind="", anchor="middle"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def arrow(x, y, to_x, to_y):
    return f'<path d="M{x} {y} L{to_x} {to_y}"/>'


def svg(width, height, parts, style=""):
    """A picture on a light ground, which makes it readable on dark pages, too."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}{style}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" style="fill:#2563eb;stroke:none;marker-end:none"/></marker></defs>',
        rect(0, 0, width, height, "node"), *parts, "</svg>"])
