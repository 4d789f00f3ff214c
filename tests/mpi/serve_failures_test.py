#!/usr/bin/python3
"""Servers that fail at random moments while unmodified programs (py-lmdb) read on emulated hosts.  The programs get the right bytes,
read the file themselves at most once, and nothing is left.

    serve_failures_test.py MPIRUN BIN LIBRARY [--moments N] [--seed S] [unittest arguments]

BIN has lmdbio and lmdbio_slowfs.  Prints a table with a row for each failure and moment, which counts from the first record that
a program has read.  Exit status 77: FUSE, namespaces, mpirun or
py-lmdb are missing.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from served_hosts import HOSTS_PROGRAM, drop_cache, environment, main, mounting, write_database  # noqa: E402

MPIRUN, BIN, LIBRARY = sys.argv[1:4]
RECORDS, VALUE, HOSTS, BANDWIDTH = 600, 60000, 3, 30_000_000  # bytes per second, for all hosts together
VICTIM = 1  # the host whose server fails

# Walks over all records and prints JSON: their sum, the seconds of the walk and of its slowest call.
READER = r"""
import json, os, sys, time, zlib, lmdb
path, found, slowest = sys.argv[1], 0, 0
with lmdb.open(path, readonly=True, lock=False, subdir=False) as env, env.begin() as txn:
    begun = last = time.monotonic()
    for key, value in txn.cursor():
        if slowest == 0: open(os.path.join(os.environ["TMPDIR"], "reading"), "w").close()
        slowest = max(slowest, time.monotonic() - last)
        found = zlib.crc32(value, found)
        last = time.monotonic()
    sys.stdout.write(json.dumps({"sum": found, "seconds": last - begun, "slowest": slowest}) + "\n")
"""

# Runs on the head.  IN HOST COMMAND is what a remote shell would do.
HEAD = r"""
in_host() { host=$1; shift; /usr/bin/python3 -B "$HOSTS_PROGRAM" "node$host" "$@"; }
fail() {
  until [ -e "$TMPDIR/reading" ]; do sleep 0.01; done
  sleep $MOMENT
  $FAILURE
}
victim_pid() { in_host $VICTIM "pgrep -f '[l]mdbio-serve'"; }
start_servers() {
  MPIRUN "$BIN/lmdbio" serve --memory 256MiB </dev/null >"$TMPDIR/servers" 2>&1 &
  servers=$!
}
wait_for_servers() {
  for h in $(seq 0 $((HOSTS - 1))); do
    until in_host "$h" "'$BIN/lmdbio' ps" | grep -q "server of $HOSTS nodes"; do
      kill -0 $servers || { cat "$TMPDIR/servers" >&2; exit 1; }
      sleep 0.1
    done
  done
}
killed() { in_host $VICTIM "kill -KILL $pid"; }
stopped() { in_host $VICTIM "kill -STOP $pid"; }
slow() { # a hundredth of the time
  in_host $VICTIM "while [ ! -e $TMPDIR/done ] && kill -STOP $pid; do sleep 0.099; kill -CONT $pid; sleep 0.001; done" 2>/dev/null &
}
cut_off() { ip link set v$VICTIM down; }
aborted() { kill -KILL $servers; }
late() { start_servers; }
none() { :; }

if [ "$FAILURE" != late ]; then
  start_servers
  wait_for_servers
  pid=$(victim_pid)
  [ -n "$pid" ] || exit 1
fi
readers=
for h in $(seq 0 $((HOSTS - 1))); do
  in_host "$h" "env TMPDIR=$TMPDIR LD_PRELOAD=$LIBRARY /usr/bin/python3 -B $READER_FILE $MOUNT/data.mdb" &
  readers="$readers $!"
done
fail
status=0
for r in $readers; do wait "$r" || status=1; done
touch "$TMPDIR/done"
sleep 0.2
if [ -n "${pid:-}" ]; then in_host $VICTIM "kill -CONT $pid" 2>/dev/null; fi
ip link set v$VICTIM up
kill -TERM $servers 2>/dev/null
for i in $(seq 100); do
  alive=$(for h in $(seq 0 $((HOSTS - 1))); do in_host "$h" "pgrep -f '[l]mdbio-serve'"; done)
  [ -n "$alive" ] || break
  sleep 0.1
