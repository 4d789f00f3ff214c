"""A memory cgroup of one's own, of version 1 or 2, for what a program and its children use together.

    with cgroup.Memory(limit=None) as group:          # Missing: none to be had here
        subprocess.Popen(..., preexec_fn=group.enter)
        group.anonymous()                             # bytes, now
"""
import os
import time


class Missing(Exception):
    pass


ROOTS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")


def own(root):
    """Where this process is, below `root`."""
    with open("/proc/self/cgroup", encoding="ascii") as f:
        for line in f:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == ("memory" if root.endswith("/memory") else ""):
                return root + path.rstrip("/")
    return root


class Memory:
    def __init__(self, limit=None):
        self.limit = limit
        self.path = None

    def __enter__(self):
        for root in ROOTS:
            for parent in (own(root), root):
                path = f"{parent}/lmdbio-{os.getpid()}"
                try:
                    os.mkdir(path)
                except OSError:
                    continue
                self.path = path
                try:
                    self.anonymous()
                    if self.limit is not None:
                        self._limit()
                    return self
                except (OSError, KeyError):
                    self._remove()
        raise Missing("a memory cgroup of one's own")

    def _limit(self):
        for name in ("memory.limit_in_bytes", "memory.max"):
            if os.path.exists(f"{self.path}/{name}"):
                self._write(name, self.limit)
                return
        raise KeyError("limit")

    def _write(self, name, value):
        with open(f"{self.path}/{name}", "w", encoding="ascii") as f:
            f.write(str(value))

    def enter(self):
        """In the process that is to be in it."""
        self._write("cgroup.procs", os.getpid())

    def anonymous(self):
        stat = self._stat()
        return int(stat["anon"] if "anon" in stat else stat["total_rss"])

    def unreclaimable(self):
        """Anonymous and shared memory: without swap, it only goes when the processes give it back."""
        stat = self._stat()
        return self.anonymous() + int(stat["total_shmem"] if "total_shmem" in stat else stat["shmem"])

    def _stat(self):
        with open(f"{self.path}/memory.stat", encoding="ascii") as f:
            return dict(line.split() for line in f)

    def _remove(self):
        for _ in range(200):  # ended processes leave it a little later
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.01)

    def __exit__(self, *_):
        self._remove()
