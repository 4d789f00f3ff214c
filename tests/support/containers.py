"""Commands in containers: crun with an OCI configuration of our own, and bubblewrap.  The root of a container is that of
this machine.

Missing: there is no such program, or it cannot make a container here.
"""
import json
import os
import shutil
import subprocess
import tempfile

NOBODY = 65534


class Missing(Exception):
    pass


def in_bwrap(command, binds=(), uid=0):
    """The command line of `command` in bubblewrap: with PID and IPC namespaces and a /dev/shm of its own, on a read-only root.
    `binds`: paths that may be written.  `uid`: if it is not 0, with a user namespace, too."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise Missing("bubblewrap")
    line = [bwrap, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/dev/shm"]
    if uid != 0:
        line += ["--unshare-user"]
    for path in binds:
        line += ["--bind", path, path]
    as_user = [] if uid == 0 else ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    line = as_user + line
    tried = subprocess.run([*line, "/bin/true"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if tried.returncode != 0:
        raise Missing(f"bubblewrap: {tried.stderr.strip()}")
    return [*line, *command]


class Crun:
    """A bundle for `command`, on a read-only root.  `env`: all of its environment.  The mounts that it makes are in a namespace
    of its own, and so end with it; `close` removes the bundle.

    seccomp: {system call: errno}.  shm_mib: size of /dev/shm.  memlock: RLIMIT_MEMLOCK in bytes.  masked: paths of which nothing is to
    be seen.  uid: with no capabilities if it is not 0."""

    def __init__(self, command, env, binds=(), uid=0, shm_mib=64, memlock=None, seccomp=None, masked=()):
        self.crun = shutil.which("crun")
        if self.crun is None:
            raise Missing("crun")
        if os.geteuid() != 0:
            raise Missing("crun: not root")
        self.bundle = tempfile.mkdtemp(prefix="lmdbio_container_")
        os.chmod(self.bundle, 0o755)
        for name in ("root", "state"):
            os.mkdir(os.path.join(self.bundle, name))
        process = {"terminal": False, "user": {"uid": uid, "gid": uid}, "args": command, "cwd": "/",
                   "env": [f"{k}={v}" for k, v in env.items()], "noNewPrivileges": True}
        if memlock is not None:
            process["rlimits"] = [{"type": "RLIMIT_MEMLOCK", "soft": memlock, "hard": memlock}]
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
                  {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
                   "options": ["nosuid", "nodev", "mode=1777", f"size={shm_mib}m"]}]
        mounts += [{"destination": path, "type": "bind", "source": path, "options": ["rbind", "rw"]} for path in binds]
        linux = {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount", "uts")], "maskedPaths": list(masked)}
        if seccomp:
            linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno} for name, errno in seccomp.items()]}
        config = {"ociVersion": "1.0.2", "process": process, "root": {"path": os.path.join(self.bundle, "root"), "readonly": True},
                  "mounts": mounts, "linux": linux}
        with open(os.path.join(self.bundle, "config.json"), "w", encoding="utf-8") as out:
            json.dump(config, out)

    def line(self):
        """The command line that runs it.  crun refuses a hierarchy of cgroups of both versions, and / for a root."""
        name = os.path.basename(self.bundle)
        script = ("umount /sys/fs/cgroup/unified 2>/dev/null || true\n"
                  f"mount --bind / {self.bundle}/root\n"
                  f"exec {self.crun} --root {self.bundle}/state --cgroup-manager=disabled run --bundle {self.bundle} {name}")
        return ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-ec", script]

    def close(self):
        shutil.rmtree(self.bundle, ignore_errors=True)
