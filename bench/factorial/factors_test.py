#!/usr/bin/python3
"""Tests the plan, the fit, the journal and the options of bench/factors, and the plan of its study."""
import collections
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
try:
    import numpy as np
except ImportError as e:
    print(f"{e} (python3-numpy)")
    sys.exit(77)
from argonne import study  # noqa: E402
from factorial import levels  # noqa: E402
from factorial.analysis import analyse, is_enough  # noqa: E402
from factorial.fit import Fit, noise_variance  # noqa: E402
from factorial.plan import Matrix, again, plan  # noqa: E402
from journal import Journal  # noqa: E402

FACTORS = levels.FACTORS
QUICK = 18  # configurations of each storage


@functools.cache
def quick_plan(seed):
    return plan(FACTORS, QUICK, seed)


def refused(what, *arguments):
    """Returns the message with which the call ends the program."""
    try:
        what(*arguments)
    except SystemExit as e:
        return str(e.code)
    return None


class Plan(unittest.TestCase):
    def setUp(self):
        self.configurations, self.efficiency = quick_plan(1)

    def test_levels_are_equally_frequent(self):
        for f in FACTORS:
            counts = collections.Counter(c[f.name] for c in self.configurations if f.name in c)
            self.assertEqual(set(counts), set(f.levels), f.name)
            self.assertLessEqual(max(counts.values()) - min(counts.values()), 1, counts)

    def test_pairs_of_levels_are_nearly_equally_frequent(self):
        for f, g in itertools.combinations(FACTORS, 2):
            counts = collections.Counter((c[f.name], c[g.name]) for c in self.configurations
                                         if f.name in c and g.name in c and not (g.only_slow and f.name == "storage"))
            if counts:
                self.assertLessEqual(max(counts.values()) - min(counts.values()), 3, (f.name, g.name, counts))

    def test_main_effects_can_be_estimated(self):
        self.assertGreater(self.efficiency, 0.97)
        self.assertTrue(Matrix(FACTORS).estimable(Matrix(FACTORS).rows(self.configurations)))

    def test_slow_factors_are_for_slow_storage(self):
        for c in self.configurations:
            self.assertEqual("read-ahead" in c, c["storage"].startswith("slow"))
            self.assertEqual("request" in c, c["storage"].startswith("slow"))

    def test_the_seed_decides(self):
        self.assertEqual(plan(FACTORS, QUICK, 1)[0], self.configurations)
        self.assertNotEqual(plan(FACTORS, QUICK, 2)[0], self.configurations)

    def test_repeats_are_of_all_storages(self):
        count = len(FACTORS[0].levels) * 6
        chosen = again(self.configurations, count, 1)
        self.assertEqual(len(set(chosen)), count)
        self.assertEqual(set(collections.Counter(self.configurations[i]["storage"] for i in chosen).values()), {6})

    def test_one_storage_is_enough(self):
        for storage in ("local", "slow-1ms"):
            factors = [levels.chosen("storage", storage), *FACTORS[1:]]
            configurations, efficiency = plan(factors, 27, 1)
            self.assertGreater(efficiency, 0.95)
            matrix = Matrix(factors)
            self.assertTrue(matrix.estimable(matrix.rows(configurations)))

    def test_too_few_configurations_are_noticed(self):
        configurations, efficiency = plan(FACTORS, 1, 1)
        self.assertLess(efficiency, 0.01)
        self.assertFalse(Matrix(FACTORS).estimable(Matrix(FACTORS).rows(configurations)))

    def test_combinations(self):
        self.assertEqual(levels.combinations(FACTORS), 4 * 2 * 81 * 6 + 3 * 2 * 81)


