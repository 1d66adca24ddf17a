"""Installs the clients from their registries, once, and knows how each is called.

A part that cannot be installed makes every check that needs it fail; nothing is ever skipped for lack of a client.
"""
import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import sys
import threading
import time

from . import paths, process
from .broker import Kafka
from .resident import Command, Machine

JAVA_OPTIONS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]

# Seconds before the second and the third try of a set-up: a registry may be away for a moment.
PAUSES = (5, 20)


class Kit:
    def __init__(self):
        self.failures = {}
        self.machine = None
        self.java_home = paths.CACHE / "java"
        self.java_archive = self.java_home / "classes.jsa"
        self.python_home = paths.CACHE / "python"
        self.node_home = paths.CACHE / "node"
        self.go_client = paths.CACHE / "go" / "client"
        self.load = paths.CACHE / "c" / "load"
        self.highwater = pathlib.Path(os.environ.get("HIGHWATER_BIN", paths.TARGET / "release" / "highwater"))

    def prepare(self, parts):
        # Two at a time: most of them wait for a registry, or build with one processor.
        order = ["highwater", "node", "java", "go", "python", "kcat", "load"]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(self._prepare, sorted(parts, key=order.index)))

    def _prepare(self, part):
        begun = time.monotonic()
        for pause in (*PAUSES, None):
            try:
                did = getattr(self, "_" + part)()
            except (process.Failed, OSError, RuntimeError) as e:
                print(f"set-up of {part} failed: {e}", flush=True)
                if pause is None:
                    self.failures[part] = e
                else:
                    time.sleep(pause)
            else:
                print(f"set-up of {part}: {did} ({time.monotonic() - begun:.1f} s)", flush=True)
                return

    def require(self, part):
        if part in self.failures:
            raise RuntimeError(f"{part} could not be set up: {self.failures[part]}")

    # How the parts are called.

    def java(self, main, *args, level="WARN"):
        config = paths.SUITE / "java" / "log4j2.xml"
        classpath = f"{self.java_home}/programs.jar:{self.java_home}/libs/*"
        archive = [f"-XX:SharedArchiveFile={self.java_archive}"] if self.java_archive.exists() else []
        # What the machine itself has to say is not a program's output: an archive that does not fit, for one.
        quiet = ["-Xlog:disable", "-Xlog:all=warning:stderr"]
        line = ["java", *JAVA_OPTIONS, *quiet, *archive, f"-Dlog4j2.configurationFile={config}", f"-Dinterop.level={level}", "-cp", classpath]
        return Command([*line, main, *args], (main, *args), self.machine if level == "WARN" else None)

    def have_machine(self):
        """From here on, Java programs that are run to their end are run by one machine: by one check at a time."""
        self.machine = Machine(self.java("Resident"))

    def client(self, name, *args):
        """A client program that reads and writes records as JSON lines."""
        if name == "java":
            return self.java("Records", *args)
        if name == "franz-go":
            return [self.go_client, *args]
        if name == "kafka-python":
            return [self.python_home / "bin" / "python", "-B", paths.SUITE / "python" / "kafka_python.py", *args]
        if name == "confluent-kafka":
            return [self.python_home / "bin" / "python", "-B", paths.SUITE / "python" / "confluent.py", *args]
        if name == "kafkajs":
            return ["node", self.node_home / "client.js", "kafkajs", *args]
        if name == "confluent-kafka-javascript":
            return ["node", self.node_home / "client.js", "confluent", *args]
        raise KeyError(name)

    # How the parts are installed. Each answers one word on what it did.

    def _highwater(self):
        if "HIGHWATER_BIN" not in os.environ:
            process.run(["cargo", "build", "--release", "--bin", "highwater"], seconds=2400, cwd=paths.REPOSITORY)
        if not os.access(self.highwater, os.X_OK):
            raise RuntimeError(f"no binary at {self.highwater}")
        return str(self.highwater)

    def _java(self):
        tools(("java", "default-jdk-headless"), ("javac", "default-jdk-headless"), ("mvn", "maven"))
        source = paths.SUITE / "java"
        libs, classes = self.java_home / "libs", self.java_home / "classes"
        pom = source / "pom.xml"
        if stale(self.java_home / "libs.stamp", [pom]):
            shutil.rmtree(libs, ignore_errors=True)
            process.run(["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={libs}"], seconds=900)
            stamp(self.java_home / "libs.stamp", [pom])
        sources = sorted(source.glob("*.java"))
        if stale(self.java_home / "classes.stamp", [pom, *sources]):
            shutil.rmtree(classes, ignore_errors=True)
            self.java_archive.unlink(missing_ok=True)
            process.run(["javac", "-nowarn", "-d", classes, "-cp", f"{libs}/*", *sources], seconds=300)
            process.run(["jar", "cf", self.java_home / "programs.jar", "-C", classes, "."])
            self._archive()
            stamp(self.java_home / "classes.stamp", [pom, *sources])
        version = next(libs.glob("kafka-clients-*.jar")).stem
        return version

    def _archive(self):
        """Archives the classes of Java's programs and of Kafka. A gain in time only: without it everything runs the same."""
        directory = self.java_home / "warm"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        try:
            kafka = Kafka(directory, self)
            kafka.prepare()
            command = self.java("Warm", kafka.properties, kafka.bootstrap)
            process.run([command[0], f"-XX:ArchiveClassesAtExit={self.java_archive}", *command[1:]], seconds=300)
        except process.Failed as e:
            print(f"no archive of Java's classes: {e}", flush=True)
        shutil.rmtree(directory, ignore_errors=True)

    def _go(self):
        tools(("go", "golang"))
        source = paths.SUITE / "go"
        files = sorted(source.glob("*.go")) + [source / "go.mod", source / "go.sum"]
        if stale(self.go_client.with_suffix(".stamp"), files):
            process.run(["go", "build", "-buildvcs=false", "-o", self.go_client, "."], seconds=900, cwd=source)
            stamp(self.go_client.with_suffix(".stamp"), files)
        return "franz-go"

    def _python(self):
        wanted = paths.SUITE / "python" / "requirements.txt"
        if stale(self.python_home / "stamp", [wanted]):
            try:
                process.run([sys.executable, "-m", "venv", "--clear", self.python_home], seconds=120)
            except process.Failed:
                apt("python3-venv")
                process.run([sys.executable, "-m", "venv", "--clear", self.python_home], seconds=120)
            process.run([self.python_home / "bin" / "pip", "install", "-q", "-r", wanted], seconds=900)
            stamp(self.python_home / "stamp", [wanted])
        return "kafka-python, confluent-kafka"

    def _node(self):
        tools(("node", "nodejs"), ("npm", "npm"))
        source = paths.SUITE / "node"
        wanted = [source / "package.json", source / "package-lock.json"]
        self.node_home.mkdir(parents=True, exist_ok=True)
        if stale(self.node_home / "stamp", wanted):
            for f in wanted:
                shutil.copy(f, self.node_home)
            # Install scripts would fetch a prebuilt binary from outside the registry; the binding is built here instead,
            # with the headers of the installed Node and the system's libraries.
            process.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], seconds=900, cwd=self.node_home)
            tools(("g++", "g++"), ("make", "make"), ("pkg-config", "pkg-config"))
            headers("openssl/ssl.h", "libssl-dev")
            headers("zlib.h", "zlib1g-dev")
            headers("zstd.h", "libzstd-dev")
            prefix = pathlib.Path(shutil.which("node")).resolve().parent.parent
            if not (prefix / "include" / "node" / "node.h").exists():
                apt("libnode-dev")
            process.run(
                ["npx", "--no-install", "node-pre-gyp", "install", "--build-from-source"], seconds=1500,
                cwd=self.node_home / "node_modules" / "@confluentinc" / "kafka-javascript",
                env={"npm_config_nodedir": str(prefix), "CKJS_LINKING": "dynamic"},
            )
            stamp(self.node_home / "stamp", wanted)
        shutil.copy(source / "client.js", self.node_home)
        return "kafkajs, @confluentinc/kafka-javascript"

    def _kcat(self):
        tools(("kcat", "kcat"))
        return process.run(["kcat", "-V"]).out.split("\n")[2].strip()

    def _load(self):
        tools(("gcc", "gcc"))
        headers("librdkafka/rdkafka.h", "librdkafka-dev")
        source = sorted((paths.SUITE / "c").glob("*.[ch]"))
        if stale(self.load.with_suffix(".stamp"), source):
            self.load.parent.mkdir(parents=True, exist_ok=True)
            process.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", self.load, *[s for s in source if s.suffix == ".c"], "-lrdkafka", "-lm", "-lpthread"])
            stamp(self.load.with_suffix(".stamp"), source)
        return "load generator on librdkafka"


