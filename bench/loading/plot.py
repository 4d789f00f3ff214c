"""Draws the plot of bench/loaders: samples per second of each loader by the number of workers, with a panel for each storage."""
import matplotlib.pyplot as plt
from measure import counted
from plotting import legend_below, plain_log

WIDTH = 0.85  # of a group of bars


def title(storage, slow):
    place, state = storage.split("-")
    return {"slow": slow.removeprefix("slow-").replace("ms", " ms per request"), "local": "local disk"}[place] + ", " + state


def bars(axis, rows, kind, kinds, loaders, value, scale=1):
    """Draws a group of bars for each of `kinds`, values of the column `kind`: a bar for each loader, with the median and the range of
    the column `value`."""
    width = WIDTH / len(loaders)
    for n, loader in enumerate(loaders):
        here = [r for r in rows if r["loader"] == loader]
        low, median, high = ([scale * r[value][k] for r in here] for k in ("low", "median", "high"))
        axis.bar([kinds.index(r[kind]) + (n - (len(loaders) - 1) / 2) * width for r in here], median, 0.9 * width, color=f"C{n}",
                 label=loader, error_kw={"ecolor": "black", "elinewidth": 0.8, "capsize": 1.5},
                 yerr=[[m - l for m, l in zip(median, low)], [h - m for m, h in zip(median, high)]])
    axis.set_xticks(range(len(kinds)), kinds)
    axis.grid(axis="y", lw=0.4)
    axis.set_axisbelow(True)


def draw(report):
    rows = report["rows"]
    storages, workers, loaders = (list(dict.fromkeys(r[k] for r in rows)) for k in ("storage", "workers", "loader"))
    figure, axes = plt.subplots(1, len(storages), figsize=(max(7, 4.2 * len(storages)), 4), layout="constrained", squeeze=False,
                                sharey=True)
    for axis, storage in zip(axes[0], storages):
        bars(axis, [r for r in rows if r["storage"] == storage], "workers", workers, loaders, "samples_per_s")
        axis.set_xlabel("workers of the DataLoader", fontsize=8)
        axis.set_title(title(storage, report["options"]["slow"]), fontsize=9)
    axes[0, 0].set_ylabel("samples per second")
    ends = [0.5 * min(r["samples_per_s"]["low"] for r in rows), 1.5 * max(r["samples_per_s"]["high"] for r in rows)]
    plain_log(axes[0, 0], ends)
    axes[0, 0].set_ylim(ends)
    legend_below(figure, axes)
    options, machine = report["options"], report["machine"]
    figure.suptitle(f"one shuffled epoch, records of {options['value'] / 1024:g} KiB, median and range of "
                    f"{counted(options['rounds'], 'round')}\n"
                    f"{machine['cpu']}, {machine['cpus']} cores, Linux {machine['kernel']}", fontsize=9)
    return figure
