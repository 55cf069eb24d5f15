"""Running the programs that came with this Python's packages, away from the network."""

import os
import pathlib
import subprocess
import sys
import tempfile

import server

# No hub is asked for anything: what a client needs lies in files.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def run(name, *arguments, offline=True):
    """Runs a program of this environment, or with `-m` a module; ends the script with what it said where it fails.

    Returns what it wrote to standard output.
    """
    start = [sys.executable] if name == "-m" else [pathlib.Path(sys.executable).parent / name]
    command = [*start, *(["-m"] if name == "-m" else []), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, **(OFFLINE if offline else {}), "HF_HOME": home}
        done = subprocess.run(command, cwd=server.ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        raise SystemExit(f"{' '.join(map(str, command[:4]))} … ended with {done.returncode}")
    return done.stdout
