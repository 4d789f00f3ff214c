"""Runs a loader of bench/loaders or bench/gpu in its own process, and measures the memory of the process and its workers."""
import json
import os
import signal
import subprocess
import sys
import time

from measure import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
SHARE = 30  # measuring the memory may take 1 / SHARE of one CPU
PAUSE_S = 0.1  # minimum between two measurements


class Memory:
    """The largest measured sum of the PSS of a process and its children, in bytes.  `files`: the part that is mapped from files."""

    def __init__(self, pid):
        self.pid, self.peak, self.next = pid, {"pss": 0, "files": 0}, 0.0

    def look(self):
        """Measures the memory if the pause has passed."""
        begin = time.monotonic()
        if begin < self.next:
            return
        now = {"pss": 0, "files": 0}
        for pid in self.processes():
            try:
                with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                    lines = dict(line.split(":") for line in file.readlines()[1:])
            except OSError:
                continue  # it has just ended
            now["pss"] += int(lines["Pss"].split()[0]) << 10
            now["files"] += int(lines["Pss_File"].split()[0]) << 10
        self.peak = max(self.peak, now, key=lambda m: m["pss"])
        end = time.monotonic()
        self.next = end + max(PAUSE_S, SHARE * (end - begin))

    def processes(self):
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:
                return [self.pid, *map(int, file.read().split())]
        except OSError:
            return []


def run(program, arguments, env, timeout_s, measure_memory, tell):
    """Runs a Python program of this folder's parent.  Returns the JSON that it prints, with "said", its standard error, and with "pss"
    and "pss_files" if the memory is measured.  Passes the seconds so far to `tell`.  Raises Failed."""
    command = [sys.executable, "-B", os.path.join(os.path.dirname(HERE), program), *arguments]
    begin = time.monotonic()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
                          start_new_session=True) as process:
        memory = Memory(process.pid)
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=PAUSE_S)
                    break
                except subprocess.TimeoutExpired:
                    pass
                if (took := time.monotonic() - begin) > timeout_s:
                    raise Failed(f"{' '.join(command)}: no end after {timeout_s:g} s")
                tell(took)
                if measure_memory:
                    memory.look()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with its workers
            raise
    if process.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {process.returncode}: {out}{err}")
    used = {"pss": memory.peak["pss"], "pss_files": memory.peak["files"]} if measure_memory else {}
    return {**json.loads(out), **used, "said": err}
