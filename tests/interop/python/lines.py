"""Records as JSON lines, shared by the Python clients."""
import json
import sys
import time

# The timestamp of first records: an hour ago, so that neither retention nor the check for the future touches them.
BASE_MS = int(time.time()) * 1000 - 3_600_000


def wire(r):
    """A record of a line as the clients take it."""
    return (
        r["partition"],
        r["timestamp"],
        None if r["key"] is None else r["key"].encode(),
        None if r["value"] is None else r["value"].encode(),
        [(k, v.encode()) for k, v in r["headers"]],
    )


def records_in():
    for line in sys.stdin.buffer:
        yield wire(json.loads(line))


def print_ack(partition, offset):
    print(json.dumps({"partition": partition, "offset": offset}))


def record_line(partition, offset, timestamp, key, value, headers):
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": None if key is None else key.decode(),
        "value": None if value is None else value.decode(),
        "headers": [[k, v.decode()] for k, v in headers or []],
    }


def print_record(*record):
    print(json.dumps(record_line(*record)))


def steps(program):
    """Takes the steps of standard input, each with an answer; the first answer is that of the initialisation."""

    def answer(step, arguments):
        try:
            said = getattr(program, step)(**arguments) or {}
        except Exception as e:  # whatever the client says is the answer
            said = {"error": repr(e), "code": program.code(e)}
        print(json.dumps(said), flush=True)

    answer("init", {})
    for line in sys.stdin:
        arguments = json.loads(line)
        answer(arguments.pop("do"), arguments)
    program.close()


def until(what, done, seconds=40):
    """Calls done() until it is true; done() must itself take a little time."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
