"""Transactions of other people's clients: what readers see of them, offsets in them, fencing and time-outs."""
import time

from checks import groups
from checks.clients import CLIENTS
from harness.check import check, same
from harness.process import until
from harness.records import BASE_MS
from harness.transactional import Refused

# What a producer hears whose transactional id another has taken over, or whose transaction the broker has aborted: which
# of them depends on the version of the request.
FENCED = {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
# With transaction.version 2 a transaction that ran out of time leaves its producer's epoch be.
LATE = FENCED | {"INVALID_TXN_STATE"}


def batch(name, count=10, partitions=3):
    """Records for each partition, told apart by their values."""
    return [
        {"partition": p, "timestamp": BASE_MS + i, "key": f"{name}-{i}", "value": f"{name} {p} {i}", "headers": []}
        for p in range(partitions) for i in range(count)
    ]


def values(records):
    """The values of each partition, in order."""
    found = {}
    for r in records:
        found.setdefault(r["partition"], []).append(r["value"])
    return found


def sees(ctx, client, topic, committed, everything):
    same(values(ctx.visible(client, topic, "read_committed")), values(committed), f"{client} with read_committed")
    same(values(ctx.visible(client, topic, "read_uncommitted")), values(everything), f"{client} with read_uncommitted")


def committed_offsets(ctx, group):
    rows = [r for r in groups.rows(ctx, group) if r["CURRENT-OFFSET"] != "-"]
    return {int(r["PARTITION"]): int(r["CURRENT-OFFSET"]) for r in rows}


def commit_and_abort(ctx, client):
    topic = ctx.topic(partitions=3)
    producer = ctx.transactional(client, ctx.name)
    one, two, three, four, five, six = map(batch, ("one", "two", "three", "four", "five", "six"))
    producer.transaction(topic, one)
    producer.transaction(topic, two, "abort")
    producer.transaction(topic, three)
    producer.step("begin")
    producer.send(topic, four)
    # In no transaction, but behind one that is open.
    ctx.produce("java", topic, "none", five)
    readers = {client, "java"}
    for reader in readers:
        sees(ctx, reader, topic, one + three, one + two + three + four + five)
    producer.step("commit")
    producer.transaction(topic, six, "abort")
    for reader in readers:
        sees(ctx, reader, topic, one + three + four + five, one + two + three + four + five + six)
    producer.end()
    same(ctx.offsets(topic, -1), {p: 6 * 10 + 5 for p in range(3)}, "ends: records and one marker for each transaction")


def fences(ctx, client):
    topic = ctx.topic()
    one, two, three, four = (batch(n, partitions=1) for n in ("one", "two", "three", "four"))
    first = ctx.transactional(client, ctx.name)
    first.transaction(topic, one)
    first.step("begin")
    first.send(topic, two)
    second = ctx.transactional(client, ctx.name)
    # Whoever takes a transactional id over aborts what was open, before it does anything else.
    second.transaction(topic, three)
    sees(ctx, "java", topic, one + three, one + two + three)
    assert (name := first.refused("commit")) in FENCED, name
    second.step("begin")
    third = ctx.transactional(client, ctx.name)
    assert (name := second.refused("send", topic=topic, records=batch("fenced", partitions=1))) in FENCED, name
    third.transaction(topic, four)
    third.end()
    sees(ctx, "java", topic, one + three + four, one + two + three + four)


def offsets(ctx, client):
    group, source, target = ctx.name + "-group", ctx.topic("-in", partitions=2), ctx.topic("-out", partitions=2)
    sent = batch("in", partitions=2)
    ctx.produce("java", source, "none", sent)
    program = ctx.transactional(client, ctx.name, member=(source, group))

    def transform(how):
        got = program.poll(5)
        assert got, "the member reads nothing"
        program.step("begin")
        program.send(target, got)
        program.step("offsets")
        program.step(how)
        return got

    aborted = transform("abort")
    same(committed_offsets(ctx, group), {}, "offsets after an abort")
    program.end()
    program = ctx.transactional(client, ctx.name, member=(source, group))
    got = []
    while len(got) < len(sent):
        got += transform("commit")
        if len(got) < 10:
            moved = {p: len(v) for p, v in values(got).items()}
            same(committed_offsets(ctx, group), moved, "offsets after a commit")
    program.end()
    same(values(got), values(sent), "a group whose offsets were aborted starts over")
    same(committed_offsets(ctx, group), {0: 10, 1: 10}, "offsets at the end")
    sees(ctx, "java", target, sent, aborted + sent)


def exactly_once(ctx, client):
    """A process that reads, transforms and writes dies in every part of a transaction, and another goes on."""
    group, source, target = ctx.name + "-group", ctx.topic("-in", partitions=2), ctx.topic("-out", partitions=2)
    sent = batch("in", count=100, partitions=2)
    ctx.produce("java", source, "none", sent)
    for death in ("sent", "with offsets", "committing", "having asked for the commit", None):
        program = ctx.transactional(client, ctx.name, member=(source, group))
        taken = 0
        # The first records come when the group has given up the member that died.
        while got := program.poll(20, seconds=5 if taken else 40):
            taken += 1
            dies = taken == 2 and death
            program.step("begin")
            program.send(target, got)
            if dies == "sent":
                break
            program.step("offsets")
            if dies == "with offsets":
                break
            program.ask("commit")
            if dies == "committing":
                break
            if dies == "having asked for the commit":
                time.sleep(0.01)
                break
            program.answer("commit")
        assert taken > 1 or death is None, "nothing was left to die over"
        if death is None:
            program.end()
        else:
            program.kill()
    same(values(ctx.visible("java", target, "read_committed")), values(sent), "each record once and in order")
    same(committed_offsets(ctx, group), {0: 100, 1: 100}, "offsets")


def times_out(ctx, client):
    topic = ctx.topic()
    one, two, three = (batch(n, partitions=1) for n in ("one", "two", "three"))
    late = ctx.transactional(client, ctx.name, timeout_ms=2000)
    late.step("begin")
    late.send(topic, one)
    ctx.produce("java", topic, "none", two)
    until("the broker gives the transaction up", lambda: ctx.visible("java", topic, "read_committed"))
    assert (name := late.refused("commit")) in LATE, name
    late.kill()
    producer = ctx.transactional(client, ctx.name)
    producer.transaction(topic, three)
    producer.end()
    sees(ctx, "java", topic, two + three, one + two + three)
    try:
        ctx.transactional(client, ctx.name, timeout_ms=900_001)
    except Refused as e:
        same(e.name, "INVALID_TRANSACTION_TIMEOUT", "more than transaction.max.timeout.ms")
    else:
        raise AssertionError("more than transaction.max.timeout.ms was granted")


def client_checks(client, part):
    needs = ("java", part) if part != "java" else ("java",)
    for name, body in (
        ("transactions", commit_and_abort), ("fences-a-transactional-id", fences), ("transactional-offsets", offsets),
        ("exactly-once", exactly_once), ("transaction-times-out", times_out),
    ):
        check(f"{client}-{name}", needs=needs, seconds=180)(lambda ctx, body=body: body(ctx, client))


for name, (part, _, _) in CLIENTS.items():
    client_checks(name, part)
