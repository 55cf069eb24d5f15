"""Runs the scripts of this folder against one server: the release binary with the demo, or the one at BASE_URL.

    pip install -r tests/clients/requirements.txt
    cargo build --release && python tests/clients/run.py [--all | --only NAME,…] [BASE_URL]

Without a flag the quick half: the packages of OpenAI, for Python and for Node, and of Anthropic, and the playground in a
browser (where there is a Chromium), and schemathesis for a short while, from a fixed seed. With --all the others too.
What is not in requirements.txt has an environment of its own under target/clients, made when it is first needed (some
gigabytes for --all: two of the load generators bring torch). The playground and schemathesis start servers of their own.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).parent
QUICK = [
    "openai_chat.py",
    "openai_structured.py",
    "anthropic_messages.py",
    "node/openai_node.mjs",
    "../playground/run.mjs",
    "schemathesis_run.py",
]
# Scripts that are told something else than the server.
ARGUMENTS = {"schemathesis_run.py": ["--seconds", "45", "--seed", "1"]}
# Script, and the requirements it has to itself.
OWN = {
    "schemathesis_run.py": "schemathesis",
    "langchain_openai_client.py": "langchain",
    "litellm_client.py": "litellm",
    "lm_eval_client.py": "lm-eval",
    "guidellm_client.py": "guidellm",
    "aiperf_client.py": "aiperf",
    "sglang_serving.py": "sglang",
}
# Packages that are installed without what they ask for.
ALONE = {"sglang": "sglang==0.5.23"}


def environment(name):
    """The Python of an environment with the packages of requirements-NAME.txt; made where it is not there or has others."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
    folder, wanted = target / "clients" / name, (HERE / f"requirements-{name}.txt").read_text() + ALONE.get(name, "")
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if not done.is_file() or done.read_text() != wanted:
        print(f"installing {name} in {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", HERE / f"requirements-{name}.txt"], check=True)
        if name in ALONE:
            subprocess.run([*pip, "--no-deps", ALONE[name]], check=True)
        done.write_text(wanted)
    return python


def node(folder):
    """Node, the one of this Python's packages before any other, with the packages that the scripts of a folder need."""
    beside = pathlib.Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ["PATH"]])
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise SystemExit("there is no npm: pip install -r tests/clients/requirements.txt")
    # Where they are whole, this only looks.
    if not (folder / "node_modules" / ".package-lock.json").is_file():
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    return shutil.which("node", path=path)


def interpreter(script):
    if script.endswith(".mjs"):
        return node((HERE / script).parent)
    return environment(OWN[script]) if script in OWN else sys.executable


def chosen(flags):
    """The scripts that the command line asks for."""
    match flags:
        case []:
            return QUICK
        case ["--all"]:
            return [*QUICK, *(script for script in OWN if script not in QUICK)]
        case ["--only", names]:
            return [script for script in chosen(["--all"]) if any(name in script for name in names.split(","))]
    raise SystemExit(__doc__)


def main():
    flags = [argument for argument in sys.argv[1:] if "://" not in argument]
    sys.argv = [sys.argv[0], *(argument for argument in sys.argv[1:] if "://" in argument)]
    # Imported late: it reads the arguments.
    import server

    scripts = {script: interpreter(script) for script in chosen(flags)}
    failed = []
    with server.running() as base:
        for script, program in scripts.items():
            if subprocess.run([program, HERE / script, *ARGUMENTS.get(script, [base])]).returncode != 0:
                failed.append(script)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
    print(f"clients: {len(scripts)} passed")


if __name__ == "__main__":
    main()