class MainEffects(unittest.TestCase):
    def setUp(self):
        self.configurations, _ = quick_plan(3)
        self.matrix = Matrix(FACTORS)
        self.x = self.matrix.rows(self.configurations)
        self.random = np.random.default_rng(4)

    def storage(self):
        return FACTORS[0]

    def test_known_effects_are_found(self):
        truth = self.random.normal(size=self.matrix.columns)
        fit = Fit(self.x, self.x @ truth)
        np.testing.assert_allclose(fit.beta, truth, atol=1e-9)
        for f in self.matrix.factors:  # the effects of all levels of a factor add up to zero
            effects = [fit.interval(self.matrix.code(f, level))["median"] for level in f.levels]
            self.assertAlmostEqual(sum(effects), 0)

    def test_means_of_levels(self):
        """Local storage adds 2 to the response.  A read-ahead of 0K adds 3; read-ahead is a factor of slow storage only."""
        def value(c):
            return 1 + 2 * (c["storage"] == "local") + 5 * c["storage"].startswith("slow") + 3 * (c.get("read-ahead") == "0K")

        fit = Fit(self.x, np.array([value(c) for c in self.configurations], dtype=float))
        self.assertAlmostEqual(fit.interval(self.matrix.mean(self.storage(), "local"))["median"], 3)
        read_ahead = FACTORS[1]
        self.assertAlmostEqual(fit.interval(self.matrix.mean(read_ahead, "0K"))["median"], 9)
        self.assertAlmostEqual(fit.interval(self.matrix.mean(read_ahead, "1M"))["median"], 6)
        self.assertAlmostEqual(fit.interval(self.matrix.code(read_ahead, "0K"))["median"], 2)

    def test_shares(self):
        """Three cases: a factor that explains everything, one that explains nothing, and a response that is only noise."""
        order = np.array([FACTORS[7].levels.index(c["order"]) for c in self.configurations], dtype=float)
        fit = Fit(self.x, order + self.random.normal(size=len(order)) * 1e-3)
        self.assertGreater(fit.share(self.matrix.slices["order"])["share"], 0.98)
        self.assertLess(fit.share(self.matrix.slices["procs"])["share"], 1e-4)
        chance, expected = [], []
        for _ in range(200):
            fit = Fit(self.x, self.random.normal(size=len(order)), draws=1)
            share = fit.share(self.matrix.slices["storage"])
            chance.append(share["share"])
            expected.append(share["by_chance"])
        self.assertAlmostEqual(np.mean(chance), np.mean(expected), delta=0.02)

    def test_noise(self):
        """Without an interaction, the unexplained part is all noise.  With one as large as the noise, half of it is."""
        n = len(self.configurations)
        repeats = np.full(n, 2)
        parts = {0.0: [], 1.0: []}
        for deviation, found in parts.items():
            for _ in range(100):
                fixed = deviation / np.sqrt(2) * self.random.normal(size=n)
                groups = [[a + e for e in self.random.normal(size=2)] for a in fixed]
                fit = Fit(self.x, np.mean(groups, axis=1), draws=1)
                found.append(fit.noise(noise_variance(groups), repeats) / (fit.unexplained / fit.total))
        self.assertGreater(np.mean(parts[0.0]), 0.9)
        self.assertAlmostEqual(np.mean(parts[1.0]), 0.5, delta=0.07)

    def test_intervals_hold_the_truth(self):
        """Intervals contain the true value in at least 95 of 100 cases, also if some configurations have larger errors."""
        contrast = self.matrix.code(self.storage(), "slow-5ms")
        scale = np.array([2.0 if c["storage"].startswith("slow") and c["nordahead"] == "yes" else 0.4 for c in self.configurations])
        held = 0
        for k in range(200):
            i = Fit(self.x, self.random.normal(size=len(scale)) * scale, k, 1000).interval(contrast)
            held += i["low"] <= 0 <= i["high"]
        self.assertGreaterEqual(held, 180)


