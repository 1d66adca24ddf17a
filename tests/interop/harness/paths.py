"""Where the suite, the repository, the installed clients and a run's working files live."""
import contextlib
import os
import pathlib
import shutil
import tempfile

SUITE = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = SUITE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
CACHE = pathlib.Path(os.environ.get("HIGHWATER_INTEROP_CACHE", TARGET / "interop"))


@contextlib.contextmanager
def workspace(keep):
    """A directory for one run: broker data, logs and small inputs."""
    base = CACHE / "work"
    base.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=base))
    try:
        yield work
    finally:
        if keep:
            print(f"kept {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
