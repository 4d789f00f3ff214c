"""The processes of a run of bench/node or bench/factors.  They start together, and begin each epoch together."""
import json
import os
import subprocess
import tempfile
import threading
import time

from measure import Failed


class Ranks:
    """A `with` block of processes of run_node that are ready.  Raises Failed if a process fails, or if all together take too
    long.  No process outlives the block."""

    def __init__(self, commands, label, timeout_s, **options):
        self.commands, self.label, self.timeout_s, self.options = commands, label, timeout_s, options
        self.processes, self.late = [], False

    def __enter__(self):
        self.errors = tempfile.TemporaryFile("w+")
        self.timer = threading.Timer(self.timeout_s, self.too_late)
        self.timer.daemon = True
        try:
            for command in self.commands:
                # Each process has its own pipe: in a shared pipe, a fast process could take the byte of a
                # slow one.
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
        """Starts an epoch in all processes.  Returns the time of the start (ns), and the line of each process at the end."""
        begin = time.monotonic_ns()  # the clock of run_node
        for process in self.processes:
            try:
                os.write(process.stdin.fileno(), b".")
            except BrokenPipeError:
                pass  # the process has ended; lines() reports that
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
        """Waits until all processes have ended.  Returns the last line of each."""
        last = self.lines()
        for process in self.processes:
            if (status := process.wait()) != 0:
                raise Failed(f"{' '.join(process.args)} ({self.label}) ended with {status}: {self.said().strip()}")
        return last

    def said(self):
        self.errors.seek(0)
        return self.errors.read()
