"""The records that every client must carry unchanged."""
import time

# An hour ago: old enough that later timestamps are not in the future, young enough for no retention to touch them.
BASE_MS = int(time.time()) * 1000 - 3_600_000


def record(i, partition=0):
    """Record number i: null keys, null values, empty values, no headers, repeated header keys and non-ASCII text all occur."""
    key = None if i % 7 == 3 else f"key-{i}"
    # Not both null: kafka-python refuses to send that.
    value = None if i % 11 == 5 and key is not None else "" if i % 11 == 7 else f"wért-{i}-" + "x" * (i * 37 % 300)
    headers = [] if i % 3 == 0 else [["trace", f"id-{i}"], ["trace", "again"], ["höhe", "✓"]] if i % 3 == 1 else [["one", ""]]
    return {"partition": partition, "timestamp": BASE_MS + i * 10, "key": key, "value": value, "headers": headers}


def records(count, first=0, partition=0):
    return [record(i, partition) for i in range(first, first + count)]


def with_offsets(sent, first_offset=0):
    """What a consumer must see of records that went to one partition."""
    return [{**r, "offset": first_offset + i} for i, r in enumerate(sent)]


def plain(lines):
    """One order of keys, whatever the client printed."""
    return [{k: line[k] for k in ("partition", "timestamp", "key", "value", "headers", "offset")} for line in lines]
