"""Plans which combinations of levels bench/factors measures, and makes the matrix of their main effects.

A configuration is a dict of factors and levels.  Configurations with other storage lack the factors of slow file systems.
"""
import collections
import dataclasses
import itertools
import math

import numpy as np

SWAPS = 12000  # number of swaps that are tried, for a balanced plan


@dataclasses.dataclass(frozen=True)
class Factor:
    name: str  # as in options
    title: str
    levels: tuple  # strings
    base: str
    only_slow: bool = False

    def applies(self, storage):
        return not self.only_slow or storage.startswith("slow")


def applicable(factors, storage):
    return [f for f in factors if f.applies(storage)]


class Matrix:
    """The main effects in sum-to-zero coding: a column of ones, then the columns of each factor that varies.  A factor of slow file
    systems is 0 for other storage.  So its effects are those among slow file systems, and its mean is a part of their storage effect."""

    def __init__(self, factors):
        """The first factor is the storage."""
        self.storages = factors[0].levels
        self.factors = [f for f in factors if len(f.levels) > 1 and any(f.applies(s) for s in self.storages)]
        self.slices, at = {}, 1
        for f in self.factors:
            self.slices[f.name] = slice(at, at + len(f.levels) - 1)
            at += len(f.levels) - 1
        self.columns = at

    def code(self, factor, level):
        """Returns the row of a level, with zeros in all other columns."""
        row, part = np.zeros(self.columns), self.slices[factor.name]
        i = factor.levels.index(level)
        row[part] = -1 if i == len(factor.levels) - 1 else np.eye(len(factor.levels) - 1)[i]
        return row

    def row(self, configuration):
        row = np.zeros(self.columns)
        row[0] = 1
        for f in self.factors:
            if f.name in configuration:
                row += self.code(f, configuration[f.name])
        return row

    def rows(self, configurations):
        return np.array([self.row(c) for c in configurations])

    def estimable(self, x):
        return np.linalg.matrix_rank(x) == self.columns

    def mean(self, factor, level):
        """Returns the contrast for the mean response at a level."""
        row = self.code(factor, level)
        row[0] = 1
        storage = self.factors[0]
        if factor.only_slow and storage.name == "storage":
            slow = [s for s in self.storages if factor.applies(s)]
            row += sum(self.code(storage, s) for s in slow) / len(slow)
        return row

    def orthogonal(self, per_storage):
        """Returns the log determinant of the information matrix for a plan in which all pairs of levels are equally frequent."""
        total = math.log(per_storage * len(self.storages))
        for f in self.factors:
            k, n = len(f.levels), per_storage * sum(f.applies(s) for s in self.storages)
            # A factor with k levels has n / k times the matrix (I + J) of k - 1 rows, whose determinant is k.
            total += (k - 1) * math.log(n / k) + math.log(k)
        return total


def log_determinant(x):
    sign, value = np.linalg.slogdet(x.T @ x)
    return value if sign > 0 else -math.inf


def spread_levels(factors, per_storage, random):
    """Returns configurations with random combinations of levels.  The levels of a factor are as equally frequent as possible."""
    configurations = [{factors[0].name: s} for s in factors[0].levels for _ in range(per_storage)]
    for f in factors[1:]:
        where = [c for c in configurations if f.applies(c["storage"])]
        levels = [f.levels[i % len(f.levels)] for i in range(len(where))]
        shift = random.integers(len(f.levels))  # which level gets the remainder
        for c, at in zip(where, random.permutation(len(where))):
            c[f.name] = f.levels[(f.levels.index(levels[at]) + shift) % len(f.levels)]
    return configurations


class Balance:
    """Counts each pair and each triple of levels in a plan."""

    def __init__(self, factors, configurations):
        self.factors = factors
        number = [{level: i for i, level in enumerate(f.levels)} for f in factors]
        self.rows = [[n.get(c.get(f.name)) for n, f in zip(number, factors)] for c in configurations]  # None: lacks the factor
        every = range(len(factors))
        groups = [g for size in (2, 3) for g in itertools.combinations(every, size)]
        self.groups = [[g for g in groups if k in g] for k in every]  # with factor k
        self.counts = collections.Counter((g, cell) for row in self.rows for g in groups if (cell := self.cell(row, g)) is not None)

    @staticmethod
    def cell(row, group, k=None, level=None):
        """Returns the row's levels of a group of factors, with `level` for factor k if given; None if the row lacks one of the factors."""
        cell = tuple(level if j == k else row[j] for j in group)
        return None if None in cell else cell

    def swap(self, k, a, b):
        """Swaps the levels of factor k of two rows, unless the sum of the squares of all counts would increase.  This sum is smallest if
        all pairs and triples are equally frequent."""
        a, b = self.rows[a], self.rows[b]
        if a[k] == b[k]:
            return
        change, moves = 0, []
        for g in self.groups[k]:
            for row, other in ((a, b), (b, a)):
                old, new = self.cell(row, g), self.cell(row, g, k, other[k])
                if old is not None:
                    moves.append(((g, old), -1))
                    moves.append(((g, new), 1))
        for key, by in moves:
            change += 1 + 2 * by * self.counts[key]
            self.counts[key] += by
        if change > 0:
            for key, by in moves:
                self.counts[key] -= by
        else:
            a[k], b[k] = b[k], a[k]

    def configurations(self):
        return [{f.name: f.levels[level] for f, level in zip(self.factors, row) if level is not None} for row in self.rows]


def plan(factors, per_storage, seed):
    """Returns `per_storage` configurations for each storage, in an order that `seed` chooses, and the efficiency of the plan (1: all
    main effects are orthogonal; 0: they cannot be estimated).

    The levels of a factor are as equally frequent as possible.  At first they are combined at random.  Then configurations swap levels
    to make pairs and triples of levels more equally frequent.  With equally frequent pairs, main effects are orthogonal to each other.
    With equally frequent triples, they are orthogonal to interactions of two factors, which are in the data but not in the model."""
    matrix, random = Matrix(factors), np.random.default_rng(seed)
    balance = Balance(factors, spread_levels(factors, per_storage, random))
    places = {k: [i for i, row in enumerate(balance.rows) if row[k] is not None] for k, f in enumerate(factors)
              if k > 0 and len(f.levels) > 1}
    free = [k for k, where in places.items() if where]
    for _ in range(SWAPS if free else 0):
        k = free[random.integers(len(free))]
        balance.swap(k, *(places[k][i] for i in random.integers(len(places[k]), size=2)))
    configurations = balance.configurations()
    value = log_determinant(matrix.rows(configurations))
    efficiency = math.exp((value - matrix.orthogonal(per_storage)) / matrix.columns) if math.isfinite(value) else 0.0
    return [configurations[i] for i in random.permutation(len(configurations))], efficiency


def again(configurations, count, seed):
    """Returns the indices of the configurations that are run again to measure the noise, from each storage in turn."""
    random = np.random.default_rng(seed + 1)
    groups = {}
    for i in random.permutation(len(configurations)):
        groups.setdefault(configurations[i]["storage"], []).append(int(i))
    chosen = [group[k] for k in range(len(configurations)) for group in groups.values() if k < len(group)]
    return sorted(chosen[:count])
