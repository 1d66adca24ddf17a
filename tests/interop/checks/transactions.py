"""Transactions of other people's clients: what readers see of them, offsets in them, fencing and time-outs."""
import json
import re
import threading
import time

from checks import cluster, groups
from checks.clients import CLIENTS
from checks.files import FEW_PARTITIONS, dump, segments
from checks.kcat import kcat
from harness import process
from harness.broker import Kafka
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
    # librdkafka drops what it has not sent yet when it hears of it.
    assert (name := second.refused("send", topic=topic, records=batch("fenced", partitions=1))) in FENCED | {"PURGED"}, name
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
    # Long enough for the record to be there before, on a slow machine too.
    late = ctx.transactional(client, ctx.name, timeout_ms=8000)
    late.step("begin")
    late.send(topic, one)
    ctx.produce("java", topic, "none", two)
    until("the broker gives the transaction up", lambda: ctx.visible("java", topic, "read_committed"), 60)
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


@check("java-transactions-of-the-older-protocol", own_broker=True)
def older_protocol(ctx):
    """With transaction.version 1 the Java client, too, announces partitions and offsets before it writes them."""
    ctx.new_broker(**FEW_PARTITIONS)
    ctx.tool("features", "downgrade", "--feature", "transaction.version=1")
    topic, source, group = ctx.topic(partitions=3), ctx.topic("-in"), ctx.name + "-group"
    producer = ctx.transactional("java", ctx.name)
    one, two, three = map(batch, ("one", "two", "three"))
    producer.transaction(topic, one)
    producer.transaction(topic, two, "abort")
    state = described(ctx, ctx.name)
    same(state["ProducerEpoch"], "0", "an epoch that no transaction raises")
    ctx.produce("java", source, "none", batch("in", partitions=1))
    program = ctx.transactional("java", ctx.name + "-program", member=(source, group))
    program.poll(10)
    program.step("begin")
    program.step("offsets")
    program.step("commit")
    program.end()
    same(committed_offsets(ctx, group), {0: 10}, "offsets")
    # Clients learn of the level when they connect.
    ctx.tool("features", "upgrade", "--feature", "transaction.version=2")
    newer = ctx.transactional("java", ctx.name)
    before = int(described(ctx, ctx.name)["ProducerEpoch"])
    newer.transaction(topic, three)
    newer.transaction(topic, two, "abort")
    newer.end()
    same(int(described(ctx, ctx.name)["ProducerEpoch"]), before + 2, "an epoch that every transaction raises")
    sees(ctx, "java", topic, one + three, one + two + three + two)