class Analysis(unittest.TestCase):
    def test_what_runs_say(self):
        """On storage of 5 ms, stock LMDB takes twice as long; with MDB_NORDAHEAD, three times.  LMDBIO always takes the same time."""
        configurations, _ = quick_plan(1)
        random = np.random.default_rng(5)
        pairs = []
        for c in configurations:
            stock = np.log(2) * (c["storage"] == "slow-5ms") + np.log(3) * (c["nordahead"] == "yes")
            pairs.append((c, [(stock + 0.02 * random.normal(), 0.02 * random.normal()) for _ in range(2)]))
        found = analyse(Matrix(FACTORS), pairs, 1)
        rows = {(r["factor"], r["level"]): r for r in found["rows"]}
        self.assertEqual(len(rows), sum(len(f.levels) for f in FACTORS))
        self.assertAlmostEqual(rows["nordahead", "yes"]["stock"]["median"], 3**0.5, delta=0.02)
        self.assertAlmostEqual(rows["storage", "slow-5ms"]["stock"]["median"], 2**(6 / 7), delta=0.05)
        self.assertAlmostEqual(rows["storage", "slow-5ms"]["speed_to_stock"]["median"], 2 * 3**0.5, delta=0.1)
        self.assertAlmostEqual(rows["storage", "slow-5ms"]["ours"]["median"], 1, delta=0.05)
        self.assertEqual([s["factor"] for s in found["shares"]][:2], ["nordahead", "storage"])
        for response in ("stock", "speed_to_stock"):
            left = found["unexplained"][response]
            self.assertGreater(left["main_effects"], 0.99)
            self.assertAlmostEqual(left["interactions"] + left["noise"], 1 - left["main_effects"])
        self.assertAlmostEqual(found["unexplained"]["stock"]["noise_factor"], np.exp(0.02), delta=0.005)

    def test_interactions(self):
        """On storage of 5 ms, stock LMDB takes four times as long with MDB_NORDAHEAD.  Elsewhere the flag makes no difference."""
        configurations, _ = quick_plan(1)
        random = np.random.default_rng(5)
        slow = [c["storage"] == "slow-5ms" for c in configurations]
        pairs = [(c, [(np.log(4) * (s and c["nordahead"] == "yes") + 0.02 * random.normal(), np.log(2) * (not s))])
                 for c, s in zip(configurations, slow)]
        found = analyse(Matrix(FACTORS), pairs, 1)
        largest = found["interactions"][0]
        self.assertEqual(largest["factors"], ["storage", "nordahead"])
        left = found["unexplained"]["stock"]["interactions_and_noise"]
        self.assertGreater(largest["stock"]["share"], 0.98 * left)
        self.assertEqual(sum(c["speed_to_stock"] < 0.75 for c in found["configurations"]), sum(not s for s in slow))
        self.assertAlmostEqual(found["configurations"][0]["speed_to_stock"], 0.5, delta=0.05)

    def test_without_repeats_the_noise_is_not_known(self):
        configurations, _ = quick_plan(1)
        random = np.random.default_rng(5)
        found = analyse(Matrix(FACTORS), [(c, [tuple(random.normal(size=2))]) for c in configurations], 1)
        self.assertIsNone(found["unexplained"]["ours"]["noise"])

    def test_too_few(self):
        configurations, _ = quick_plan(1)
        self.assertTrue(is_enough(Matrix(FACTORS), configurations))
        self.assertFalse(is_enough(Matrix(FACTORS), configurations[:10]))
        self.assertFalse(is_enough(Matrix(FACTORS), [c for c in configurations if c["storage"] != "local"]))


