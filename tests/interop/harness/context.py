"""What a check is handed: the broker, the tools and clients, and a directory of its own."""
import json

from . import process
from .cluster import Cluster
from .transactional import Transactional

TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "topics": "TopicCommand",
    "configs": "ConfigCommand",
    "console-producer": "ConsoleProducer",
    "console-consumer": "consumer.ConsoleConsumer",
    "consumer-groups": "consumer.group.ConsumerGroupCommand",
    "groups": "GroupsCommand",
    "get-offsets": "GetOffsetShell",
    "delete-records": "DeleteRecordsCommand",
    "dump-log": "DumpLogSegments",
    "producer-perf-test": "ProducerPerformance",
    "consumer-perf-test": "ConsumerPerformance",
    "verifiable-producer": "VerifiableProducer",
    "verifiable-consumer": "VerifiableConsumer",
    "broker-api-versions": "BrokerApiVersionsCommand",
    "log-dirs": "LogDirsCommand",
    "cluster": "ClusterTool",
    "transactions": "TransactionsCommand",
    "reassign-partitions": "reassign.ReassignPartitionsCommand",
    "leader-election": "LeaderElectionCommand",
    "metadata-quorum": "MetadataQuorumCommand",
    "replica-verification": "ReplicaVerificationTool",
    "features": "FeatureCommand",
}


class Context:
    def __init__(self, name, directory, kit, kind):
        self.name = name
        self.directory = directory
        self.kit = kit
        self.kind = kind
        self.broker = None
        self.started = []
        self.own_brokers = []
        directory.mkdir(parents=True)

    def close(self):
        for p in self.started:
            process.end(p)
        for broker in self.own_brokers:
            broker.kill()

    @property
    def bootstrap(self):
        return self.broker.bootstrap

    def new_broker(self, kind=None, directory="broker", prepare=None, **settings):
        """A broker of the check's own, started; dots in setting names are written as two underscores."""
        broker = (kind or self.kind)(self.directory / directory, self.kit, {k.replace("__", "."): v for k, v in settings.items()})
        self.own_brokers.append(broker)
        if prepare is not None:
            prepare(broker)
        broker.start()
        self.broker = broker
        return broker

    def new_cluster(self, kinds=None, controllers=None, directory="cluster", **settings):
        """Three nodes of the kind under test, or of these kinds, started; settings as for a broker."""
        cluster = Cluster(self.directory / directory, self.kit, kinds or [self.kind] * 3, controllers, **settings)
        self.own_brokers.append(cluster)
        cluster.start()
        self.broker = cluster
        return cluster

    # Kafka's tools.

    def command(self, name, *args):
        return self.kit.java(TOOLS + CLASSES[name], *args)

    def tool(self, name, *args, stdin=None, code=0, seconds=60, alone=False):
        """Runs one of Kafka's tools against the broker, alone in a process of its own or not; answers its result."""
        if name == "console-producer":
            # Its own default is 1.5 s: on a slow machine it would send again what is on its way.
            args = ("--request-timeout-ms", 30000, *args)
        command = self.command(name, "--bootstrap-server", self.bootstrap, *args)
        return process.run(list(command) if alone else command, stdin=stdin, code=code, seconds=seconds)

    def local_tool(self, name, *args, code=0):
        """Runs one of Kafka's tools that needs no broker."""
        return process.run(self.command(name, *args), code=code)

    def background(self, command, out):
        p = process.start(command, self.directory / out)
        self.started.append(p)
        return p

    def topic(self, suffix="", partitions=1, **configs):
        """Creates a topic named after the check; dots in configuration names are written as two underscores."""
        name = self.name + suffix
        extra = [a for k, v in configs.items() for a in ("--config", f"{k.replace('__', '.')}={v}")]
        self.tool("topics", "--create", "--topic", name, "--partitions", partitions, "--replication-factor", 1, *extra)
        return name

    def offsets(self, topic, time):
        """Partition to offset, as get-offsets prints them."""
        lines = self.tool("get-offsets", "--topic", topic, "--time", time).lines()
        return {int(line.split(":")[1]): int(line.split(":")[2]) for line in lines}

    # Clients that speak JSON lines.

    def produce(self, client, topic, codec, records):
        """Produces the records; answers the acknowledgements as the client reports them."""
        lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
        out = process.run(self.kit.client(client, "produce", self.bootstrap, topic, codec), stdin=lines, seconds=60)
        return [json.loads(line) for line in out.lines()]

    def consume(self, client, topic, count):
        return self.read(client, "consume", topic, str(count))

    def group(self, client, topic, group, count):
        return self.read(client, "group", topic, group, str(count))

    def visible(self, client, topic, isolation):
        """All that a reader with this isolation level sees of a topic."""
        return self.read(client, "read", topic, isolation)

    def transactional(self, client, identity, timeout_ms=600_000, member=None):
        """A transactional producer, ready; with member=(topic, group) it consumes as a member of that group too."""
        command = self.kit.client(client, "transactions", self.bootstrap, identity, str(timeout_ms), *(member or ()))
        producer = Transactional(command, self.directory / f"{client}-{len(self.started)}.log")
        self.started.append(producer.process)
        producer.ready()
        return producer

    def read(self, client, how, topic, *args):
        out = process.run(self.kit.client(client, how, self.bootstrap, topic, *args), seconds=60)
        return [json.loads(line) for line in out.lines()]