@check("kcat-transactions", needs=("java", "kcat"))
def kcat_transactions(ctx):
    topic = ctx.topic(partitions=3)
    producer = ctx.transactional("java", ctx.name + "-java")
    one, two, three = map(batch, ("one", "two", "three"))
    producer.transaction(topic, one)
    producer.transaction(topic, two, "abort")
    # All of its input in one transaction.
    kcat(ctx, "-P", "-t", topic, "-p", "1", "-X", f"transactional.id={ctx.name}", stdin="".join(f"kcat {i}\n" for i in range(5)))
    own = [{"partition": 1, "value": f"kcat {i}"} for i in range(5)]
    producer.step("begin")
    producer.send(topic, three)

    def read(isolation):
        out = kcat(ctx, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J", "-X", f"isolation.level={isolation}")
        return values({"partition": r["partition"], "value": r["payload"]} for r in map(json.loads, out.lines()))

    same(read("read_committed"), values(one + own), "read_committed")
    same(read("read_uncommitted"), values(one + two + own + three), "read_uncommitted")
    producer.step("commit")
    producer.end()
    same(read("read_committed"), values(one + own + three), "read_committed, after the commit")


@check("one-topic-of-transactions-for-every-client", needs=("java", "go", "python", "node"), seconds=180)
def every_reader(ctx):
    """Every client writes transactions to one topic, and every client reads those of all."""
    topic = ctx.topic(partitions=3)
    committed, everything = [], []
    for client in CLIENTS:
        producer = ctx.transactional(client, f"{ctx.name}-{client}")
        for how in ("commit", "abort", "commit"):
            records = batch(f"{client} {how} {len(everything)}")
            producer.transaction(topic, records, how)
            everything += records
            committed += records if how == "commit" else []
        producer.end()
    opened = ctx.transactional("java", ctx.name + "-open")
    opened.step("begin")
    opened.send(topic, batch("open"))
    for client in CLIENTS:
        sees(ctx, client, topic, committed, everything + batch("open"))


def table(out):
    """Rows of a table of kafka-transactions, as dictionaries."""
    lines = [line.split() for line in out.lines() if line.strip()]
    return [dict(zip(lines[0], row)) for row in lines[1:]]


def described(ctx, identity):
    (row,) = table(ctx.tool("transactions", "describe", "--transactional-id", identity))
    return row


def opened(ctx, topic, records, identity=None, **options):
    """A producer with these records in a transaction that it has not ended."""
    producer = ctx.transactional("java", identity or ctx.name, **options)
    producer.step("begin")
    producer.send(topic, records)
    return producer


@check("transactions-tool-describes")
def tool_describes(ctx):
    topic = ctx.topic(partitions=3)
    started = time.time() * 1000
    producer = opened(ctx, topic, batch("one", partitions=2), timeout_ms=54321)
    state = described(ctx, ctx.name)
    partitions = {f"{topic}-0", f"{topic}-1"}
    same((state["TransactionalId"], state["TransactionState"], state["TransactionTimeoutMs"]), (ctx.name, "Ongoing", "54321"), "state")
    same(set(state["TopicPartitions"].split(",")), partitions, "partitions")
    assert started - 1000 < int(state["CurrentTransactionStartTimeMs"]) < time.time() * 1000 + 1000, state
    mine = [r for r in table(ctx.tool("transactions", "list")) if r["TransactionalId"] == ctx.name]
    same(mine, [{k: state[k] for k in ("TransactionalId", "ProducerId", "TransactionState")} | {"Coordinator": state["CoordinatorId"]}], "list")
    by_pattern = table(ctx.tool("transactions", "list", "--transactional-id-pattern", ctx.name + ".*"))
    same(by_pattern, mine, "list by a pattern")
    same(table(ctx.tool("transactions", "list", "--duration-filter", "600000", "--transactional-id-pattern", ctx.name)), [], "list of old ones")
    at = ("--topic", topic, "--partition", 1)
    (writer,) = table(ctx.tool("transactions", "describe-producers", *at))
    wanted = (state["ProducerId"], state["ProducerEpoch"], "9", "0")
    same(tuple(writer[k] for k in ("ProducerId", "ProducerEpoch", "LastSequence", "CurrentTransactionStartOffset")), wanted, "producer")
    producer.step("commit")
    until("the commit is complete", lambda: described(ctx, ctx.name)["TransactionState"] == "CompleteCommit")
    state = described(ctx, ctx.name)
    same((state["TopicPartitions"], state["CurrentTransactionStartTimeMs"]) if "TopicPartitions" in state else None, None, str(state))
    (writer,) = table(ctx.tool("transactions", "describe-producers", *at))
    same((writer["ProducerId"], writer["CurrentTransactionStartOffset"]), (state["ProducerId"], "None"), "producer after the commit")
    producer.transaction(topic, batch("two", partitions=1), "abort")
    until("the abort is complete", lambda: described(ctx, ctx.name)["TransactionState"] == "CompleteAbort")
    producer.end()


@check("transactions-tool-ends-open-transactions")
def tool_ends(ctx):
    topic = ctx.topic()
    one, two, three = (batch(n, partitions=1) for n in ("one", "two", "three"))
    left = opened(ctx, topic, one, ctx.name + "-left")
    out = ctx.tool("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", 0)
    same(table(out), [], "a transaction that its coordinator knows does not hang")
    (writer,) = table(ctx.tool("transactions", "describe-producers", "--topic", topic, "--partition", 0))
    ctx.tool("transactions", "abort", "--topic", topic, "--partition", 0, "--start-offset", writer["CurrentTransactionStartOffset"])
    (writer,) = table(ctx.tool("transactions", "describe-producers", "--topic", topic, "--partition", 0))
    same(writer["CurrentTransactionStartOffset"], "None", "start of a transaction after its abort")
    left.kill()
    forced = opened(ctx, topic, two, ctx.name + "-forced")
    ctx.tool("transactions", "forceTerminateTransaction", "--transactionalId", ctx.name + "-forced")
    # The tool takes the transactional id over, as a producer does.
    until("the abort is complete", lambda: described(ctx, ctx.name + "-forced")["TransactionState"] in ("CompleteAbort", "Empty"))
    assert (name := forced.refused("commit")) in LATE, name
    producer = ctx.transactional("java", ctx.name)
    producer.transaction(topic, three)
    producer.end()
    sees(ctx, "java", topic, three, one + two + three)


@check("perf-test-with-transactions")
def perf_test(ctx):
    topic, count = ctx.topic(partitions=2), 5000
    out = process.run(ctx.command(
        "producer-perf-test", "--bootstrap-server", ctx.bootstrap, "--topic", topic, "--num-records", count, "--record-size", 100,
        "--throughput", 2000, "--transactional-id", ctx.name, "--transaction-duration-ms", 200))
    assert f"{count} records sent" in out.out, out.out
    same(len(ctx.visible("java", topic, "read_committed")), count, "records that were committed")
    markers = sum(ctx.offsets(topic, -1).values()) - count
    assert markers >= 10, f"2.5 s in transactions of 200 ms left {markers} markers"


TRANSITION = re.compile(r'key: \{"type":"0","data":\{"transactionalId":"([^"]+)"\}\} payload: \{"version":"(\d)","data":(\{.*\})\}$')


def transitions(ctx, broker):
    """What a stopped broker has logged of its transactional ids: the id, the version of the record, and the state."""
    logs = [log for d in sorted(broker.data.glob("__transaction_state-*")) for log in segments(d) if log.stat().st_size]
    lines = dump(ctx, "--transaction-log-decoder", files=logs)
    assert lines and not [line for line in lines if "isvalid: false" in line], lines
    return [(m[1], m[2], json.loads(m[3])) for m in map(TRANSITION.search, lines) if m]


@check("dump-log-of-transaction-state", needs=("java", "python"), own_broker=True)
def transaction_state(ctx):
    """Every step of a transaction is logged as Kafka logs it, with both protocols."""
    broker = ctx.new_broker(**FEW_PARTITIONS)
    topic = ctx.topic(partitions=2)
    for client in ("java", "confluent-kafka"):
        producer = ctx.transactional(client, client, timeout_ms=54321)
        producer.transaction(topic, batch("one", partitions=2))
        until("the commit is complete", lambda: described(ctx, client)["TransactionState"] == "CompleteCommit")
        producer.transaction(topic, batch("two", partitions=1), "abort")
        until("the abort is complete", lambda: described(ctx, client)["TransactionState"] == "CompleteAbort")
        producer.end()
    broker.stop()
    logged = {"java": [], "confluent-kafka": []}
    ids = {}
    for identity, version, state in transitions(ctx, broker):
        # Version 1 of the record came with transaction.version 2.
        same((version, state["transactionTimeoutMs"]), ("1", 54321), f"a record of {identity}")
        same(ids.setdefault(identity, state["producerId"]), state["producerId"], f"producer id of {identity}")
        partitions = {t["topic"]: sorted(t["partitionIds"]) for t in state["transactionPartitions"] or []}
        what = (state["transactionStatus"], state["producerEpoch"], partitions.get(topic, []), state.get("clientTransactionVersion", 0))
        started, updated = state["transactionStartTimestampMs"], state["transactionLastUpdateTimestampMs"]
        assert started == -1 if what[0] == "Empty" else 0 < started <= updated, state
        if logged[identity] and logged[identity][-1][:2] == what[:2]:
            logged[identity].pop()  # one partition more
        logged[identity].append(what)
    for identity, version, bump in (("java", 2, 1), ("confluent-kafka", 0, 0)):
        # Since transaction.version 2 the epoch goes up with every transaction.
        wanted = [
            ("Empty", 0, [], 0),
            ("Ongoing", 0, [0, 1], version), ("PrepareCommit", bump, [0, 1], version), ("CompleteCommit", bump, [], version),
            ("Ongoing", bump, [0], version), ("PrepareAbort", 2 * bump, [0], version), ("CompleteAbort", 2 * bump, [], version),
        ]
        same(logged[identity], wanted, f"transitions of {identity}")


def survives(ctx, end):
    """Transactional ids are known again after a restart, with whatever they had open."""
    broker = ctx.new_broker(**FEW_PARTITIONS)
    topic = ctx.topic(partitions=3)
    one, two, three, four, five, six, seven = map(batch, ("one", "two", "three", "four", "five", "six", "seven"))
    commits, aborts = opened(ctx, topic, one, "commits"), opened(ctx, topic, two, "aborts")
    opened(ctx, topic, three, "left").kill()
    goes_on = ctx.transactional("java", "goes-on")
    goes_on.transaction(topic, four)
    goes_on.transaction(topic, five, "abort")
    until("the abort is complete", lambda: described(ctx, "goes-on")["TransactionState"] == "CompleteAbort")

    def states():
        one = {k: v for k, v in described(ctx, "commits").items() if k != "TransactionDurationMs"}
        return one, sorted(table(ctx.tool("transactions", "list")), key=lambda row: row["TransactionalId"])

    before = states()
    end(broker)
    broker.start()
    same(states(), before, "transactional ids")
    sees(ctx, "java", topic, [], one + two + three + four + five)
    commits.send(topic, six)
    commits.step("commit")
    aborts.step("abort")
    goes_on.transaction(topic, seven)
    sees(ctx, "java", topic, one, one + two + three + four + five + six + seven)
    ctx.transactional("java", "left").end()
    sees(ctx, "java", topic, one + four + six + seven, one + two + three + four + five + six + seven)
    for producer in (commits, aborts, goes_on):
        producer.end()


@check("transactions-survive-a-stop", own_broker=True, seconds=180)
def survive_a_stop(ctx):
    survives(ctx, lambda broker: broker.stop())


@check("transactions-survive-a-kill", own_broker=True, seconds=180)
def survive_a_kill(ctx):
    survives(ctx, lambda broker: broker.kill())


@check("transaction-that-was-decided-survives-a-kill", own_broker=True, seconds=500)
def decided(ctx):
    """A commit is acknowledged once it is logged; the broker dies before it has told the partitions, and tells them later."""
    broker = ctx.new_broker(**FEW_PARTITIONS)
    topic = ctx.topic(partitions=40)
    producer = ctx.transactional("java", ctx.name)
    committed, left = [], []
    for number in range(40):
        records = batch(str(number), count=1, partitions=40)
        committed += records
        producer.step("begin")
        producer.send(topic, records)
        producer.ask("commit")
        # The moment between the decision and its end is short: it is looked for a little later each time.
        time.sleep(number % 20 * 0.001)
        broker.kill()
        left.append(transitions(ctx, broker)[-1][2]["transactionStatus"])
        broker.start()
        producer.answer("commit")
        until("the commit is complete", lambda: described(ctx, ctx.name)["TransactionState"] == "CompleteCommit", 30)
        if len(left) >= 2 and "PrepareCommit" in left:
            break
    assert "PrepareCommit" in left, f"no kill came in time: {left}"
    producer.transaction(topic, batch("last", count=1, partitions=40))
    producer.end()
    committed += batch("last", count=1, partitions=40)
    sees(ctx, "java", topic, committed, committed)


def broker_deaths(client, part):
    @check(f"{client}-exactly-once-over-broker-kills", needs=("java", part) if part != "java" else ("java",), own_broker=True, seconds=240)
    def body(ctx):
        """The broker dies in every part of a transaction, under a process that goes on."""
        broker = ctx.new_broker(**FEW_PARTITIONS)
        group, source, target = ctx.name + "-group", ctx.topic("-in", partitions=2), ctx.topic("-out", partitions=2)
        sent = batch("in", count=50, partitions=2)
        ctx.produce("java", source, "none", sent)
        program = ctx.transactional(client, ctx.name, member=(source, group))
        deaths = ["begun", "sent", "with offsets", "committing", "committed"]
        got = []

        def dies(now):
            if deaths and deaths[0] == now:
                deaths.pop(0)
                broker.kill()
                broker.start()

        while len(got) < len(sent):
            try:
                more = program.poll(10)
                assert more, f"no records after {len(got)}"
                program.step("begin")
                dies("begun")
                program.send(target, more)
                dies("sent")
                program.step("offsets")
            except Refused as e:
                # librdkafka may take the member that it was before the kill for another, and give up.
                assert e.name in ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "FATAL"), e
                program.kill()
                program = ctx.transactional(client, ctx.name, member=(source, group))
                continue
            dies("with offsets")
            program.ask("commit")
            dies("committing")
            program.answer("commit")
            got += more
            dies("committed")
        program.end()
        same(deaths, [], "deaths that were not had")
        same(values(ctx.visible("java", target, "read_committed")), values(sent), "each record once and in order")
        same(committed_offsets(ctx, group), {0: 50, 1: 50}, "offsets")