class Journals(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = os.path.join(self.directory.name, "runs.jsonl")

    def open(self, options=None, fresh=False):
        journal = Journal(self.path, options or {"bytes": 1, "levels": ["a"]}, fresh)
        self.addCleanup(journal.file.close)
        return journal

    def test_goes_on_after_half_a_line(self):
        journal = self.open()
        journal.add({"run": 1})
        journal.add({"run": 2})
        journal.file.close()
        with open(self.path, "ab") as file:
            file.write(b'{"run": 3, "sec')
        journal = self.open()
        self.assertEqual(journal.runs, [{"run": 1}, {"run": 2}])
        journal.add({"run": 3})
        journal.file.close()
        with open(self.path, encoding="utf-8") as file:
            self.assertEqual([json.loads(line) for line in file][1:], [{"run": 1}, {"run": 2}, {"run": 3}])

    def test_killed_before_the_first_line_ended(self):
        with open(self.path, "wb") as file:
            file.write(b'{"opt')
        self.assertEqual(self.open().runs, [])

    def test_other_options_are_refused(self):
        self.open().file.close()
        self.assertIn("bytes: 1, now 2", refused(self.open, {"bytes": 2, "levels": ["a"]}))
        self.assertIn("--fresh", refused(self.open, {"bytes": 1, "levels": ["a"], "more": 1}))
        self.assertEqual(self.open({"bytes": 2, "levels": ["a"]}, fresh=True).runs, [])

    def test_fresh_forgets(self):
        journal = self.open()
        journal.add({"run": 1})
        journal.file.close()
        self.assertEqual(self.open(fresh=True).runs, [])

    def test_one_at_a_time(self):
        self.open()
        self.assertIn("another process", refused(self.open))

    def test_damage_is_noticed(self):
        with open(self.path, "wb") as file:
            file.write(b'{"options": {}}\nnothing\n')
        self.assertIn("damaged", refused(self.open))


class Options(unittest.TestCase):
    def test_bad_levels(self):
        for name, text in (("storage", "nfs"), ("storage", "gluster-0"), ("storage", "slow-1ms-128K"), ("read-ahead", "3K"),
                           ("request", "2M"), ("nordahead", "maybe"), ("values", "0"), ("batch", "0K"), ("procs", "0"),
                           ("order", "all"), ("procs", "1,1"), ("procs", "")):
            with self.subTest(name=name, text=text):
                self.assertIn(f"--{name}:", refused(levels.chosen, name, text) or "accepted")

    def test_usual_levels(self):
        for f in FACTORS:
            self.assertEqual(levels.chosen(f.name, ",".join(f.levels)), f)
            self.assertTrue(all(levels.shown(f.name, level) for level in f.levels))

    def test_command_refuses(self):
        command = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "factors")
        for words in (["--bytes", "64K"], ["--configurations", "0"], ["--compute", "0"], ["--env", "A"], ["--storage", "tape"],
                      ["--readers", "0", "--study", "argonne"], ["--orders", "none", "--study=argonne"],
                      ["--writer", "maybe", "--study", "argonne"], ["--bytes", "64K", "--study", "argonne"]):
            with self.subTest(words=words):
                done = subprocess.run([sys.executable, "-B", command, *words], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"error: {words[0]}", done.stderr)


class Study(unittest.TestCase):
    def test_one_factor_at_a_time(self):
        usual = {f: levels.split(",") for f, (levels, _) in study.FACTORS.items()}
        base, everything = study.planned(study.ORDERS, usual, False)
        one_reader = 3 * 3 * 5 * 2  # with a file of its own: the same as one reader of a shared file
        self.assertEqual(len(set(everything)), 3 * 5 * 2 * 3 * 5 * 2 - one_reader)
        chosen = study.planned(study.ORDERS, usual, True)[1]
        self.assertEqual(len(set(chosen)), 3 * (1 + 4 + 1 + 2 + 4 + 1))
        for c in chosen:
            self.assertLessEqual(sum(a != b for a, b in zip(c[1:], base.values())), 1)
        self.assertEqual(study.planned(["shuffled"], {**usual, "readers": ["3"]}, True)[0]["readers"], "3")

    def test_percentile(self):
        self.assertEqual(study.p99(list(range(100, 0, -1))), 99)
        self.assertEqual(study.p99([3, 5]), 5)


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # a refused journal stays open until the program ends
