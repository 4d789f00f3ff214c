"""Analyses the runs of bench/factors: how much each factor matters."""
import itertools
import math

import numpy as np

from . import levels
from .fit import Fit, noise_variance

RESPONSES = {"stock": "time, stock", "ours": "time, ours", "speed_to_stock": "speed-up"}
LEAST_LEFT = 3  # number of configurations minus number of columns, at least


def is_enough(matrix, configurations):
    return len(configurations) >= matrix.columns + LEAST_LEFT and matrix.estimable(matrix.rows(configurations))


def as_factor(interval):
    return {k: math.exp(v) for k, v in interval.items()}


def analyse(matrix, pairs, seed):
    """Analyses `pairs`, a list with each configuration and its repeats; a repeat is (stock, ours), the logarithms of both times.
    Returns the effects of levels (rows), the shares of the variation that factors explain and do not explain, the interactions of
    two factors, means, and the speed-ups of all configurations in ascending order."""
    x = matrix.rows([configuration for configuration, _ in pairs])
    groups = {"stock": [[s for s, _ in repeats] for _, repeats in pairs], "ours": [[o for _, o in repeats] for _, repeats in pairs],
              "speed_to_stock": [[s - o for s, o in repeats] for _, repeats in pairs]}
    fits = {r: Fit(x, [sum(g) / len(g) for g in groups[r]], seed) for r in RESPONSES}
    shares = [{"factor": f.name, "title": f.title, **{r: fit.share(matrix.slices[f.name]) for r, fit in fits.items()}}
              for f in matrix.factors]
    shares.sort(key=lambda share: -share["stock"]["share"])
    by_name = {f.name: f for f in matrix.factors}
    rows = [effects(matrix, fits, by_name[share["factor"]], level, pairs) for share in shares
            for level in by_name[share["factor"]].levels]
    average = [1] + [0] * (matrix.columns - 1)
    return {"rows": rows, "shares": shares, "means": {r: as_factor(fit.interval(average)) for r, fit in fits.items()},
            "unexplained": {r: unexplained(fit, groups[r]) for r, fit in fits.items()},
            "interactions": sorted((interaction(matrix, fits, *two) for two in itertools.combinations(matrix.factors, 2)),
                                   key=lambda found: -max(found[r]["share"] - found[r]["by_chance"] for r in RESPONSES)),
            "configurations": sorted(({"levels": configuration, "speed_to_stock": math.exp(sum(g) / len(g))}
                                      for (configuration, _), g in zip(pairs, groups["speed_to_stock"])),
                                     key=lambda c: c["speed_to_stock"])}


def effects(matrix, fits, factor, level, pairs):
    """Returns the time at a level relative to the mean of the factor's levels, and the mean speed-up at the level."""
    effect, mean = matrix.code(factor, level), matrix.mean(factor, level)
    return {"factor": factor.name, "title": factor.title, "level": level, "label": levels.shown(factor.name, level),
            "configurations": sum(configuration.get(factor.name) == level for configuration, _ in pairs),
            **{r: as_factor(fits[r].interval(effect)) for r in ("stock", "ours")},
            "speed_to_stock": as_factor(fits["speed_to_stock"].interval(mean))}


def unexplained(fit, groups):
    """Returns the parts of the variation that the factors do not explain.  Without repeats, the noise is not known."""
    rest, variance = fit.unexplained / fit.total, noise_variance(groups)
    noise = None if variance is None else fit.noise(variance, [len(g) for g in groups])
    return {"main_effects": 1 - rest, "interactions_and_noise": rest, "noise": noise,
            "interactions": None if noise is None else rest - noise,
            "noise_factor": None if variance is None else math.exp(math.sqrt(variance))}


def interaction(matrix, fits, one, other):
    """Returns the share that the interaction of two factors explains beside all main effects, and the share by chance."""
    a, b = matrix.slices[one.name], matrix.slices[other.name]
    found = {"factors": [one.name, other.name], "titles": [one.title, other.title]}
    for r, fit in fits.items():
        products = np.einsum("ij,ik->ijk", fit.x[:, a], fit.x[:, b]).reshape(len(fit.x), -1)
        full = np.hstack([fit.x, products])
        columns = np.linalg.matrix_rank(full) - matrix.columns
        left = fit.left - columns
        rest = fit.y - full @ (np.linalg.pinv(full) @ fit.y)
        unexplained_then = float((rest ** 2).sum())
        found[r] = {"share": (fit.unexplained - unexplained_then) / fit.total,
                    "by_chance": columns * unexplained_then / left / fit.total if left > 0 else 1.0}
    return found