broker_deaths("java", "java")
broker_deaths("confluent-kafka", "python")


@check("cluster-transactions-survive-their-coordinator", needs=("java", "python"), own_broker=True, seconds=300)
def coordinator_dies(ctx):
    nodes = ctx.new_cluster(**FEW_PARTITIONS)
    topic = cluster.replicated(ctx)
    same({r["Leader"] for r in cluster.rows(ctx, topic).values()}, {"1", "2", "3"}, "leaders")
    committed = []
    for client, asked in (("java", True), ("confluent-kafka", False)):
        name = f"{client}-{asked}"
        producer = ctx.transactional(client, name)
        producer.step("begin")
        producer.send(topic, batch(name))
        coordinator = int(described(ctx, name)["CoordinatorId"])
        if asked:
            producer.ask("commit")
        nodes.node(coordinator).kill()
        if not asked:
            producer.send(topic, batch(name + " more"))
            producer.ask("commit")
        producer.answer("commit")
        producer.transaction(topic, batch(name + " aborted"), "abort")
        producer.end()
        committed += batch(name) + ([] if asked else batch(name + " more"))
        nodes.restart(coordinator)
        cluster.in_sync(ctx, topic)
    same(values(ctx.visible("java", topic, "read_committed")), values(committed), "what was committed")


