"""Records as JSON lines, shared by the Python clients."""
import json
import sys
import time

# The timestamp of first records: an hour ago, so that neither retention nor the check for the future touches them.
BASE_MS = int(time.time()) * 1000 - 3_600_000


def records_in():
    for line in sys.stdin.buffer:
        r = json.loads(line)
        yield (
            r["partition"],
            r["timestamp"],
            None if r["key"] is None else r["key"].encode(),
            None if r["value"] is None else r["value"].encode(),
            [(k, v.encode()) for k, v in r["headers"]],
        )


def print_ack(partition, offset):
    print(json.dumps({"partition": partition, "offset": offset}))


def print_record(partition, offset, timestamp, key, value, headers):
    line = {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": None if key is None else key.decode(),
        "value": None if value is None else value.decode(),
        "headers": [[k, v.decode()] for k, v in headers or []],
    }
    print(json.dumps(line))


def until(what, done, seconds=40):
    """Calls done() until it is true; done() must itself take a little time."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
