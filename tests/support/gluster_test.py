#!/usr/bin/env python3
"""Is the GlusterFS of gluster.py one, and does it leave nothing behind?"""
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gluster  # noqa: E402

SIZE = 32 << 20
KEEPER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import gluster
with gluster.Gluster({"one": 1}) as servers, servers.mounted("one"):
    print(servers.pid, flush=True)
    time.sleep(600)
"""


def here():
    """What could be left behind: mounts, and files of the state directories."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split()[4] for line in file]
    return sorted(mounts), {d: sorted(os.listdir(d)) for d in gluster.STATE if d != "/run" and d != "/dev/shm"}


class Servers(unittest.TestCase):
    def test_volumes(self):
        before = here()
        with tempfile.TemporaryDirectory() as directory, gluster.Gluster({"one": 1, "two": 2}) as servers:
            source = os.path.join(directory, "some")
            os.mkdir(source)
            with open(os.path.join(source, "file"), "wb") as file:
                file.write(os.urandom(SIZE))
            for volume, bricks in servers.volumes.items():
                servers.copy(volume, source)
                for _ in range(2):  # a new client each
                    with servers.mounted(volume) as mount:
                        same = ["cmp", os.path.join(mount, "some", "file"), os.path.join(source, "file")]
                        self.assertEqual(subprocess.run(servers.inside(same), check=False).returncode, 0)
                        self.assertFalse(os.path.exists(os.path.join(mount, "some")))  # out here
                stored = servers.brick_bytes(volume)
                self.assertEqual(len(stored), bricks)
                self.assertTrue(all(part > SIZE / bricks / 8 for part in stored), stored)
        self.assertEqual(here(), before)

    def test_killed(self):
        before = here()
        owner = subprocess.Popen([sys.executable, "-B", "-c", KEEPER, os.path.dirname(os.path.abspath(__file__))], stdout=subprocess.PIPE,
                                 text=True)
        with owner.stdout:
            first = int(owner.stdout.readline())
        owner.kill()
        owner.wait()
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{first}") and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(os.path.exists(f"/proc/{first}"))  # it ends after all others
        self.assertEqual(here(), before)


if __name__ == "__main__":
    try:
        with gluster.Gluster({"one": 1}):
            pass
    except gluster.Missing as e:
        print(e)
        sys.exit(77)
    unittest.main()
