"""Draws the plot of bench/factors: the share that each factor explains, and the effects of its levels."""
import matplotlib.pyplot as plt

COLORS = {"stock": "C0", "ours": "C1", "speed_to_stock": "C2"}
TITLES = {"stock": "time, stock LMDB", "ours": "time, LMDBIO", "speed_to_stock": "speed-up"}


def plain(axis):
    """Shows the numbers of a logarithmic axis as 0.5, 1, 2."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [t for e in range(-3, 5) for t in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if low <= t <= high]
    if len(ticks) > 8:
        ticks = [t for t in ticks if f"{t:e}"[0] == "1"]
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.set_xticks([], minor=True)


def legend_below(axis):
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncol=2)


def draw_shares(axis, report):
    rows = [(s["title"], {r: 100 * s[r]["share"] for r in COLORS}, {r: 100 * s[r]["by_chance"] for r in COLORS}) for s in report["shares"]]
    left = report["unexplained"]
    parts = [("interactions", "interactions"), ("noise", "noise")]
    if left["stock"]["noise"] is None:
        parts = [("not explained", "interactions_and_noise")]
    rows += [(title, {r: 100 * left[r][what] for r in COLORS}, None) for title, what in parts]
    height = 0.8 / len(COLORS)
    for y, (_, shares, by_chance) in enumerate(rows):
        for n, (response, color) in enumerate(COLORS.items()):
            at = y + (n - 1) * height
            axis.barh(at, shares[response], 0.9 * height, color=color, alpha=0.85 if by_chance else 0.35,
                      label=TITLES[response] if y == 0 else None)
            if by_chance:
                axis.plot([by_chance[response]] * 2, [at - height / 2, at + height / 2], color="black", lw=1,
                          label="what chance explains" if y == n == 0 else None)
    axis.set_yticks(range(len(rows)), [title.replace(" (slow)", "\n(slow file systems)").replace(" between ", "\nbetween ")
                                       for title, _, _ in rows], fontsize=8)
    axis.axhline(len(rows) - len(parts) - 0.5, color="grey", lw=0.8, ls=":")
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("% of the variation of the logarithm", fontsize=8)
    axis.set_title("what each factor explains, and what none does", fontsize=9)
    legend_below(axis)


def draw_levels(times, speeds, rows, mean):
    """Draws the effects on the time, and the speed-ups, with a line for each level."""
    y, places, names = 0.0, [], []
    for i, row in enumerate(rows):
        if i == 0 or row["factor"] != rows[i - 1]["factor"]:
            y += 0.7
            times.text(0.0, y, row["title"], fontsize=8, fontweight="bold", transform=times.get_yaxis_transform(), ha="right", va="center",
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
            y += 0.9
        for axis, response, shift in ((times, "stock", -0.15), (times, "ours", 0.15), (speeds, "speed_to_stock", 0)):
            value = row[response]
            axis.errorbar(value["median"], y + shift, xerr=[[value["median"] - value["low"]], [value["high"] - value["median"]]], fmt="o",
                          ms=4, lw=1.2, capsize=2, color=COLORS[response], label=TITLES[response] if i == 0 else None)
        places.append(y)
        names.append(row["label"])
        y += 0.9
    times.set_yticks(places, names, fontsize=8)
    for axis in (times, speeds):
        axis.axvline(1, color="grey", lw=0.8)
        for place in places:
            axis.axhline(place, color="lightgrey", lw=0.4, zorder=0)
        plain(axis)
        axis.tick_params(axis="x", labelsize=8)
    speeds.axvline(mean["median"], color=COLORS["speed_to_stock"], lw=0.8, ls="--", label=f"geometric mean of all: {mean['median']:.2f}")
    speeds.tick_params(axis="y", left=False)
    times.set_ylim(y - 0.2, 0)
    times.set_xlabel("time x (1: mean of the factor's levels)", fontsize=8)
    speeds.set_xlabel("time of stock LMDB / time of LMDBIO", fontsize=8)
    times.set_title("effect of each level on the time", fontsize=9)
    speeds.set_title("speed-up at each level", fontsize=9)
    for axis in (times, speeds):
        legend_below(axis)


def draw(report):
    rows = report["rows"]
    figure, (shares, times, speeds) = plt.subplots(1, 3, figsize=(15, max(5, 0.27 * len(rows) + 0.2 * len(report["shares"]) + 1.6)),
                                                   layout="constrained", width_ratios=[1.15, 1, 1])
    draw_shares(shares, report)
    draw_levels(times, speeds, rows, report["means"]["speed_to_stock"])
    speeds.sharey(times)
    speeds.tick_params(labelleft=False)
    machine, plan = report["machine"], report["plan"]
    figure.suptitle(f"cold reads of an LMDB database: {plan['configurations']} configurations of {plan['combinations']}, bars: 95 % "
                    f"intervals\n{machine['cpu']}, {machine['cpus']} cores, Linux {machine['kernel']}, local disk: "
                    f"{machine['directory']['file_system']}", fontsize=9)
    return figure
