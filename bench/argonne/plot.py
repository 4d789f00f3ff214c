"""Draws the plot of bench/factors --study argonne: for each order, the speed and the longest waits by each factor, while the others
have their usual levels."""
import matplotlib.pyplot as plt

COLORS = {"stock": "C0", "preload": "C1", "reader": "C2"}
WHAT = {"MB_per_s": "MB/s, all readers", "p99_ms": "99 % of waits, ms"}


def errors(values):
    return [[v["median"] - v["low"] for v in values], [v["high"] - v["median"] for v in values]]


def draw(report):
    rows, usual = report["rows"], report["usual"]
    orders = list(dict.fromkeys(r["order"] for r in rows))
    figure, axes = plt.subplots(2 * len(orders), len(usual), figsize=(2.6 * len(usual) + 1, 3.6 * len(orders) + 0.8), layout="constrained",
                                squeeze=False, sharey="row")
    for line, (order, what) in zip(axes, ((o, w) for o in orders for w in WHAT)):
        for axis, factor in zip(line, usual):
            there = [r for r in rows if r["order"] == order and all(r[f] == level for f, level in usual.items() if f != factor)]
            levels = list(dict.fromkeys(r[factor] for r in there))
            for way in dict.fromkeys(r["reader"] for r in there):
                points = [r for r in there if r["reader"] == way]
                axis.errorbar([levels.index(r[factor]) for r in points], [r[what]["median"] for r in points],
                              yerr=errors([r[what] for r in points]), color=COLORS[way], marker="o", ms=3, lw=1.2, capsize=2, label=way)
            axis.set_yscale("log")
            axis.set_xticks(range(len(levels)), [level.replace("slow-", "").replace("-cap", "\ncap ") for level in levels], fontsize=7)
            axis.set_xlim(-0.4, len(levels) - 0.6)
            axis.tick_params(axis="y", labelsize=7, which="both")
            axis.grid(axis="y", lw=0.3)
            axis.set_title(f"{order}, by {'record size' if factor == 'value' else factor}", fontsize=8)
        line[0].set_ylabel(WHAT[what], fontsize=8)
    axes[0, 0].legend(fontsize=7)
    machine = report["machine"]
    figure.suptitle(f"readers of training data on slow storage, cold; {', '.join(f'{f} {level}' for f, level in usual.items())}\n"
                    f"{machine['cpu']}, {machine['cpus']} cores, Linux {machine['kernel']}", fontsize=9)
    return figure
