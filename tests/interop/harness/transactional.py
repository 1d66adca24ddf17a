"""A client program that is told step by step what to do in its transactions, so that a check says when it dies."""
import json
import subprocess

from . import process

# The answers of a broker, by Kafka's numbers; librdkafka adds some of its own below zero.
NAMES = {
    -172: "STATE", -152: "PURGED", -150: "FATAL", -144: "PRODUCER_FENCED", 22: "ILLEGAL_GENERATION", 25: "UNKNOWN_MEMBER_ID", 47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE", 49: "INVALID_PRODUCER_ID_MAPPING", 50: "INVALID_TRANSACTION_TIMEOUT", 51: "CONCURRENT_TRANSACTIONS",
    82: "FENCED_INSTANCE_ID", 90: "PRODUCER_FENCED", 120: "TRANSACTION_ABORTABLE",
}


class Refused(Exception):
    def __init__(self, step, answer):
        super().__init__(f"{step}: {answer}")
        self.name = NAMES.get(answer["code"], str(answer["code"]))


class Transactional:
    def __init__(self, command, log):
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8",
                start_new_session=True)

    def ready(self):
        """The first answer tells how the initialisation went."""
        return self.answer("init")

    def answer(self, step):
        for line in self.process.stdout:
            # A client may have something to say on standard output too.
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise Refused(step, answer)
                return answer
        raise RuntimeError(f"ended with {self.process.wait()} at {step}:\n{self.log.read_text(errors='replace')[-3000:]}")

    def ask(self, step, **more):
        self.process.stdin.write(json.dumps({"do": step, **more}) + "\n")
        self.process.stdin.flush()

    def step(self, step, **more):
        self.ask(step, **more)
        return self.answer(step)

    def refused(self, step, **more):
        """The name of the error that the step ends with."""
        try:
            self.step(step, **more)
        except Refused as e:
            return e.name
        raise AssertionError(f"{step} was not refused")

    def send(self, topic, records):
        """Sends records and waits until all are acknowledged."""
        self.step("send", topic=topic, records=records)

    def poll(self, count, seconds=30):
        """At most so many records of the group's topic; none once there was none for so long."""
        return self.step("poll", count=count, seconds=seconds)["records"]

    def transaction(self, topic, records, how="commit"):
        self.step("begin")
        self.send(topic, records)
        self.step(how)

    def kill(self):
        """kill -9: whatever was open stays open."""
        process.end(self.process)

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            code = self.process.wait(timeout=40 * process.SLOW)
            if code != 0:
                raise RuntimeError(f"ended with {code}:\n{self.log.read_text(errors='replace')[-3000:]}")
