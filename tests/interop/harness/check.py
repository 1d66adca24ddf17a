"""What a check is: a named function with what it needs and how long it may take."""
import contextlib
import signal

from .process import SLOW

REGISTRY = {}


class Check:
    def __init__(self, name, function, needs, seconds, own_broker):
        self.name = name
        self.function = function
        self.needs = needs
        self.seconds = seconds
        self.own_broker = own_broker


def check(name, needs=("java",), seconds=120, own_broker=False):
    """Registers a function as a check. own_broker: it starts and stops brokers itself and may read their files."""

    def register(function):
        if name in REGISTRY:
            raise ValueError(f"two checks are called {name}")
        REGISTRY[name] = Check(name, function, tuple(needs), seconds, own_broker)
        return function

    return register


class Timeout(BaseException):
    """Not an Exception, so that no check can swallow it."""


@contextlib.contextmanager
def deadline(seconds):
    """Ends what is in it after so many seconds of a usual machine."""
    seconds *= SLOW

    def ring(_signal, _frame):
        raise Timeout(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def same(got, wanted, what):
    """Fails with the first difference, not with two walls of text."""
    if got == wanted:
        return
    if isinstance(got, list) and isinstance(wanted, list):
        for i, (g, w) in enumerate(zip(got, wanted)):
            if g != w:
                raise AssertionError(f"{what}: at {i} got {g!r}, wanted {w!r}")
        raise AssertionError(f"{what}: got {len(got)} items, wanted {len(wanted)}; last got {got[-1:]!r}")
    raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def indent(text):
    return "\n".join("    " + line for line in text.rstrip().splitlines())
