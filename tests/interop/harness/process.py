"""Child processes that are always bounded, and always ended by their own id."""
import os
import signal
import subprocess
import time

# How many times as long as they usually may checks, programs and what is waited for may take: machines are not equally
# fast, and these bounds only end what hangs.
SLOW = 3


class Failed(Exception):
    def __init__(self, command, code, output):
        shown = " ".join(str(c) for c in command)
        super().__init__(f"exit {code}: {shown[:600]}\n{output[-3000:]}")
        self.code = code
        self.output = output


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def lines(self):
        return self.out.splitlines()


def end(process):
    """Kills the process group that the process leads."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(command, stdin=None, seconds=60, code=0, env=None, cwd=None):
    """Runs a command to its end; `code` is the exit code it must have (None: any; "not 0": any failure). `seconds` of a usual machine."""
    seconds *= SLOW
    machine = getattr(command, "machine", None)
    if machine is not None and env is None and cwd is None:
        answer = machine.run(command.words, stdin, seconds)
        if answer is None:
            raise Failed(command, f"none within {seconds} s", "")
        return judged(command, code, *answer)
    process = subprocess.Popen(
        [str(c) for c in command], stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
        start_new_session=True, cwd=cwd, env={**os.environ, **(env or {})},
    )
    try:
        out, err = process.communicate(stdin, timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        out, err = process.communicate()
        raise Failed(command, f"none within {seconds} s", out + err) from None
    except BaseException:
        end(process)
        raise
    return judged(command, code, process.returncode, out, err)


def judged(command, wanted, code, out, err):
    wrong = code == 0 if wanted == "not 0" else wanted is not None and code != wanted
    if wrong:
        raise Failed(command, code, out + err)
    return Result(code, out, err)


def start(command, out, env=None):
    """Starts a command whose output goes to the file `out`; the caller ends it."""
    with open(out, "ab") as f:
        return subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, **(env or {})},
        )


def until(what, done, seconds=20, pause=0.1):
    """Waits until done() is true, for `seconds` of a usual machine at most, and answers what it returned."""
    seconds *= SLOW
    last = time.monotonic() + seconds
    while True:
        value = done()
        if value:
            return value
        if time.monotonic() > last:
            raise AssertionError(f"did not happen within {seconds} s: {what}")
        time.sleep(pause)


def cpu_seconds(pid):
    """User and system time of a process since its start."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
