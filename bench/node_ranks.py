"""The processes of a run of bench/node or bench/factors: they start together, and begin each epoch together."""
import json
import os
import subprocess
import tempfile
import threading
import time

from measure import Failed


class Ranks:
    """A `with` block of processes of run_node that are ready.  Failed: one of them has failed, or all together take too
    long; none is left behind."""

    def __init__(self, commands, label, timeout_s, **options):
        self.commands, self.label, self.timeout_s, self.options = commands, label, timeout_s, options
        self.processes, self.late = [], False

    def __enter__(self):
        self.errors = tempfile.TemporaryFile("w+")
        self.timer = threading.Timer(self.timeout_s, self.too_late)
        self.timer.daemon = True
        try:
            for command in self.commands:
                # A pipe for each: of one for all, a fast one could take the byte of one that has not begun yet.
                self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                       stderr=self.errors, text=True, cwd="/", **self.options))
            self.timer.start()
            self.libraries = {line["library"] for line in self.lines()}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        self.errors.close()

    def too_late(self):
        self.late = True
        for process in self.processes:
            process.kill()

    def epoch(self):
        """Lets all begin one.  When that was (ns), and what each tells at its end."""
        begin = time.monotonic_ns()  # the clock of run_node
        for process in self.processes:
            try:
                os.write(process.stdin.fileno(), b".")
            except BrokenPipeError:
                pass  # it has ended, which its line will tell
        return begin, self.lines()

    def lines(self):
        return [self.line(p) for p in self.processes]

    def line(self, process):
        line = process.stdout.readline()
        if line.endswith("\n"):
            return json.loads(line)
        status = process.wait()
        if self.late:
            raise Failed(f"{' '.join(process.args)} ({self.label}): no end after {self.timeout_s} s")
        raise Failed(f"{' '.join(process.args)} ({self.label}) ended with {status}: {self.said().strip()}")

    def end(self):
        """Waits until all have ended.  What each tells of its end."""
        last = self.lines()
        for process in self.processes:
            if (status := process.wait()) != 0:
                raise Failed(f"{' '.join(process.args)} ({self.label}) ended with {status}: {self.said().strip()}")
        return last

    def said(self):
        self.errors.seek(0)
        return self.errors.read()
