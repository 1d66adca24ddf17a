"""Clusters of several nodes: Highwater, Apache Kafka, or both in one."""
from . import ports
from .broker import Highwater, Kafka

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
# What Kafka's formatter turns on and Highwater's brokers do not serve yet: they could not register.
UNSERVED = [a for f in ("group", "share", "streams") for a in ("--feature", f"{f}.version=0")]
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}


class Cluster:
    """Nodes 1, 2, ...; `kinds` says what each is, the first `controllers` of them are controllers too."""

    def __init__(self, directory, kit, kinds, controllers=None, **settings):
        controllers = len(kinds) if controllers is None else controllers
        taken = [ports.take() for _ in range(len(kinds) + controllers)]
        quorum = taken[len(kinds):]
        voters = ",".join(f"{at + 1}@127.0.0.1:{port}" for at, port in enumerate(quorum))
        self.nodes = []
        for at, kind in enumerate(kinds):
            listeners = f"PLAINTEXT://127.0.0.1:{taken[at]}"
            if at < controllers:
                listeners += f",CONTROLLER://127.0.0.1:{quorum[at]}"
            own = {
                **SETTINGS,
                "node.id": str(at + 1),
                "broker.rack": f"rack-{at + 1}",
                "process.roles": "broker,controller" if at < controllers else "broker",
                "controller.quorum.voters": voters,
                "listeners": listeners,
                **{k.replace("__", "."): v for k, v in settings.items()},
            }
            node = kind(directory / f"node-{at + 1}", kit, own)
            node.cluster_id = CLUSTER_ID
            if kind is Kafka and Highwater in kinds:
                node.format_options = UNSERVED
            node.port = node.fixed_port = taken[at]
            self.nodes.append(node)

    def start(self):
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_ready()
            node.port = node.fixed_port
        return self

    def node(self, number):
        return self.nodes[number - 1]

    def restart(self, number):
        node = self.node(number)
        node.start()
        node.port = node.fixed_port

    @property
    def bootstrap(self):
        return ",".join(f"127.0.0.1:{node.fixed_port}" for node in self.nodes)

    def require_running(self):
        for node in self.nodes:
            node.require_running()

    def log_tail(self):
        return "\n".join(f"--- node {at + 1}\n{node.log_tail()}" for at, node in enumerate(self.nodes))

    def kill(self):
        for node in self.nodes:
            node.kill()
