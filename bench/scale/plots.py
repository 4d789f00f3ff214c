"""Plots of the scaling benchmark: of one job; of a campaign, with time and share of I/O against ranks, and with the steps."""


from measure import counted
from plotting import legend_below, plain_log, set_title


def draw_all(drawings):
    """Writes all figures.  `drawings`: path -> function that returns a figure."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as e:
        print(f"no plot: {e}")
        return
    for path, draw in drawings.items():
        figure = draw()
        figure.savefig(path, dpi=130)
        pyplot.close(figure)
        print(f"Plot:    {path}")


def subplots(rows, columns, width, height):
    from matplotlib import pyplot
    return pyplot.subplots(rows, columns, figsize=(width * columns + 0.6, height * rows + 0.6), layout="constrained", squeeze=False)


def machine_line(report):
    m = report["machine"]
    return f"{m['cpu']}, {m['cpus']} CPUs, Linux {m['kernel']}"


def style(strategy, strategies):
    """How the curve of a strategy is drawn.  Where curves lie on each other, dashes of stock LMDB above and the wide `full` below the
    others show them."""
    own = {"stock": {"ls": "--", "zorder": 4}, "full": {"lw": 3.5, "alpha": 0.5, "zorder": 1}}
    return {"color": f"C{strategies.index(strategy)}", "lw": 1.3, **own.get(strategy, {})}


def label_ends(axis, curves):
    """Writes names at the right ends of curves: one text for curves that end at nearly the same height.  `curves`: name -> y of its end,
    and color.  The scale and the limits of the axis must be final."""
    groups = []
    for name, (y, _) in sorted(curves.items(), key=lambda curve: curve[1][0]):
        height = (axis.transScale + axis.transLimits).transform((1, y))[1]
        if groups and height - groups[-1][0] < 0.015:
            groups[-1][1].append(name)
        else:
            groups.append((height, [name]))
    above = -1
    for height, names in groups:
        above = max(above + 0.04, height)
        text = ", ".join("-" + n.split("-")[-1] if "prov" in n else n for n in curves if n in names)
        axis.text(1.02, above, text, transform=axis.transAxes, va="center", fontsize=7,
                  color=curves[names[0]][1] if len(names) == 1 else "black")


def draw_job(report):
    """Draws the parts of the time of each step.  If one step takes far longer than most, the axis is logarithmic."""
    from matplotlib.ticker import MaxNLocator
    epochs = report["epochs"]
    figure, axes = subplots(1, len(epochs), 5, 3.2)
    for axis, (i, epoch) in zip(axes[0], enumerate(epochs)):
        seconds, waits = epoch["step_seconds"], epoch["step_wait_s_mean"]
        steps, usual = range(1, len(seconds) + 1), sorted(seconds)[len(seconds) // 2]
        if max(seconds) > 5 * usual > 0:
            least = usual / 100
            waits = [max(w, least) for w in waits]
            plain_log(axis, [1e3 * least, 1e3 * max(seconds)])
        else:
            axis.set_ylim(0, 1.1e3 * max(seconds))
        axis.plot(steps, [1e3 * s for s in seconds], ".-", ms=3, lw=0.6, color="C7", label="step, slowest rank")
        axis.plot(steps, [1e3 * w for w in waits], ".-", ms=3, lw=0.6, color="C3", label="wait for the batch, mean of ranks")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_title(f"epoch {i + 1}: {epoch['seconds']:.2f} s, of this I/O {100 * epoch['share_of_io']:.0f} %", fontsize=9)
        axis.set(xlabel="step", ylabel="ms")
    legend_below(figure, axes)
    which = {"stock": "stock LMDB", "full": "LMDBIO (full)"}.get(report["strategy"], f"strategy {report['strategy']}")
    set_title(figure, f"{which}, {counted(report['ranks'], 'rank')} on {counted(report['nodes'], 'node')}; {machine_line(report)}")
    return figure


def part_name(state, part):
    return {"cold": "cold, first epoch", "warm": "warm, first epoch"}[state] if part == "first" else f"later epochs ({state} start)"


def of_campaign(report):
    """Returns file name -> function that draws the figure."""
    drawings = {}
    if len({r["ranks"] for r in report["rows"]}) > 1:
        drawings["time.png"] = lambda: against_ranks(report, "seconds")
        drawings["share.png"] = lambda: against_ranks(report, "share_of_io")
    drawings["steps.png"] = lambda: steps(report)
    return drawings


def against_ranks(report, what):
    """Rows: contents and kinds of scaling; columns: states of page caches, and epochs.  A line for each strategy."""
    rows = [r for r in report["rows"] if r["compute"] == report["options"]["compute"][-1]]
    places = list(dict.fromkeys((r["content"], r["scaling"]) for r in rows))
    parts = list(dict.fromkeys((r["state"], r["part"]) for r in rows))
    strategies = list(dict.fromkeys(r["strategy"] for r in rows))
    figure, axes = subplots(len(places), len(parts), 3.4, 3.1)
    for line, place in zip(axes, places):
        for axis, part in zip(line, parts):
            here = [r for r in rows if (r["content"], r["scaling"]) == place and (r["state"], r["part"]) == part]
            for strategy in strategies:
                points = sorted((r for r in here if r["strategy"] == strategy), key=lambda r: r["ranks"])
                if what == "seconds":
                    y = [r["seconds"]["median"] for r in points]
                    bounds = [(r["seconds"]["low"] or m, r["seconds"]["high"] or m) for r, m in zip(points, y)]
                    errors = [[m - low for m, (low, _) in zip(y, bounds)], [high - m for m, (_, high) in zip(y, bounds)]]
                else:
                    y, errors = [100 * r["share_of_io"] for r in points], None
                axis.errorbar([r["ranks"] for r in points], y, yerr=errors, marker="o", ms=3, capsize=2, label=strategy,
                              **style(strategy, strategies))
            ranks = sorted({r["ranks"] for r in here})
            axis.set_xscale("log", base=2)
            axis.set_xticks(ranks, [f"{r}\n({shape})" for r in ranks for shape in [next(h["shape"] for h in here if h["ranks"] == r)]],
                            fontsize=7)
            axis.minorticks_off()
            if what == "seconds":
                plain_log(axis, [r["seconds"]["median"] for r in here])
            else:
                axis.set_ylim(0, 105)
            axis.set_title(f"{place[0]}, {place[1]} scaling\n{part_name(*part)}", fontsize=8)
            axis.grid(alpha=0.3)
    for line in axes:
        line[0].set_ylabel("seconds of an epoch" if what == "seconds" else "share of I/O, %")
    for axis in axes[-1]:
        axis.set_xlabel("ranks (hosts x ranks)")
    legend_below(figure, axes)
    title = "time of an epoch" if what == "seconds" else "share of opening and waiting in the time of all ranks"
    set_title(figure, f"Scaling benchmark: {title}", storage_line(report))
    return figure


def storage_line(report):
    o = report["options"]
    cap = f"{o['cap']} MB/s for all hosts" if o["cap"] else "no cap"
    return f"slow file systems, {o['delay_us'] / 1000:g} ms a request, {cap}; {report['machine']['cpus']} CPUs emulate all hosts"


def steps(report):
    """Rows: contents and shapes with the most ranks; columns: states and epochs.  Bars: each strategy, with its speed relative to
    the previous step."""
    from matplotlib.ticker import MaxNLocator
    rows = [r for r in report["rows"] if r["compute"] == report["options"]["compute"][0]]
    scaling = rows[0]["scaling"]
    shapes = list(dict.fromkeys(r["shape"] for r in sorted(rows, key=lambda r: r["ranks"])))[-2:]
    rows = [r for r in rows if r["shape"] in shapes and r["scaling"] == scaling]
    places = list(dict.fromkeys((r["content"], r["shape"]) for r in rows))
    parts = list(dict.fromkeys((r["state"], r["part"]) for r in rows))
    strategies = list(dict.fromkeys(r["strategy"] for r in rows))
    figure, axes = subplots(len(places), len(parts), 4.2, 0.34 * len(strategies) + 0.7)
    for line, place in zip(axes, places):
        for axis, part in zip(line, parts):
            here = {r["strategy"]: r for r in rows if (r["content"], r["shape"]) == place and (r["state"], r["part"]) == part}
            most = max(r["seconds"]["median"] for r in here.values())
            for n, strategy in enumerate(s for s in strategies if s in here):
                r = here[strategy]
                low, middle, high = (r["seconds"][end] for end in ("low", "median", "high"))
                errors = [[middle - low], [high - middle]] if low is not None else None
                axis.barh(n, middle, 0.7, color=f"C{strategies.index(strategy)}", xerr=errors, error_kw={"ecolor": "0.3", "capsize": 2})
                step = f", {r['step']['median']:.2f} x" if r["step"] else ""
                axis.text(min(max(middle, high or 0), 1.35 * most), n, f" {middle:.3g} s{step}", va="center", fontsize=6)
            axis.set_yticks(range(len(here)), [s if axis is line[0] else "" for s in strategies if s in here], fontsize=7)
            axis.invert_yaxis()
            axis.set_xlim(0, 1.9 * most)
            axis.xaxis.set_major_locator(MaxNLocator(5))
            axis.set_title(f"{place[0]}, {place[1]}: {part_name(*part)}", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("seconds of an epoch")
    set_title(figure, "Scaling benchmark: the steps of the paper, and the library; x: how many times as fast as the step before "
              "(lmm-dio: as lmm; full: as lmm-dio-prov-coal)", storage_line(report))
    return figure


# Result of Pumma, Si, Feng, Balaji, "Scalable Deep Learning via I/O Analysis and Optimization", ACM TOPC
# 2019: number of ranks, and largest speed-up of the application over stock LMDB.
PAPER = 9216, 65
# The largest speed-up of `lmm` over stock LMDB in the paper, at a number of ranks that we do not know.
PAPER_LMM = 20


def simulated(report):
    """Draws the time of a step, and the speed-up over stock, against ranks."""
    rows, options = report["rows"], report["options"]
    has_stock = any(r["to_stock"] for r in rows)
    strategies = list(dict.fromkeys(r["strategy"] for r in rows))
    figure, (axes,) = subplots(1, 1 + has_stock, 5.2, 4.2)
    for axis, what in zip(axes, ("step_s", "to_stock")):
        shown = {s: [r for r in rows if r["strategy"] == s and r[what]] for s in strategies}
        for strategy, points in shown.items():
            axis.plot([r["ranks"] for r in points], [r[what] for r in points], marker=".", **style(strategy, strategies))
        if what == "step_s":
            axis.axhline(options["compute"], ls=":", lw=0.8, color="black")
            axis.annotate("computation alone", (0.01, options["compute"]), (0, -2), xycoords=("axes fraction", "data"),
                          textcoords="offset points", va="top", fontsize=6)
        ranks, ratio = PAPER
        if what == "to_stock" and ranks in (r["ranks"] for r in rows):
            axis.plot(ranks, ratio, "*", color="black")
            axis.annotate("the paper, another workload:\nup to 65 x", (ranks, ratio), (-8, -4), textcoords="offset points", ha="right",
                          fontsize=6)
        if what == "to_stock" and "lmm" in strategies:
            axis.axhline(PAPER_LMM, ls=":", lw=0.8, color="black")
            axis.annotate(f"lmm in the paper: up to {PAPER_LMM} x", (0.02, PAPER_LMM), (0, 2), xycoords=("axes fraction", "data"),
                          textcoords="offset points", fontsize=6)
        axis.set_title({"step_s": "seconds of a step", "to_stock": "speed, stock LMDB: 1"}[what], fontsize=9)
        plain_log(axis, [r[what] for r in rows if r[what]])
        axis.set_xscale("log", base=2)
        axis.set_xlabel("ranks")
        ticks = sorted({r["ranks"] for r in rows})
        axis.set_xticks(ticks, ticks, rotation=60, fontsize=7)
        axis.minorticks_off()
        axis.grid(lw=0.3)
        label_ends(axis, {s: (points[-1][what], style(s, strategies)["color"]) for s, points in shown.items() if points})
    set_title(figure, f"Simulated, not measured: {report['platform']['about']}",
              f"{options['content']}, {counted(options['batch'], 'record')} of a rank in a step, cold", fontsize=8)
    return figure


def utilization(report):
    """Draws the accelerator utilization against ranks.  Rows: workloads and accelerators; columns: caps, if there are any."""
    from matplotlib.ticker import NullLocator
    rows = report["rows"]
    places = list(dict.fromkeys((r["workload"], r["accelerator"]) for r in rows))
    caps = list(dict.fromkeys(r.get("cap") for r in rows))
    lines = len(places) if len(caps) > 1 else (len(places) + 1) // 2
    figure, axes = subplots(lines, len(caps) if len(caps) > 1 else min(len(places), 2), 4.2, 2.6)
    panels = [(place, cap) for place in places for cap in caps]
    for axis in axes.flat[len(panels):]:
        axis.set_axis_off()
    for axis, (place, cap) in zip(axes.flat, panels):
        here = [r for r in rows if (r["workload"], r["accelerator"]) == place and r.get("cap") == cap]
        for n, way in enumerate(dict.fromkeys(r["way"] for r in rows)):
            mine = sorted((r for r in here if r["way"] == way), key=lambda r: (r["ranks"], r.get("shape")))
            at, seen = [r["ranks"] for r in mine], [r["utilization"] for r in mine]
            if "shape" in rows[0]:
                axis.fill_between(at, [u["low"] for u in seen], [u["high"] for u in seen], alpha=0.2, color=f"C{n}")
                seen = [u["median"] for u in seen]
            axis.plot(at, seen, ".-", color=f"C{n}", label=way)
        possible = {r["ranks"]: r["possible"] for r in here if r["possible"] is not None}
        axis.plot(sorted(possible), [possible[ranks] for ranks in sorted(possible)], ":_", color="black", label="bandwidth allows")
        ticks = sorted({r["ranks"] for r in rows})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, ticks, fontsize=7)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(ylim=(0, 1.05), title=", ".join(place) + (f", {cap} MB/s for all hosts" if cap else ""), ylabel="utilization",
                 xlabel="accelerators")
        axis.grid(lw=0.3)
    axes[0, 0].legend(fontsize=7)
    about = f"Simulated, not measured: {report['platform']['about']}" if "platform" in report else \
        f"slow file systems, {report['options']['delay_us'] / 1000:g} ms a request; {report['machine']['cpus']} CPUs emulate all hosts"
    figure.suptitle(f"Accelerator utilization of MLPerf Storage's workloads\n{about}", fontsize=9, wrap=True)
    return figure


def validation(rows):
    """Draws predicted against measured times."""
    figure, ((axis,),) = subplots(1, 1, 5, 4.6)
    for n, strategy in enumerate(dict.fromkeys(r["strategy"] for r in rows)):
        for counts, marker in ((True, "o"), (False, "x")):
            mine = [r for r in rows if r["strategy"] == strategy and r["counts"] == counts]
            axis.plot([r["seconds"]["median"] for r in mine], [r["predicted_s"] for r in mine], marker, ms=4, color=f"C{n}",
                      label=strategy if counts else None)
    both = [r["seconds"]["median"] for r in rows] + [r["predicted_s"] for r in rows]
    ends = [min(both) / 1.2, max(both) * 1.2]
    axis.plot(ends, ends, lw=0.8, color="black")
    for share in (0.8, 1.2):
        axis.plot(ends, [share * e for e in ends], ":", lw=0.8, color="black")
    axis.set(xscale="log", yscale="log", xlabel="measured, seconds", ylabel="predicted, seconds",
             title="x: CPUs above 70 % busy; dotted: 20 %")
    axis.legend(fontsize=7)
    return figure


def box(report):
    """Draws the distribution of the speed-up, and the strength of the influence of each assumption."""
    figure, ((hist, bars),) = subplots(1, 2, 5, 3.6)
    ratios, summary = sorted(r["to_stock"] for r in report["rows"]), report["to_stock"]
    hist.plot(ratios, [100 * (i + 1) / len(ratios) for i in range(len(ratios))], drawstyle="steps-post")
    hist.axvspan(summary["low"], summary["high"], alpha=0.2)
    hist.axvline(summary["median"], ls=":", color="black")
    hist.set(xscale="log", xlabel="full, x stock LMDB", ylabel="% of the points up to it",
             title=f"median {summary['median']:.1f}, 10 to 90 %: {summary['low']:.1f} to {summary['high']:.1f}")
    names = list(report["influences"])[::-1]
    bars.barh(names, [report["influences"][name] for name in names])
    bars.axvline(0, lw=0.8, color="black")
    bars.set(title="rank correlation with the speed-up", xlim=(-1, 1))
    set_title(figure, f"Simulated, not measured: {report['options']['ranks']} ranks, {counted(len(ratios), 'point')} around "
              f"{report['platform']['about']}", fontsize=8)
    return figure