done
[ -z "$alive" ] || { echo "servers are left: $alive" >&2; exit 1; }
if [ $FAILURE = none ]; then
  for h in $(seq 0 $((HOSTS - 1))); do in_host "$h" "! ipcs -m | grep 0x1db" || exit 1; done
fi
for h in $(seq 0 $((HOSTS - 1))); do
  in_host "$h" "'$BIN/lmdbio' ps --clean >/dev/null; ls -A /dev/shm; ipcs -m | grep 0x1db; cat $MOUNT/.slowfs/counters" |
    /usr/bin/python3 -c 'import json, sys
text = sys.stdin.read(); left, _, counters = text.partition("{")
print(json.dumps({"left": left.strip(), "read": json.loads("{" + counters)["read"]["bytes"]}))'
done
exit $status
"""


class ServeFailures(unittest.TestCase):
    moments, seed = 1, 1

    @classmethod
    def setUpClass(cls):
        import zlib
        cls.folder = tempfile.TemporaryDirectory(prefix="lmdbio_failures_")
        cls.data, cls.mount = (os.path.join(cls.folder.name, d) for d in ("data", "mount"))
        os.mkdir(cls.data)
        os.mkdir(cls.mount)
        cls.file, cls.sum = os.path.join(cls.data, "data.mdb"), 0
        for value in write_database(cls.file, RECORDS, VALUE):
            cls.sum = zlib.crc32(value, cls.sum)
        cls.reader = os.path.join(cls.folder.name, "reader.py")
        with open(cls.reader, "w", encoding="utf-8") as file:
            file.write(READER)
        print(f"\n| failure | after (s) | bytes from the file system / file | seconds of each host | slowest call (s) |\n|---|---|---|---|---|", flush=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_once(self, failure, moment):
        drop_cache(self.file)
        setup = mounting(BIN, self.data, self.mount, f"--bandwidth={BANDWIDTH}",
                         "--bandwidth-group=" + os.path.join(self.folder.name, "bandwidth"))
        env = environment()
        env.update(HOSTS_PROGRAM=HOSTS_PROGRAM, BIN=BIN, LIBRARY=LIBRARY, HOSTS=str(HOSTS), VICTIM=str(VICTIM), FAILURE=failure,
                   MOMENT=f"{moment:.3f}", READER_FILE=self.reader, MOUNT=self.mount)
        job = subprocess.run([sys.executable, "-B", HOSTS_PROGRAM, "--mpirun", MPIRUN, "--hosts", str(HOSTS), "--ranks", "1", "--timeout", "100",
                              "--setup", setup, "--head", "--", "/bin/sh", "-c", HEAD],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
        if job.returncode == 77:
            self.skipTest(job.stdout.strip())
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        said = [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]
        readers, hosts = [s for s in said if "sum" in s], [s for s in said if "left" in s]
        self.assertEqual([r["sum"] for r in readers], [self.sum] * HOSTS)
        self.assertEqual([h["left"] for h in hosts], [""] * HOSTS)
        times = self.sizes(hosts)
        print(f"| {failure} | {moment:.2f} | {times:.2f} | {', '.join(format(r['seconds'], '.2f') for r in readers)} | "
              f"{max(r['slowest'] for r in readers):.2f} |", flush=True)
        # The servers read each byte once.  After that, each program may read it again.
        self.assertLessEqual(times, 1.5 if failure == "none" else HOSTS + 1)

    def sizes(self, hosts):
        return sum(h["read"] for h in hosts) / os.path.getsize(self.file)

    def each(self, failure):
        r = random.Random(f"{self.seed} {failure}")
        for _ in range(self.moments):
            moment = r.uniform(0, RECORDS * VALUE / BANDWIDTH)
            with self.subTest(moment=moment):
                self.run_once(failure, moment)

    def test_none(self):
        self.each("none")

    def test_killed(self):
        self.each("killed")

    def test_stopped(self):
        self.each("stopped")

    def test_slow(self):
        self.each("slow")

    def test_cut_off(self):
        self.each("cut_off")

    def test_aborted(self):
        self.each("aborted")

    def test_late(self):
        self.each("late")


def option(name, default):
    if name not in sys.argv:
        return default
    at = sys.argv.index(name)
    value = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return value


if __name__ == "__main__":
    ServeFailures.moments, ServeFailures.seed = option("--moments", 1), option("--seed", 1)
    main(BIN)
