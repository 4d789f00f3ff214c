"""The tables of bench/factors."""
from measure import text

from .analysis import RESPONSES
from .levels import described

MOST = 5  # upper limit on printed interactions and configurations


def table(names, rows):
    print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def percent(part):
    return f"{100 * part:.1f} %"


def cells(what):
    return [f"{percent(what[r]['share'])} ({100 * what[r]['by_chance']:.1f})" for r in RESPONSES]


def print_shares(found):
    print("""
What each factor explains of the variation of log(time) and of log(speed-up) between configurations: type II sums of squares
of its main effect, as a part of all; in brackets what a factor without any effect would explain on average.""")
    rows = [[s["title"], *cells(s)] for s in found["shares"]]
    left = found["unexplained"]
    parts = [("all main effects together", "main_effects")]
    if left["stock"]["noise"] is None:
        parts += [("not explained: interactions of factors, and noise", "interactions_and_noise")]
    else:
        parts += [("not explained: interactions of factors", "interactions"), ("not explained: noise (from repeats)", "noise")]
    table(["factor", *RESPONSES.values()], rows + [[title, *(percent(left[r][what]) for r in RESPONSES)] for title, what in parts])
    if left["stock"]["noise"] is not None:
        factors = ", ".join(f"{title} x {left[r]['noise_factor']:.2f}" for r, title in RESPONSES.items())
        print(f"\nNoise of a single run (one standard deviation, from repeats): {factors}.")


def print_levels(found):
    print("""
Levels: time as a factor of the mean of the factor's levels (1.7: 1.7 times slower); speed-up: mean of stock's time / ours at
the level.  All other factors are averaged over.  Brackets: 95 % intervals (wild bootstrap of the residuals, each divided by
1 - its leverage; interactions count as errors).""")
    table(["factor", "level", "configurations", "stock: time x", "ours: time x", "speed-up"],
          [[r["title"], r["label"], r["configurations"], text(r["stock"], 2), text(r["ours"], 2), text(r["speed_to_stock"], 2)]
           for r in found["rows"]])
    for title, is_so in (("On average, LMDBIO is faster (the whole interval is above 1)", lambda s: s["low"] > 1),
                         ("On average, LMDBIO is slower (the whole interval is below 1)", lambda s: s["high"] < 1),
                         ("Not decided (1 is in the interval)", lambda s: s["low"] <= 1 <= s["high"])):
        if some := [f"{r['title']}: {r['label']}" for r in found["rows"] if is_so(r["speed_to_stock"])]:
            print(f"\n{title}: {'; '.join(some) if len(some) < len(found['rows']) else 'all levels'}.")


def print_interactions(found):
    """Prints interactions whose share is more than twice the share by chance."""
    some = [i for i in found["interactions"] if any(i[r]["share"] > 2 * i[r]["by_chance"] for r in RESPONSES)][:MOST]
    if some:
        print("""
The largest interactions of two factors, each beside all main effects; the shares of different interactions overlap.""")
        table(["factors", *RESPONSES.values()], [[" x ".join(i["titles"]), *cells(i)] for i in some])


def print_slower(found):
    every = found["configurations"]
    slower = [c for c in every if c["speed_to_stock"] < 1]
    print(f"\nSingle configurations: LMDBIO is slower than stock in {len(slower)} of {len(every)}" + (", most in" if slower else "."))
    for c in slower[:MOST]:
        print(f"  speed-up {c['speed_to_stock']:.2f}: {described(c['levels'])}")
