"""Three nodes, with Kafka's own tools; and clusters of Highwater and Apache Kafka together."""
import json
import re

from harness import process
from harness.broker import Highwater, Kafka
from harness.check import check, same
from harness.process import until


def rows(ctx, topic, code=0):
    """Partition to the fields that topics --describe prints."""
    out = ctx.tool("topics", "--describe", "--topic", topic, code=code).out
    found = {}
    for line in out.splitlines():
        fields = dict(re.findall(r"(\w+): ?([^\t]*)", line.strip()))
        if "Partition" in fields:
            found[int(fields["Partition"])] = {k: v.strip() for k, v in fields.items()}
    return found


def in_sync(ctx, topic, count=3, seconds=30):
    def met():
        # The node that is asked may not have heard of the topic yet.
        partitions = rows(ctx, topic, code=None).values()
        return partitions and all(len(p["Isr"].split(",")) == count and p["Leader"].isdigit() for p in partitions)

    until(f"{count} replicas of {topic} in sync", met, seconds)


def replicated(ctx, partitions=3):
    topic = ctx.name
    ctx.tool("topics", "--create", "--topic", topic, "--partitions", partitions, "--replication-factor", 3, "--config", "min.insync.replicas=2")
    in_sync(ctx, topic)
    return topic


def produce(ctx, topic, *lines):
    ctx.tool("console-producer", "--topic", topic, "--command-property", "acks=all", stdin="".join(line + "\n" for line in lines))


def consumed(ctx, topic, count):
    out = ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", count, "--timeout-ms", 30000)
    return sorted(line for line in out.lines() if line.strip())


@check("cluster-describe-and-verify", seconds=240, own_broker=True)
def describe(ctx):
    ctx.new_cluster()
    topic = replicated(ctx)
    partitions = rows(ctx, topic)
    for fields in partitions.values():
        same(sorted(fields["Replicas"].split(",")), ["1", "2", "3"], "replicas")
        assert fields["Leader"] == fields["Replicas"].split(",")[0], f"not the preferred leader: {fields}"
    same(len({fields["Leader"] for fields in partitions.values()}), 3, "leaders of three partitions")
    produce(ctx, topic, *[f"line {n}" for n in range(100)])
    same(len(consumed(ctx, topic, 100)), 100, "records")
    # Nothing is in trouble, and all replicas hold the same.
    for trouble in ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"):
        out = ctx.tool("topics", "--describe", trouble)
        same([line for line in out.lines() if line.strip()], [], trouble)
    verify = ctx.background(
        ctx.command("replica-verification", "--broker-list", ctx.bootstrap, "--topics-include", topic, "--report-interval-ms", 1000),
        "verification.txt",
    )
    said = ctx.directory / "verification.txt"
    until("two reports of no lag", lambda: said.read_text().count("max lag is 0") >= 2, 30)
    process.end(verify)


@check("cluster-metadata-quorum", seconds=120, own_broker=True)
def quorum(ctx):
    cluster = ctx.new_cluster()
    topic = replicated(ctx)
    out = ctx.tool("metadata-quorum", "describe", "--status").out
    fields = dict(re.findall(r"^(\w+):\s+(.*)$", out, re.M))
    assert fields["LeaderId"] in ("1", "2", "3") and int(fields["HighWatermark"]) > 0, out
    same(sorted(re.findall(r"\"id\": (\d)", fields["CurrentVoters"]) or re.findall(r"\d", fields["CurrentVoters"])), ["1", "2", "3"], "voters")
    out = ctx.tool("metadata-quorum", "describe", "--replication").out
    table = [line.split() for line in out.splitlines() if re.match(r"^\d", line)]
    same(sorted(row[0] for row in table), ["1", "2", "3"], "replicas of the metadata log")
    same(sorted(row[-1] for row in table), ["Follower", "Follower", "Leader"], "their states")
    # A new active controller within seconds, and the cluster takes changes again.
    cluster.node(int(fields["LeaderId"])).kill()
    survivor = next(n for n in (1, 2, 3) if n != int(fields["LeaderId"]))
    ctx.broker = cluster.node(survivor)
    ctx.tool("configs", "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=3600000")
    out = ctx.tool("metadata-quorum", "describe", "--status").out
    assert f"LeaderId:              {fields['LeaderId']}" not in out, out


@check("cluster-leader-election", seconds=180, own_broker=True)
def election(ctx):
    cluster = ctx.new_cluster(auto__leader__rebalance__enable="false")
    topic = replicated(ctx, partitions=1)
    preferred = int(rows(ctx, topic)[0]["Leader"])
    cluster.node(preferred).stop()
    ctx.broker = cluster.node(preferred % 3 + 1)
    until("another leader", lambda: rows(ctx, topic)[0]["Leader"] not in ("none", str(preferred)), 30)
    produce(ctx, topic, "while it was away")
    cluster.restart(preferred)
    in_sync(ctx, topic)
    assert rows(ctx, topic)[0]["Leader"] != str(preferred)
    ctx.tool("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", 0)
    same(rows(ctx, topic)[0]["Leader"], str(preferred), "leader after a preferred election")
    same(consumed(ctx, topic, 1), ["while it was away"], "records")


