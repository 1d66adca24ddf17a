"""A Java machine that stays: it runs tools and programs one after the other, see java/Resident.java."""
import os
import select
import struct
import subprocess
import time

from . import process


class Command(list):
    """A command line that a machine that is there already may run as well: a class and its arguments."""

    def __init__(self, line, words, machine):
        super().__init__(line)
        self.words = words
        self.machine = machine


class Machine:
    def __init__(self, line):
        self.line = line
        self.process = None

    def run(self, words, stdin, seconds):
        """Exit code, output, errors; None if it took longer, or the machine died: it is gone then."""
        if self.process is None:
            self.process = subprocess.Popen(
                [str(c) for c in self.line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            answer = self.ask([str(w).encode() for w in words], (stdin or "").encode(), time.monotonic() + seconds)
        except BaseException:
            self.stop()
            raise
        if answer is None:
            self.stop()
        return answer

    def ask(self, words, stdin, until):
        parts = [struct.pack(">i", len(words))]
        for part in (*words, stdin):
            parts += [struct.pack(">i", len(part)), part]
        try:
            self.process.stdin.write(b"".join(parts))
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        head = self.read(4, until)
        texts = []
        while head is not None and len(texts) < 2:
            length = self.read(4, until)
            text = length and self.read(*struct.unpack(">i", length), until)
            if text is None:
                return None
            texts.append(text.decode("utf-8", errors="replace"))
        return None if head is None else (*struct.unpack(">i", head), *texts)

    def read(self, count, until):
        found = b""
        out = self.process.stdout.fileno()
        while len(found) < count:
            left = until - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                return None
            more = os.read(out, count - len(found))
            if not more:
                return None
            found += more
        return found

    def stop(self):
        if self.process is not None:
            process.end(self.process)
            self.process = None
