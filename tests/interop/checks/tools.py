"""The other tools: API versions, log directories, cluster, transactions, performance and verifiable programs, and the Java client."""
import json
import re

from harness import process
from harness.check import check, same
from harness.process import until

# Key: name and the range that a Kafka 4.4 broker advertises, for what a broker without transactions, share groups,
# streams and security must serve.
SERVED = {
    0: ("Produce", 0, 13), 1: ("Fetch", 4, 18), 2: ("ListOffsets", 1, 11), 3: ("Metadata", 0, 13), 8: ("OffsetCommit", 2, 10),
    9: ("OffsetFetch", 1, 10), 10: ("FindCoordinator", 0, 6), 11: ("JoinGroup", 0, 9), 12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5), 14: ("SyncGroup", 0, 5), 15: ("DescribeGroups", 0, 6), 16: ("ListGroups", 0, 5),
    18: ("ApiVersions", 0, 5), 19: ("CreateTopics", 2, 7), 20: ("DeleteTopics", 1, 6), 21: ("DeleteRecords", 0, 2),
    22: ("InitProducerId", 0, 5), 23: ("OffsetForLeaderEpoch", 2, 4), 27: ("WriteTxnMarkers", 1, 2), 28: ("TxnOffsetCommit", 0, 6), 32: ("DescribeConfigs", 1, 4), 33: ("AlterConfigs", 0, 2),
    34: ("AlterReplicaLogDirs", 1, 2), 48: ("DescribeClientQuotas", 0, 1), 49: ("AlterClientQuotas", 0, 1),
    35: ("DescribeLogDirs", 1, 5), 37: ("CreatePartitions", 0, 3), 42: ("DeleteGroups", 0, 3), 44: ("IncrementalAlterConfigs", 0, 1),
    47: ("OffsetDelete", 0, 0), 60: ("DescribeCluster", 0, 2), 61: ("DescribeProducers", 0, 0), 65: ("DescribeTransactions", 0, 0),
    43: ("ElectLeaders", 0, 2), 45: ("AlterPartitionReassignments", 0, 1), 46: ("ListPartitionReassignments", 0, 0),
    55: ("DescribeQuorum", 0, 2), 57: ("UpdateFeatures", 0, 2), 64: ("UnregisterBroker", 0, 0), 94: ("UnregisterController", 0, 0),
    66: ("ListTransactions", 0, 2), 75: ("DescribeTopicPartitions", 0, 0),
}


@check("broker-api-versions")
def api_versions(ctx):
    out = ctx.tool("broker-api-versions").out
    got = {}
    for name, key, low, high in re.findall(r"(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[", out):
        got[int(key)] = (name, int(low), int(high or low))
    for key, wanted in SERVED.items():
        same(got.get(key), wanted, f"API {key}")


@check("log-dirs")
def log_dirs(ctx):
    topic = ctx.topic(partitions=2)
    ctx.tool("console-producer", "--topic", topic, stdin="some bytes\n")
    out = ctx.tool("log-dirs", "--describe", "--topic-list", topic)
    answer = json.loads(next(line for line in out.lines() if line.startswith("{")))
    (broker,) = answer["brokers"]
    (directory,) = broker["logDirs"]
    assert directory["error"] is None, directory
    partitions = {p["partition"]: p for p in directory["partitions"]}
    same(sorted(partitions), [topic + "-0", topic + "-1"], "partitions")
    assert sum(p["size"] for p in partitions.values()) > 60, partitions
    assert all(p["offsetLag"] == 0 and not p["isFuture"] for p in partitions.values()), partitions


@check("log-dirs-move", own_broker=True, seconds=120)
def move_between_log_dirs(ctx):
    dirs = [str(ctx.directory / "broker" / "data"), str(ctx.directory / "broker" / "other")]
    ctx.new_broker(log__dirs=",".join(dirs))
    topic = ctx.topic(partitions=2)
    ctx.tool("console-producer", "--topic", topic, stdin="".join(f"line {n}\n" for n in range(2000)))

    def places():
        out = ctx.tool("log-dirs", "--describe", "--topic-list", topic)
        answer = json.loads(next(line for line in out.lines() if line.startswith("{")))
        (broker,) = answer["brokers"]
        held = [(p["partition"], d["logDir"], p["isFuture"]) for d in broker["logDirs"] for p in d["partitions"]]
        assert all(d["error"] is None for d in broker["logDirs"]), broker
        return broker["broker"], sorted(held)

    node, before = places()
    same([(p, future) for p, _, future in before], [(topic + "-0", False), (topic + "-1", False)], "replicas")
    there = {p: next(d for d in dirs if d != place) for p, place, _ in before}
    plan = ctx.directory / "plan.json"
    partitions = [{"topic": topic, "partition": n, "replicas": [node], "log_dirs": [there[f"{topic}-{n}"]]} for n in (0, 1)]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    out = ctx.tool("reassign-partitions", "--reassignment-json-file", plan, "--execute", "--replica-alter-log-dirs-throttle", 50_000_000).out
    same(out.count("Successfully started moving log directory to"), 2, "moves that were started")
    verify = lambda: ctx.tool("reassign-partitions", "--reassignment-json-file", plan, "--verify", code=None).out
    until("the moves", lambda: verify().count("completed successfully") == 2, 60)
    same(places()[1], sorted((p, place, False) for p, place in there.items()), "places after the moves")
    out = ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 2000, "--timeout-ms", 20000).out
    same(sum(line.startswith("line ") for line in out.splitlines()), 2000, "records")
    plan.write_text(json.dumps({"version": 1, "partitions": [{**partitions[0], "log_dirs": ["/nowhere"]}]}))
    out = ctx.tool("reassign-partitions", "--reassignment-json-file", plan, "--execute", code=None)
    assert "LogDirNotFound" in out.out + out.err or "Failed to alter dir" in out.out + out.err, (out.out, out.err)


