"""Configuration by environment variables, what is said on standard error, and statistics."""
import json
import os
import socket
import unittest

import shimtest


class Configuration(shimtest.Case):
    def each(self, extra, stats=False, name="counted"):
        stock = shimtest.run("stock", [name, self.fresh()])
        results = []
        for mode in shimtest.modes():
            with self.subTest(mode=mode, extra=extra):
                got = shimtest.run(mode, [name, self.fresh()], extra, stats=stats)
                self.assertEqual(got.returncode, stock.returncode, got.err)
                if got.out != stock.out:
                    self.fail(shimtest.difference(stock.out, got.out))
            results.append(got)
        return results

    def test_silent_by_default(self):
        for name in ("program", "passthrough", "readers"):
            for got in self.each({"LMDBIO_STRICT": "1"}, name=name):
                self.assertEqual(shimtest.GARBAGE.sub("", got.err), "")

    def test_silent_when_values_are_empty(self):
        names = ["LMDBIO_LOG", "LMDBIO_STATS", "LMDBIO_DISABLE", "LMDBIO_STOCK_LIB"]
        for got in self.each({n: "" for n in names}):
            self.assertEqual(got.err, "")

    def test_an_invalid_value_is_one_clear_line(self):
        for name, value in (("LMDBIO_LOG", "loud"), ("LMDBIO_DISABLE", "maybe"), ("LMDBIO_STATS", "x%q"),
                            ("LMDBIO_LOG", "0"), ("LMDBIO_DISABLE", "-1"), ("LMDBIO_STRICT", "2"), ("LMDBIO_LOCK_SECONDS", "-1")):
            for got in self.each({name: value}):
                lines = got.err.splitlines()
                self.assertEqual(len(lines), 1, got.err)
                self.assertTrue(lines[0].startswith("lmdbio:"), lines[0])
                self.assertIn(name, lines[0])
                self.assertIn(value, lines[0])

    def test_an_unknown_name_is_one_clear_line(self):
        for name, text in (("LMDBIO_MEMROY", "LMDBIO_MEMROY is not a setting of LMDBIO; did you mean LMDBIO_MEMORY?"),
                           ("LMDBIO_BUFFER_BYTES", "LMDBIO_BUFFER_BYTES is not a setting of LMDBIO; lmdbio config lists them")):
            for got in self.each({name: "8M"}):
                self.assertEqual(got.err, f"lmdbio: {text}\n")
            for got in self.each({name: "8M", "LMDBIO_LOG": "error"}):
                self.assertEqual(got.err, "")
            for got in self.each({name: "8M", "LMDBIO_DISABLE": "1"}):
                self.assertEqual(got.err, "")

    def test_an_invalid_value_does_not_hide_the_others(self):
        path = os.path.join(self.dir, "stats")
        for got in self.each({"LMDBIO_LOG": "loud", "LMDBIO_STATS": path}):
            self.assertEqual(len(got.err.splitlines()), 1, got.err)
        self.assertTrue(os.path.exists(path))

    def test_log_levels(self):
        counts = {}
        for level in ("error", "warn", "info", "debug"):
            for got in self.each({"LMDBIO_LOG": level}, name="program"):
                lines = got.err.splitlines()
                for line in lines:
                    self.assertTrue(line.startswith("lmdbio:"), line)
                counts[level] = len(lines)
        self.assertEqual(counts["error"], 0)
        self.assertEqual(counts["warn"], 1, "the file that is no database")
        self.assertLessEqual(counts["info"], counts["debug"])
        self.assertLess(counts["debug"], 1000, "a line per call?")

    def test_statistics_to_standard_error(self):
        for got in self.each({"LMDBIO_STATS": "1"}):
            lines = shimtest.parse_stats(got.err)
            self.assertTrue(lines)
            self.assertEqual(len(lines), len(got.err.splitlines()), "something else as well: " + got.err[:500])
            self.check_statistics(lines)

    def check_statistics(self, lines):
        for line in lines:
            self.assertEqual(line["lmdbio"], shimtest.CONFIG["version"])
            self.assertIsInstance(line["pid"], int)
        environments = [e for line in lines for e in line["environments"]]
        ours = [e for e in environments if e["ours"]]
        passed = [e for e in environments if not e["ours"]]
        self.assertTrue(ours)
        self.assertTrue(passed, "the writable environment is missing")
        for e in passed:
            self.assertTrue(e["reason"])
        for e in ours:
            self.assertTrue(e["path"])
            self.assertGreater(shimtest.count(e["calls"]), 0)
            self.assertGreater(e["records"], 0)
            self.assertGreater(e["bytes"], 0)

    def test_statistics_to_a_file(self):
        template = os.path.join(self.dir, "stats-%p-%h-%%")
        results = self.each({"LMDBIO_STATS": template})
        for got in results:
            self.assertEqual(got.err, "")
        files = [f for f in os.listdir(self.dir) if f.startswith("stats-")]
        self.assertEqual(len(files), len(results), files)
        for name in files:
            with open(os.path.join(self.dir, name), encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
            self.assertEqual({f"stats-{line['pid']}-{socket.gethostname()}-%" for line in lines}, {name})
            self.check_statistics(lines)

    def test_statistics_are_appended(self):
        path = os.path.join(self.dir, "stats")
        runs = len(self.each({"LMDBIO_STATS": path}))
        lines = shimtest.read_stats(path)
        self.assertEqual(len({line["pid"] for line in lines}), runs)

    def test_statistics_that_cannot_be_written(self):
        for got in self.each({"LMDBIO_STATS": "/nonexistent/stats"}):
            self.assertLessEqual(len(got.err.splitlines()), 1, got.err)
        for got in self.each({"LMDBIO_STATS": "/dev/full"}):
            self.assertLessEqual(len(got.err.splitlines()), 1, got.err)

    def test_disable(self):
        for got in self.each({"LMDBIO_DISABLE": "1"}, stats=True):
            self.assertEqual(got.err, "")
            self.assertEqual(got.calls_ours(), 0)
        for got in self.each({"LMDBIO_DISABLE": "0"}, stats=True):
            self.assertGreater(got.calls_ours(), 1000)

    # What is counted is what the program did, not more.
    def test_counts(self):
        for mode in shimtest.modes():
            with self.subTest(mode=mode):
                got = shimtest.run(mode, ["counted", self.fresh()])
                self.assertEqual(got.returncode, 0, got.out + got.err)
                ours = [e for e in got.environments() if e["ours"]]
                self.assertEqual(len(ours), 1)
                self.assertEqual(ours[0]["calls"].get("get"), 11)
                self.assertEqual(shimtest.count(ours[0]["calls"]["cursor_get"]), 1001)
                self.assertGreaterEqual(ours[0]["records"], 1000)
                self.assertGreaterEqual(ours[0]["bytes"], 10000)


if __name__ == "__main__":
    shimtest.main()
