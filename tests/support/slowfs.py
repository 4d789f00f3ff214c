"""A directory mounted as a slow and faulty file system (slowfs/main.cc tells what it can do).

    with slowfs.SlowFs(binary, source, delay_us=500, lock_errno="ENOLCK") as fs:
        ...  # fs.path is the mount
        fs.set(reset=1, fail_at=3)
        fs.counters()["faults"]["read_error"]

Options are those of the program, with _ for -; True gives a flag.  SlowFs raises Missing where FUSE, or what an
option needs, is not to be had: exit 77 then.  The mount goes when the block or this process ends, however it ends.
"""
import json
import os
import subprocess
import tempfile


class Missing(Exception):
    pass


class SlowFs:
    def __init__(self, binary, source, **options):
        self.binary, self.source, self.options = binary, source, options
        self.process = self.path = self._dir = None
        self._killed = False

    def __enter__(self):
        if not os.access(self.binary, os.X_OK):
            raise Missing(f"{self.binary}: not built (libfuse3)")
        self._dir = tempfile.mkdtemp(prefix="lmdbio_slowfs_")
        os.chmod(self._dir, 0o755)  # for other users
        self.path = os.path.join(self._dir, "mnt")
        os.mkdir(self.path)
        self._errors = tempfile.TemporaryFile("w+")
        argv = [self.binary, f"--owner={os.getpid()}"]
        for name, value in self.options.items():
            option = "--" + name.replace("_", "-")
            argv.append(option if value is True else f"{option}={value}")
        try:
            self.process = subprocess.Popen(argv + ["--", self.source, self.path], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=self._errors, text=True)
            if self.process.stdout.readline() != "ready\n":
                status = self.process.wait()
                raise (Missing if status == 77 else RuntimeError)(f"status {status}: {self.errors().strip()}")
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(self, *_):
        try:
            status = self.stop()
            if status != 0 and not self._killed:
                raise RuntimeError(f"lmdbio_slowfs ended with status {status}: {self.errors().strip()}")
        finally:
            self._clean()

    def stop(self):
        """Unmounts, whatever is still open.  The program's exit status."""
        self.process.terminate()
        return self.process.wait()

    def kill(self):
        """A file server that dies: who has files open gets errors."""
        self.process.kill()
        self.process.wait()
        self._killed = True

    def set(self, **values):
        """All at once.  OSError EINVAL: nothing was changed, errors() tells why."""
        text = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
        fd = os.open(os.path.join(self.path, ".slowfs/control"), os.O_WRONLY)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)

    def counters(self):
        return self._json("counters")

    def settings(self):
        return self._json("settings")

    def errors(self):
        """What the program has written to standard error."""
        self._errors.seek(0)
        return self._errors.read()

    def _json(self, name):
        with open(os.path.join(self.path, ".slowfs", name), encoding="utf-8") as f:
            return json.load(f)

    def _clean(self):
        if self.process is not None:
            if self.process.poll() is None:
                self.stop()
            self.process.stdout.close()
        self._errors.close()
        if self._killed:  # what the program's own guard may not have done yet
            subprocess.run(["fusermount3", "-u", "-q", "-z", self.path], stderr=subprocess.DEVNULL)
        os.rmdir(self.path)
        os.rmdir(self._dir)