class Load(threading.Thread):
    """Transactions with a record for each partition, every fourth aborted, until told to stop."""

    def __init__(self, ctx, client, topic):
        super().__init__(daemon=True)
        self.producer = ctx.transactional(client, f"{ctx.name}-{client}")
        self.client, self.topic = client, topic
        self.committed = []
        self.enough = False
        self.failure = None
        self.start()

    def run(self):
        try:
            count = 0
            while not self.enough:
                records = batch(f"{self.client} {count}", count=1)
                self.producer.transaction(self.topic, records, "abort" if count % 4 == 3 else "commit")
                if count % 4 != 3:
                    self.committed += records
                count += 1
            self.producer.end()
        except Exception as e:  # told by the thread that waits
            self.failure = e

    def finish(self):
        self.enough = True
        self.join(timeout=90 * process.SLOW)
        assert self.failure is None, f"{self.client}: {self.failure}"
        assert not self.is_alive(), f"{self.client} does not end"
        return self.committed


def rolling(ctx, nodes, topic, order, end):
    loads = [Load(ctx, client, topic) for client in ("java", "confluent-kafka", "franz-go")]
    for number in order:
        counts = [len(load.committed) for load in loads]
        end(nodes.node(number))
        nodes.restart(number)
        cluster.in_sync(ctx, topic, seconds=60)
        for load, count in zip(loads, counts):
            until(f"{load.client} goes on", lambda: load.failure or len(load.committed) > count + 10, 60)
    for load in loads:
        load.finish()
    seen = values(ctx.visible("java", topic, "read_committed"))
    for load in loads:
        mine = {p: [v for v in found if v.startswith(load.client + " ")] for p, found in seen.items()}
        same(mine, values(load.committed), f"what {load.client} committed, each once and in order")


