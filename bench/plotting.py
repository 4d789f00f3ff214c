"""What the plots of several benchmarks have in common."""
import textwrap


def set_title(figure, *lines, fontsize=9):
    """Writes lines above the figure, broken so that they fit."""
    most = int(figure.get_figwidth() * 72 / (0.55 * fontsize))
    figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, most)), fontsize=fontsize)


def plain_log(axis, values):
    """Makes the y axis logarithmic, with numbers as 0.5, 1, 2 in place of powers of ten.  `values`: those that it shows."""
    from matplotlib.ticker import LogLocator, NullFormatter
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < 1000 * min(values) else (1,)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def legend_below(figure, axes):
    """Makes one legend for all panels, below them.  The figure must have the constrained layout."""
    named = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
    columns = max(1, min(len(named), int(figure.get_figwidth() * 72 / (5.5 * max(map(len, named), default=1) + 40))))
    height = (0.2 + 0.2 * -(-len(named) // columns)) / figure.get_figheight()
    figure.get_layout_engine().set(rect=(0, height, 1, 1 - height))
    figure.legend(named.values(), named, loc="lower center", ncol=columns, fontsize=8)