# Only one may install at a time.
APT = threading.Lock()


def apt(*packages):
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    get = ["apt-get", "-o", "Acquire::Retries=5"]
    install = [*get, "install", "-y", "--no-install-recommends", *packages]
    with APT:
        try:
            process.run(install, seconds=600, env=env)
        except process.Failed:
            process.run([*get, "update"], seconds=300, env=env)
            process.run(install, seconds=600, env=env)


def tools(*pairs):
    """Each pair is a command and the Debian package that brings it."""
    for command, package in pairs:
        if shutil.which(command) is None:
            apt(package)
            if shutil.which(command) is None:
                raise RuntimeError(f"{command} is missing, also after installing {package}")


def headers(name, package):
    roots = [pathlib.Path("/usr/include"), pathlib.Path("/usr/local/include"), *pathlib.Path("/usr/include").glob("*-linux-gnu")]
    if not any((root / name).exists() for root in roots):
        apt(package)


def digest(files):
    h = hashlib.sha256()
    for f in files:
        h.update(f.name.encode() + b"\0" + f.read_bytes() + b"\0")
    return h.hexdigest()


def stale(stamp_file, files):
    return not stamp_file.exists() or stamp_file.read_text() != digest(files)


def stamp(stamp_file, files):
    stamp_file.parent.mkdir(parents=True, exist_ok=True)
    stamp_file.write_text(digest(files))
