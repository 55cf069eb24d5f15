"""Runs the scripts of this folder against one server: the release binary with the demo, or the one at BASE_URL.

    pip install -r tests/clients/requirements.txt
    cargo build --release && python tests/clients/run.py [--all] [BASE_URL]

Without --all only those of the openai and anthropic packages; the others need requirements-all.txt.
"""

import pathlib
import subprocess
import sys

QUICK = ["openai_chat.py", "openai_structured.py", "anthropic_messages.py"]
REST = ["langchain_openai_client.py", "litellm_client.py"]


def main():
    everything = "--all" in sys.argv
    sys.argv = [arg for arg in sys.argv if arg != "--all"]
    # Imported late: it reads the arguments.
    import server

    failed = []
    with server.running() as base:
        for script in QUICK + (REST if everything else []):
            path = pathlib.Path(__file__).parent / script
            if subprocess.run([sys.executable, path, base]).returncode != 0:
                failed.append(script)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