@check("cluster-tool")
def cluster(ctx):
    # The options of this tool come after the sub-command.
    out = process.run(ctx.command("cluster", "cluster-id", "--bootstrap-server", ctx.bootstrap))
    assert re.search(r"Cluster ID: [A-Za-z0-9_-]{22}$", out.out.strip()), out.out
    out = process.run(ctx.command("cluster", "list-endpoints", "--bootstrap-server", ctx.bootstrap))
    row = out.lines()[1].split()
    same((f"{row[1]}:{row[2]}", row[4], row[5]), (ctx.bootstrap, "unfenced", "broker"), "endpoint")


@check("producer-and-consumer-perf-test", seconds=120)
def perf_tests(ctx):
    topic = ctx.topic()
    out = process.run(ctx.command("producer-perf-test", "--bootstrap-server", ctx.bootstrap, "--topic", topic, "--num-records", 50000,
                                  "--record-size", 1024, "--throughput", -1, "--command-property", "acks=all"), seconds=150)
    assert re.search(r"^50000 records sent, [\d.]+ records/sec", out.out, re.M), out.out
    same(ctx.offsets(topic, -1), {0: 50000}, "records on the broker")
    out = ctx.tool("consumer-perf-test", "--topic", topic, "--num-records", 50000, "--timeout", 30000, seconds=150)
    head, row = [line.split(", ") for line in out.lines() if "," in line][:2]
    same(dict(zip(head, row))["data.consumed.in.nMsg"], "50000", "records read")


@check("verifiable-producer-and-consumer", seconds=150)
def verifiable(ctx):
    topic = ctx.topic(partitions=3)
    # They finish their work in what they do when the process ends.
    out = ctx.tool("verifiable-producer", "--topic", topic, "--max-messages", 1000, "--acks", -1, alone=True)
    events = [json.loads(line) for line in out.lines() if line.startswith("{")]
    sent = [(e["partition"], e["offset"], e["value"]) for e in events if e["name"] == "producer_send_success"]
    same(sorted(int(v) for _, _, v in sent), list(range(1000)), "acknowledged values")
    assert not [e for e in events if e["name"] == "producer_send_error"], events
    out = ctx.tool("verifiable-consumer", "--topic", topic, "--group-id", ctx.name + "-group", "--max-messages", 1000,
                   "--reset-policy", "earliest", "--verbose", "--group-protocol", "classic", seconds=150, alone=True)
    events = [json.loads(line) for line in out.lines() if line.startswith("{")]
    read = [(e["partition"], e["offset"], e["value"]) for e in events if e["name"] == "record_data"]
    same(sorted(read), sorted(sent), "each acknowledged record at its offset")
    commits = [e for e in events if e["name"] == "offsets_committed"]
    assert commits and all(c["success"] for c in commits), commits
    counts = {p: sum(1 for q, _, _ in sent if q == p) for p in range(3)}
    final = {o["partition"]: o["offset"] for c in commits for o in c["offsets"]}
    same(final, {p: n for p, n in counts.items() if p in final}, "last committed offsets")


def java_program(name, main, how, partitions, seconds=150):
    @check(name, seconds=seconds)
    def body(ctx):
        argument = ctx.topic(partitions=partitions) if partitions else ctx.name
        extra = [ctx.name + "-group"] if main == "Members" else []
        out = process.run(ctx.kit.java(main, how, ctx.bootstrap, argument, *extra), seconds=seconds - 10)
        same(out.lines()[-1], "ok", "last word")


for how in ("topics", "configs", "offsets", "groups", "producers"):
    java_program(f"java-admin-{how}", "AdminSweep", how, partitions=0)
for how in ("positions", "idempotent", "acks", "longpoll"):
    java_program(f"java-{how}", "Reading", how, partitions=1)
for how in ("rebalance", "cooperative", "static"):
    java_program(f"java-group-{how}", "Members", how, partitions=4, seconds=150)


@check("delayed-topic-deletion", own_broker=True)
def delayed_deletion(ctx):
    """The files of a deleted topic go to a -delete directory first and leave after file.delete.delay.ms."""
    broker = ctx.new_broker(log__segment__delete__delay__ms=10000)
    topic = ctx.topic()
    ctx.tool("console-producer", "--topic", topic, stdin="one\n")
    assert (broker.data / (topic + "-0")).is_dir()
    ctx.tool("topics", "--delete", "--topic", topic)
    renamed = until("the directory is renamed", lambda: [d for d in broker.data.iterdir() if re.fullmatch(re.escape(topic) + r"-0\.[0-9a-f]{32}-delete", d.name)], pause=0.02)
    assert not (broker.data / (topic + "-0")).exists()
    until("the directory is gone", lambda: not renamed[0].exists(), 60)
