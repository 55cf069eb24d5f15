"""schemathesis against the server's own OpenAPI document: no 5xx, no status, type or body that the document lacks.

    pip install -r tests/clients/requirements-schemathesis.txt
    cargo build --release && python tests/clients/schemathesis_run.py [--seconds 60] [--seed N] [BASE_URL]

Without BASE_URL against the release binary with the demo and a short context, so that no request takes long. The long
setting is --seconds 1200. Failures are printed with the request that causes them.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

# Not the ones about which requests must be refused: unknown fields are ignored, and values are judged beyond their types.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
]
# Always a 501, which is what is documented.
NOT_OFFERED = "/v1/embeddings"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("base", nargs="?")
    args = parser.parse_args()
    # The module reads the base URL from the arguments.
    sys.argv = sys.argv[:1] + ([args.base] if args.base else [])
    os.environ.setdefault("PERILUNE_CONTEXT_LENGTH", "256")
    os.environ.setdefault("PERILUNE_LOG", "warn")
    import server

    # It keeps files of its own where it runs.
    with server.running() as base, tempfile.TemporaryDirectory() as folder:
        command = [
            pathlib.Path(sys.executable).parent / "schemathesis", "run", f"{base}/openapi.json",
            "--checks", ",".join(CHECKS), "--exclude-path", NOT_OFFERED, "--phases", "examples,coverage,fuzzing",
            "--max-time", str(args.seconds), "--request-timeout", "240", "--continue-on-failure",
            # Python 3.11 counts the depth of a parse over all threads: with two workers one sometimes fails over the other.
            "--workers", "1",
            "--suppress-health-check", "all", "--warnings", "off",
        ]
        if args.seed is not None:
            command += ["--seed", str(args.seed)]
        failed = subprocess.run(command, cwd=folder).returncode != 0
    if failed:
        raise SystemExit("schemathesis found failures")


if __name__ == "__main__":
    main()
