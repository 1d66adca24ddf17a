"""Ports that brokers keep over their lives, outside of where connections get theirs. None is given twice."""
import random
import socket

FIRST, COUNT = 15000, 15000

# Where this process takes its ports from, where it began, and how many it has looked at.
_first, _count = FIRST, COUNT
_begin = random.randrange(COUNT)
_taken = 0


def share(index, of):
    """From here on this process takes ports from its own part only: workers must not find the same port free."""
    global _first, _count, _begin, _taken
    _count = COUNT // of
    _first = FIRST + index * _count
    _begin = random.randrange(_count)
    _taken = 0


def take():
    """The next port that nobody listens on."""
    global _taken
    while _taken < _count:
        port = _first + (_begin + _taken) % _count
        _taken += 1
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no port is left")