@check("cluster-rolling-restart-under-transactions", needs=("java", "go", "python"), own_broker=True, seconds=300)
def rolling_restart(ctx):
    nodes = ctx.new_cluster(**FEW_PARTITIONS)
    rolling(ctx, nodes, cluster.replicated(ctx), (1, 2, 3), lambda node: node.stop())


@check("cluster-rolling-kills-under-transactions", needs=("java", "go", "python"), own_broker=True, seconds=300)
def rolling_kills(ctx):
    nodes = ctx.new_cluster(**FEW_PARTITIONS)
    rolling(ctx, nodes, cluster.replicated(ctx), (1, 2, 3), lambda node: node.kill())


def mixed(ctx, kinds):
    """Partitions, coordinators and the coordinator of the group are on brokers of both kinds."""
    nodes = ctx.new_cluster(kinds, 1, **FEW_PARTITIONS)
    topic = cluster.replicated(ctx)
    same({r["Leader"] for r in cluster.rows(ctx, topic).values()}, {"1", "2", "3"}, "leaders")
    committed, everything, coordinators = [], [], set()
    producers = {}
    for number in range(9):
        client = ("java", "confluent-kafka", "franz-go")[number % 3]
        name = f"{client}-{number}"
        producers[name] = ctx.transactional(client, name)
        producers[name].transaction(topic, batch(name + " aborted"), "abort")
        producers[name].transaction(topic, batch(name))
        everything += batch(name + " aborted") + batch(name)
        committed += batch(name)
        coordinators.add(described(ctx, name)["CoordinatorId"])
    same(coordinators, {"1", "2", "3"}, "coordinators")
    sees(ctx, "java", topic, committed, everything)
    for producer in producers.values():
        producer.end()
    group, target = ctx.name + "-group", ctx.topic("-out", partitions=3)
    program = ctx.transactional("java", ctx.name, member=(topic, group))
    got = []
    while len(got) < len(committed):
        more = program.poll(50)
        assert more, f"no records after {len(got)}"
        program.step("begin")
        program.send(target, more)
        program.step("offsets")
        program.step("commit")
        got += more
    program.end()
    same(values(ctx.visible("java", target, "read_committed")), values(committed), "what the group read and wrote")
    rolling(ctx, nodes, topic, (2, 3), lambda node: node.stop())


@check("cluster-transactions-under-a-kafka-controller", needs=("java", "go", "python"), own_broker=True, seconds=300)
def under_kafka(ctx):
    mixed(ctx, [Kafka, ctx.kind, ctx.kind])


@check("cluster-transactions-under-highwater-controllers", needs=("java", "go", "python"), own_broker=True, seconds=300)
def over_kafka(ctx):
    mixed(ctx, [ctx.kind, ctx.kind, Kafka])
