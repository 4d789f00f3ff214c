#!/usr/bin/python3
"""A GlusterFS of one's own: servers and clients in namespaces, with bricks in memory.

    with gluster.Gluster({"one": 1, "two": 2}) as servers:    # volumes and their numbers of bricks.  Missing: not to be had
        servers.copy("two", "/data/database")
        with servers.mounted("two") as mount:                 # a new client, whose caches are empty
            subprocess.run(servers.inside(["cat", mount + "/database/file"]))

Files are cut into pieces of STRIPE, which are distributed over the bricks of the volume.  The servers have a network, mounts,
processes and a /dev/shm of their own, and a /var/lib/glusterd, /var/log/glusterfs and /run in memory: the system's own GlusterFS is
neither needed nor touched.  All of it ends with the block or with this process, however it ends, and leaves nothing behind.

Needs root, namespaces, FUSE, and the packages glusterfs-server, glusterfs-client, iproute2 and util-linux.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

PROGRAMS = ["glusterd", "gluster", "glusterfs", "ip", "mount", "umount", "unshare", "nsenter"]
STATE = ["/var/lib/glusterd", "/var/log/glusterfs", "/run", "/dev/shm"]
ADDRESS = "10.87.255.1"  # glusterd refuses the loopback addresses
STRIPE = 4 << 20
MOUNT = "/run/client"
START_S = 60


class Missing(Exception):
    pass


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(*command):
    """What it prints.  RuntimeError: it has failed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout.strip()}")
    return done.stdout


class Gluster:
    def __init__(self, volumes):
        self.volumes = volumes
        self.process = self.pid = None

    def __enter__(self):
        if os.geteuid() != 0:
            raise Missing("needs root")
        if missing := [p for p in PROGRAMS if shutil.which(p) is None]:
            raise Missing(f"not installed: {', '.join(missing)}")
        if missing := [d for d in [*STATE, "/dev/fuse"] if not os.path.exists(d)]:
            raise Missing(f"there is no {missing[0]}")
        names = [f"{name}={bricks}" for name, bricks in self.volumes.items()]
        self.process = subprocess.Popen(["unshare", "-n", "-m", "-p", "--fork", "--kill-child=KILL", "--mount-proc", sys.executable, "-B",
                                         os.path.abspath(__file__), "--be", *names], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent, start_new_session=True)
        try:
            said = []
            for line in self.process.stdout:
                if line == "ready\n":
                    break
                said.append(line.strip())
            else:
                raise Missing(f"the servers did not start: {said[-1] if said else '?'}")
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as f:
                self.pid = f.read().split()[0]
        except BaseException:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self.pid), signal.SIGKILL)  # the kernel ends all others, and removes mounts and the network
        self.process.wait()
        self.process.stdout.close()

    def inside(self, command):
        """The command as it is run where the mounts are."""
        return ["nsenter", "-t", self.pid, "-m", "-n", "-p", "--", *command]

    @contextlib.contextmanager
    def mounted(self, volume):
        """A new client.  The directory that it shows, to commands that are run inside."""
        run(*self.inside(["glusterfs", "-s", ADDRESS, "--volfile-id", "/" + volume, MOUNT]))
        try:
            yield MOUNT
        finally:
            run(*self.inside(["umount", MOUNT]))

    def copy(self, volume, source):
        """Copies a directory into a volume."""
        with self.mounted(volume) as mount:
            run(*self.inside(["cp", "-r", source, mount]))

    def brick_bytes(self, volume):
        """Of each brick of a volume: bytes of the files on it."""
        bricks = [self.inside(["du", "-s", "-B1", brick_of(volume, i)]) for i in range(self.volumes[volume])]
        return [int(run(*brick).split()[0]) for brick in bricks]


def brick_of(volume, i):
    return f"/run/bricks/{volume}-{i}"


def be_the_servers(volumes):
    """The first process of the namespaces: starts the servers, and collects what dies there."""
    def gluster(*words):
        run("gluster", "--mode=script", *words)

    run("mount", "--make-rprivate", "/")
    for directory in STATE:
        run("mount", "-t", "tmpfs", "-o", "mode=1777" if directory == "/dev/shm" else "mode=755", "none", directory)
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", ADDRESS + "/32", "dev", "lo")
    for directory in ("/run/gluster", "/run/bricks", MOUNT):
        os.mkdir(directory)
    run("glusterd")
    deadline = time.monotonic() + START_S
    while True:
        try:
            gluster("volume", "list")
            break
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    for volume, bricks in volumes.items():
        gluster("volume", "create", volume, *(f"{ADDRESS}:{brick_of(volume, i)}" for i in range(bricks)), "force")
        gluster("volume", "set", volume, "features.shard", "on")
        gluster("volume", "set", volume, "features.shard-block-size", str(STRIPE))
        gluster("volume", "start", volume)
    print("ready", flush=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "--be":
        sys.exit(__doc__)
    try:
        be_the_servers({name: int(bricks) for name, bricks in (volume.split("=") for volume in sys.argv[2:])})
    except (OSError, RuntimeError) as e:
        sys.exit(str(e))
