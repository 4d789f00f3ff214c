"""A file with the finished runs of a benchmark, one line of JSON each, so that a killed benchmark can continue."""
import fcntl
import json
import os

from measure import fail


class Journal:
    """The file `path` has the options, and then the runs.  Ends the program if another process has the file open, or if its options
    differ.  `fresh` starts a new file.  Drops an incomplete last line."""

    def __init__(self, path, options, fresh):
        self.path, self.runs = path, []
        options = json.loads(json.dumps(options))
        self.file = open(path, "a+b", buffering=0)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fail(f"another process is writing {path}: use another --out")
        if fresh:
            self.file.truncate(0)
        lines = self._lines()
        if not lines:
            self._append({"options": options})
            return
        begun = lines[0].get("options", {})
        if changed := [k for k in {**begun, **options} if begun.get(k) != options.get(k)]:
            k = changed[0]
            fail(f"{path} was begun with other options ({k}: {begun.get(k)}, now {options.get(k)}"
                 f"{'; ' + ', '.join(changed[1:]) if changed[1:] else ''}): --fresh starts over, --out keeps both")
        self.runs = lines[1:]

    def _lines(self):
        """Returns the complete lines of the file, and cuts the file after them."""
        self.file.seek(0)
        data = self.file.read()
        whole = data[:data.rfind(b"\n") + 1]
        os.ftruncate(self.file.fileno(), len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            fail(f"{self.path} is damaged: --fresh starts over")

    def add(self, run):
        self.runs.append(run)
        self._append(run)

    def _append(self, entry):
        line = json.dumps(entry).encode() + b"\n"
        if os.write(self.file.fileno(), line) != len(line):
            fail(f"{self.path}: no space left?")
