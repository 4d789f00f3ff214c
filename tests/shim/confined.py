"""Programs run with less than the test has: as another user, in mounts of their own, with failing system calls.

Each kind is a prefix of the command line.  Missing: what it needs is not to be had here.
"""
import fcntl
import os
import shutil
import subprocess
import tempfile

import shimtest

NOBODY = 65534
ROOT = os.geteuid() == 0
O_CREAT, MAP_SHARED, PROT_WRITE = os.O_CREAT, 1, 2


class Missing(Exception):
    pass


def works(prefix):
    return subprocess.run(prefix + ["/bin/true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def as_nobody():
    """Another user than the owner.  Not as root: nothing; files are read-only to their owner too."""
    if not ROOT:
        return []
    prefix = ["/usr/bin/setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if not works(prefix):
        raise Missing("setpriv: no other user can be taken")
    return prefix


def in_mounts(script):
    """After the shell commands `script` in a mount namespace of its own, which ends with the program."""
    prefix = ["/usr/bin/unshare", "--mount", "--propagation=private"]
    if not ROOT or not works(prefix):
        raise Missing("unshare --mount: no mounts of one's own")
    return prefix + ["/bin/sh", "-ec", script + '\nexec "$@"', "sh"]


def in_pid_namespace():
    """As process 1 of a PID namespace; killed with its parent."""
    prefix = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child"]
    if not ROOT or not works(prefix):
        raise Missing("unshare --pid: no PID namespaces")
    return prefix


def failing(*rules):
    """run_seccomp.c says what a rule is."""
    prefix = [shimtest.CONFIG["run_seccomp"], *rules, "--"]
    if not works([prefix[0], "--"]):
        raise Missing("no seccomp filters")
    return prefix


def without_threads():
    if shimtest.CONFIG["sanitize"]:
        raise Missing("no sanitizer: they use threads")
    return failing("clone=EAGAIN", "clone3=EAGAIN")


def failing_locks(error):
    commands = (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW)
    return failing(*(f"fcntl/1:{command}={error}" for command in commands))


def reachable(path):
    """May every user get there?"""
    while path != "/":
        if not os.stat(path).st_mode & 1:
            return False
        path = os.path.dirname(path)
    return True


class Case(shimtest.Case):
    """Files that every user may reach, and the programs under test too."""
    told = set()

    def setUp(self):
        super().setUp()
        os.chmod(self.dir, 0o755)
        # Directories without write permission could not be emptied.
        self.addCleanup(subprocess.run, ["/bin/chmod", "-R", "u+rwX", self.dir], stderr=subprocess.DEVNULL)

    @classmethod
    def setUpClass(cls):
        if reachable(shimtest.CONFIG["lib"]) and reachable(shimtest.CONFIG["run_seccomp"]):
            return
        # The build directory is the test's user's alone.
        public = tempfile.mkdtemp(prefix="shimtest-")
        cls.addClassCleanup(shutil.rmtree, public)
        os.chmod(public, 0o755)
        os.mkdir(f"{public}/soname")
        config, before = shimtest.CONFIG, dict(shimtest.CONFIG)
        cls.addClassCleanup(config.update, before)
        for key, to in (("lib", ""), ("run_seccomp", ""), ("soname", "/soname")):
            config[key] = shutil.copy(config[key], public + to)
        config["programs"] = {name: shutil.copy(path, public) for name, path in config["programs"].items()
                              if os.path.exists(path)}
        config["public"] = public
        cls.addClassCleanup(config.pop, "public")

    def absent(self, why):
        """A part that cannot be run here: one line."""
        if (self.id(), why) not in Case.told:
            print(f"  {self._testMethodName}: without {why}", flush=True)
            Case.told.add((self.id(), why))

    def database(self, name="db", rounds=1, words=""):
        """A database of refused.c's, written by stock, its lock file removed: (path, data file, lock file)."""
        path = os.path.join(self.dir, name)
        os.mkdir(path)
        os.chmod(path, 0o755)
        if "nosubdir" in words:
            path += "/db"
        for number in range(1, rounds + 1):
            done = shimtest.run("stock", ["refused", f"write {number} {path} {words}"])
            self.assertEqual(done.out, "write = 0\n", done.err)
        data, lock = path + "/data.mdb", path + "/lock.mdb"
        if "nosubdir" in words:
            data, lock = path, path + "-lock"
        os.remove(lock)
        os.chmod(data, 0o644)
        return path, data, lock


def start(mode, argv, extra=None, prefix=()):
    """The command line and environment of a program under test, not of those that `prefix` names."""
    argv = list(argv)
    if argv[0] in shimtest.CONFIG["programs"]:
        argv[0] = shimtest.program(argv[0], mode)
    if "public" in shimtest.CONFIG and mode in ("linked", "asneeded"):
        extra = {**(extra or {}), "LD_LIBRARY_PATH": shimtest.CONFIG["public"]}
    env = shimtest.environment(mode, extra)
    loader = [f"{k}={env.pop(k)}" for k in list(env) if k.startswith("LD_")] if prefix else []
    return [*prefix, *(["/usr/bin/env", *loader] if loader else []), *argv], env


def run(mode, argv, extra=None, prefix=(), timeout=100):
    """As shimtest.run, confined, and without statistics."""
    argv, env = start(mode, argv, extra, prefix)
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=timeout)
    return shimtest.Result(done.returncode, done.stdout.decode(errors="backslashreplace"),
                           done.stderr.decode(errors="backslashreplace"), [])


class Program:
    """refused.c at the other end of a pipe: one command, one answer."""

    def __init__(self, case, mode="stock", extra=None, prefix=()):
        argv, env = start(mode, ["refused", "-"], extra, prefix)
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, bufsize=1)
        case.addCleanup(self.end)

    def do(self, command):
        self.process.stdin.write(command + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise AssertionError(f"{command}: ended with {self.process.wait()}: {self.lines()}")
        return answer.split(" = ", 1)[1].strip()

    def lines(self):
        """What has been written to standard error so far."""
        self.errors.seek(0)
        return self.errors.read().splitlines()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.stdin.closed:
            return 0
        self.process.stdin.close()
        status = self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        return status


