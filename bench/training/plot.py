"""Draws the plot of bench/gpu: images per second, and the share of the time that the device waits, with a column for each network."""
import matplotlib.pyplot as plt
from loading.plot import bars
from measure import counted
from plotting import legend_below


def draw(report):
    rows, options, machine = report["rows"], report["options"], report["machine"]
    networks, storages, loaders = (list(dict.fromkeys(r[k] for r in rows)) for k in ("network", "storage", "loader"))
    figure, axes = plt.subplots(2, len(networks), figsize=(max(7, 5 * len(networks)), 6), layout="constrained", squeeze=False,
                                sharey="row", sharex=True)
    for column, network in zip(axes.T, networks):
        here = [r for r in rows if r["network"] == network]
        bars(column[0], here, "storage", storages, loaders, "images_per_s")
        bars(column[1], here, "storage", storages, loaders, "waiting", 100)
        column[0].set_title(network, fontsize=9)
    axes[0, 0].set_ylabel("images per second")
    axes[1, 0].set_ylabel("% of the time waiting for data")
    axes[0, 0].set_ylim(0, 1.1 * max(r["images_per_s"]["high"] for r in rows))
    axes[1, 0].set_ylim(0, 100)
    legend_below(figure, axes)
    figure.suptitle(f"training on {options['device_name']}, batches of {options['batch']}, {counted(options['workers'], 'worker')}, "
                    f"cold files, median and range of {counted(options['rounds'], 'round')}\n{machine['cpu']}, {machine['cpus']} cores, "
                    f"Linux {machine['kernel']}", fontsize=9)
    return figure