@check("cluster-reassign-partitions", seconds=180, own_broker=True)
def reassign(ctx):
    ctx.new_cluster()
    topic = ctx.name
    ctx.tool("topics", "--create", "--topic", topic, "--replica-assignment", "1:2", "--config", "min.insync.replicas=1")
    in_sync(ctx, topic, 2)
    produce(ctx, topic, *[f"line {n}" for n in range(1000)])
    plan = ctx.directory / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [3, 2]}]}))
    ctx.tool("reassign-partitions", "--reassignment-json-file", plan, "--execute")

    def complete():
        out = ctx.tool("reassign-partitions", "--reassignment-json-file", plan, "--verify", code=None).out
        return "is completed" in out

    until("the reassignment", complete, 60)
    fields = rows(ctx, topic)[0]
    same((fields["Replicas"], sorted(fields["Isr"].split(","))), ("3,2", ["2", "3"]), "replicas")
    same(len(consumed(ctx, topic, 1000)), 1000, "records")
    out = ctx.tool("reassign-partitions", "--list").out
    assert "No partition reassignments found" in out, out


@check("cluster-tools", seconds=180, own_broker=True)
def tools(ctx):
    ctx.new_cluster()
    topic = replicated(ctx)
    out = process.run(ctx.command("cluster", "list-endpoints", "--bootstrap-server", ctx.bootstrap))
    same(sorted(line.split()[0] for line in out.lines()[1:] if line.strip()), ["1", "2", "3"], "endpoints")
    out = process.run(ctx.command("features", "--bootstrap-server", ctx.bootstrap, "describe")).out
    assert re.search(r"metadata.version\s.*FinalizedVersionLevel: 4\.", out), out
    ctx.tool("configs", "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=3600000")
    until("the setting", lambda: "retention.ms=3600000" in ctx.tool("configs", "--describe", "--entity-type", "topics", "--entity-name", topic).out, 15)
    ctx.tool("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=7200000")
    for node in (1, 2, 3):
        described = ("configs", "--describe", "--entity-type", "brokers", "--entity-name", node, "--all")
        until(f"the setting of node {node}", lambda: "log.retention.ms=7200000" in ctx.tool(*described).out)


@check("cluster-group-survives-its-coordinator", seconds=180, own_broker=True)
def coordinator(ctx):
    cluster = ctx.new_cluster()
    topic = replicated(ctx)
    produce(ctx, topic, *[f"line {n}" for n in range(50)])
    group = ("--group", "g", "--timeout-ms", 30000)
    ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 50, *group)
    out = ctx.tool("consumer-groups", "--describe", "--group", "g", "--state").out
    coordinator_id = int(re.search(r"\((\d)\)", out).group(1))
    cluster.node(coordinator_id).kill()
    ctx.broker = cluster.node(coordinator_id % 3 + 1)
    out = ctx.tool("consumer-groups", "--describe", "--group", "g", seconds=90).out
    rows = [line.split() for line in out.splitlines() if line.startswith("g ")]
    # A partition without records may have had no position yet when the consumer had all of them and went.
    same(sum(int(row[3]) for row in rows), 50, "offsets that the next coordinator knows")
    same({row[5] for row in rows}, {"0"}, "their lags")


def mixed(ctx, kinds, controllers):
    """Produces through whoever leads, restarts nodes of either kind, and finds every record again."""
    cluster = ctx.new_cluster(kinds, controllers)
    topic = replicated(ctx)
    produce(ctx, topic, *[f"a {n}" for n in range(100)])
    leaders = {fields["Leader"] for fields in rows(ctx, topic).values()}
    same(leaders, {"1", "2", "3"}, "leaders of both kinds")
    for node in (2, 3):
        cluster.node(node).stop()
        ctx.broker = cluster.node(1)
        until("leaders without it", lambda: all(p["Leader"] not in ("none", str(node)) for p in rows(ctx, topic).values()), 40)
        produce(ctx, topic, *[f"{node} {n}" for n in range(100)])
        cluster.restart(node)
        in_sync(ctx, topic, seconds=60)
    same(len(consumed(ctx, topic, 300)), 300, "records")
    verify = ctx.background(
        ctx.command("replica-verification", "--broker-list", ctx.bootstrap, "--topics-include", topic, "--report-interval-ms", 1000),
        "verification.txt",
    )
    said = ctx.directory / "verification.txt"
    until("two reports of no lag", lambda: said.read_text().count("max lag is 0") >= 2, 40)
    process.end(verify)


@check("cluster-highwater-brokers-under-a-kafka-controller", seconds=300, own_broker=True)
def under_kafka(ctx):
    mixed(ctx, [Kafka, Highwater, Highwater], 1)


@check("cluster-a-kafka-broker-under-highwater-controllers", seconds=300, own_broker=True)
def over_kafka(ctx):
    mixed(ctx, [Highwater, Highwater, Kafka], 1)
