"""Brokers under test: Highwater, a real Apache Kafka with the same settings, or one that somebody else runs."""
import os
import re
import signal
import subprocess
import time

from . import ports, process

# What both brokers run with where it differs from the defaults: one node, and no wait for a group's first members.
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # How often a broker looks for transactions that have run out of time; 10 s unless set.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "1000",
}

# A JVM beside another check on two cores takes its time.
READY_SECONDS = 100
# A broker may take half a minute of its own to leave.
STOP_SECONDS = 100


class Broker:
    def __init__(self, directory, kit, settings=None):
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "broker.log"
        self.kit = kit
        self.settings = {**SETTINGS, **(settings or {})}
        self.port = 0
        self.cluster_id = None
        self.process = None
        self.name = type(self).__name__

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        """Starts, or starts again on the same port and data; answers the milliseconds until it was ready."""
        self.launch()
        return self.await_ready()

    def launch(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        self.mark = self.log.stat().st_size if self.log.exists() else 0
        self.begun = time.monotonic()
        self.process = process.start(self.command(), self.log)

    def await_ready(self):
        begun = self.begun
        while True:
            with open(self.log, errors="replace") as f:
                f.seek(self.mark)
                ready = self.ready(f.read())
            if ready:
                self.port = ready
                return (time.monotonic() - begun) * 1000
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() - begun > READY_SECONDS:
                self.kill()
                raise RuntimeError(f"{self.name} was not ready within {READY_SECONDS} s:\n{self.log_tail()}")
            time.sleep(0.002)

    def stop(self):
        """Controlled shutdown; a broker that takes over STOP_SECONDS, or that ends badly, is a failure."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.name} did not stop within {STOP_SECONDS} s of SIGTERM:\n{self.log_tail()}") from None
        if code not in self.good_exits:
            raise RuntimeError(f"{self.name} ended with {code} on SIGTERM:\n{self.log_tail()}")

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            process.end(self.process)

    def require_running(self):
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"{self.name} is not running any more:\n{self.log_tail()}")

    def log_tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:]) if self.log.exists() else ""


class Highwater(Broker):
    good_exits = (0,)

    def prepare(self):
        # One that the kernel chose might be another's by the time of the next start.
        self.port = self.port or ports.take()
        if self.cluster_id is None or (self.data / "meta.properties").exists():
            return  # a node alone formats itself
        process.run([self.kit.highwater, "format", "--cluster-id", self.cluster_id, *self.sets()])

    def command(self):
        return [self.kit.highwater, "serve", *self.sets()]

    def sets(self):
        sets = {"listeners": f"PLAINTEXT://127.0.0.1:{self.port}", "log.dirs": str(self.data), **self.settings}
        return [a for k, v in sets.items() for a in ("--set", f"{k}={v}")]

    def ready(self, log):
        found = re.search(r"^ready .*PLAINTEXT=127\.0\.0\.1:(\d+)", log, re.M)
        return int(found.group(1)) if found else None


class Kafka(Broker):
    # The JVM ends with 128 + SIGTERM after its shutdown hooks.
    good_exits = (0, 143)
    format_options = ()
    # A check wants it soon there. Where its speed is measured it gets a server's compiler and collector.
    measured = False

    @property
    def properties(self):
        return self.directory / "server.properties"

    def prepare(self):
        if self.properties.exists():
            return
        self.port, controller = ports.take(), ports.take()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data),
            # Kafka waits 30 s after its start before it deletes, retains or flushes anything.
            "log.initial.task.delay.ms": "500",
            **{k: v for k, v in self.settings.items() if not k.startswith("highwater.")},
        }
        self.properties.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        if (self.data / "meta.properties").exists():
            return  # a directory that a broker left
        identity = self.cluster_id or process.run(self.kit.java("kafka.tools.StorageTool", "random-uuid")).out.strip()
        process.run(self.kit.java("kafka.tools.StorageTool", "format", "-t", identity, "-c", self.properties, *self.format_options))

    def command(self):
        line = self.kit.java("kafka.Kafka", self.properties, level="INFO")
        heap = os.environ.get("KAFKA_HEAP", "512m")
        server, dropped = ["-Xms" + heap, "-Xmx" + heap], ("-Xm",)
        if self.measured:
            server += ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
            dropped += ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel", "-XX:SharedArchiveFile")
        if self.settings.get("highwater.request.log") == "true":
            server.append("-Dinterop.requests=DEBUG")
        return [line[0], *server, *[a for a in line[1:] if not str(a).startswith(dropped)]]

    def ready(self, log):
        return self.port if "Kafka Server started" in log else None


class External(Broker):
    def __init__(self, bootstrap):
        self.address = bootstrap
        self.name = bootstrap

    @property
    def bootstrap(self):
        return self.address

    def require_running(self):
        pass

    def stop(self):
        pass
