"""The checks, by subject. Importing a module registers what it holds, in the order of this list."""
import importlib

MODULES = ["topics", "console", "groups", "offsets", "tools", "clients", "kcat", "files", "restart", "exchange", "request_log", "transactions", "cluster"]


def load():
    for name in MODULES:
        importlib.import_module(f"checks.{name}")
