"""The request log proves each hop: what was asked and answered, with true times, in Kafka's own format."""
import json
import pathlib
import re

from harness.check import check, same
from harness.process import until

KEYS = [
    "isForwarded", "requestHeader", "request", "response", "connection", "totalTimeMs", "requestQueueTimeMs", "localTimeMs",
    "remoteTimeMs", "throttleTimeMs", "responseQueueTimeMs", "sendTimeMs", "securityProtocol", "principal", "listener", "clientInformation",
]
TIMES = [k for k in KEYS if k.endswith("TimeMs") and k != "totalTimeMs"]
# The keys of requests and responses, in order, as a Kafka 4.4 broker printed them.
SHAPES = pathlib.Path(__file__).with_name("request_log_shapes.json")


def entries(broker):
    found = re.findall(r"Completed request:\s*(\{.*\})", broker.log.read_text(errors="replace"))
    return [json.loads(line) for line in found]


def of(log, api, client=None):
    return [e for e in log if e["requestHeader"]["requestApiKeyName"] == api and (client is None or e["requestHeader"]["clientId"] == client)]


def shape(value):
    """Keys in order, all the way down; an empty list or a null says nothing about what it would hold."""
    if isinstance(value, dict):
        return [[k, shape(v)] for k, v in value.items()]
    if isinstance(value, list):
        return {"list": shape(value[0]) if value else None}
    if value is None:
        return None
    return "bool" if isinstance(value, bool) else "number" if isinstance(value, (int, float)) else "string"


def agree(a, b):
    if a is None or b is None:
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        return agree(a["list"], b["list"])
    if isinstance(a, list) and isinstance(b, list):
        return [k for k, _ in a] == [k for k, _ in b] and all(agree(x, y) for (_, x), (_, y) in zip(a, b))
    return a == b


def produce(ctx, topic, client, *properties, value):
    extra = [a for p in ("client.id=" + client, "enable.idempotence=false", *properties) for a in ("--command-property", p)]
    ctx.tool("console-producer", "--topic", topic, *extra, stdin=value + "\n")


@check("request-log", own_broker=True, seconds=150)
def request_log(ctx):
    broker = ctx.new_broker(highwater__request__log="true")
    topic = ctx.topic()
    for client, acks in (("all", -1), ("one", 1), ("none", 0)):
        produce(ctx, topic, client, f"acks={acks}", value="x" * 10)
    group = ctx.name + "-group"
    ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--group", group, "--max-messages", 3, "--timeout-ms", 20000,
             "--command-property", "client.id=reader", "--command-property", "auto.commit.interval.ms=100")
    idle = ctx.topic("-idle")
    ctx.tool("console-consumer", "--topic", idle, "--from-beginning", "--timeout-ms", 8000, "--command-property", "client.id=waiter",
             "--command-property", "fetch.max.wait.ms=3000", "--command-property", "fetch.min.bytes=1000000", code=None)
    until("the last fetch is logged", lambda: of(entries(broker), "FETCH", "waiter"))
    broker.stop()
    log = entries(broker)

    for e in log:
        same([k for k in e if k in KEYS], KEYS, "keys of " + e["requestHeader"]["requestApiKeyName"])
        same(set(e) - set(KEYS) - {"temporaryMemoryBytes", "messageConversionsTime"}, set(), "no other keys")
        parts = sum(e[k] for k in TIMES)
        assert abs(parts - e["totalTimeMs"]) < 2 and all(e[k] >= 0 for k in TIMES), f"times do not add up: {e}"
        assert re.fullmatch(r"127\.0\.0\.1:\d+-127\.0\.0\.1:\d+-\d+-\d+", e["connection"]), e["connection"]
        same((e["securityProtocol"], e["principal"]), ("PLAINTEXT", "User:ANONYMOUS"), "who")

    bases = []
    for client, acks in (("all", -1), ("one", 1)):
        (e,) = of(log, "PRODUCE", client)
        same((e["requestHeader"]["requestApiVersion"], e["request"]["acks"]), (13, acks), "produce")
        (partition,) = e["response"]["responses"][0]["partitionResponses"]
        same(partition["errorCode"], 0, "error code")
        bases.append(partition["baseOffset"])
    same(bases, [0, 1], "base offsets on the wire")
    (e,) = of(log, "PRODUCE", "none")
    same(e["request"]["acks"], 0, "produce without acknowledgement")
    dumped = ctx.local_tool("dump-log", "--files", ",".join(sorted(map(str, (broker.data / (topic + "-0")).glob("*.log"))))).lines()
    stored = [int(m.group(1)) for m in (re.match(r"baseOffset: (\d+)", line) for line in dumped) if m]
    same(stored, [0, 1, 2], "base offsets in the segment")

    fetched = [p for e in of(log, "FETCH", "reader") for t in e["response"]["responses"] for p in t["partitions"]]
    assert fetched and all(p["highWatermark"] == 3 and p["lastStableOffset"] == 3 for p in fetched), fetched
    assert sum(p["recordsSizeInBytes"] for p in fetched) >= 3 * 78, fetched
    commits = [p["committedOffset"] for e in of(log, "OFFSET_COMMIT", "reader") for t in e["request"]["topics"] for p in t["partitions"]]
    same(commits[-1], 3, "the committed offset is the last record's plus one")

    waits = [e for e in of(log, "FETCH", "waiter") if e["request"]["maxWaitMs"] == 3000 and not any(
        p["recordsSizeInBytes"] for t in e["response"]["responses"] for p in t["partitions"])]
    long = [e for e in waits if 2900 <= e["remoteTimeMs"] <= 4500]
    assert long and all(e["request"]["minBytes"] == 1000000 and e["localTimeMs"] < 500 for e in long), waits

    got = {}
    for e in log:
        h = e["requestHeader"]
        if h["clientId"] in ("all", "reader") and not e["isForwarded"]:
            got[f"{h['requestApiKeyName']} {h['requestApiVersion']}"] = [[k, shape(e[k])] for k in ("requestHeader", "request", "response")]
    wanted = json.loads(SHAPES.read_text())
    same(sorted(set(wanted) - set(got)), [], "requests that Kafka logs and this broker does not")
    for name, known in wanted.items():
        assert agree(known, got[name]), f"{name}: logged {got[name]}, Kafka logs {known}"
