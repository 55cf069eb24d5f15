"""The server that the scripts of this folder talk to: one given by its base URL, or the release binary with the demo."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTION = "There are 3 boxes with 12 pens in each box. How many pens are there in total?"


def start():
    """Starts the binary; returns (process, base URL) once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    process = subprocess.Popen([target / "release" / "perilune", "serve", "--port", str(port)], cwd=ROOT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").close()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.05)
    process.kill()
    raise SystemExit("the server did not become ready within 60 s")


@contextlib.contextmanager
def running():
    """The base URL (without /v1) of the first argument, or of a server that ends with SIGTERM and exit code 0."""
    if len(sys.argv) > 1:
        yield sys.argv[1].rstrip("/").removesuffix("/v1")
        return
    process, base = start()
    try:
        yield base
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, process.returncode
    finally:
        if process.poll() is None:
            process.kill()
