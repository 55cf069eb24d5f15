"""Puts a small load on a server with aiperf, over chat and completions, and checks its report.

    python tests/clients/aiperf_client.py [BASE_URL]
"""

import json
import pathlib
import tempfile

import program
import questions
import server


def profile(base, kind, folder):
    data = questions.lines(folder / "questions.jsonl", "text")
    tokenizer = questions.byte_tokenizer(folder / "tokenizer")
    out = folder / kind
    # Its own word for being offline refuses tokenizers in folders, too.
    program.run("aiperf", "profile", "-m", "demo", "--url", base, "--endpoint-type", kind, "--streaming",
                "--use-server-token-count", "--concurrency", "2", "--request-count", "6", "--tokenizer", tokenizer,
                "--custom-dataset-type", "single_turn", "--input-file", data, "--ui", "none", "--artifact-dir", out,
                "--extra-inputs", "max_tokens:64", offline=False)
    report = json.loads((out / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 6 and not report.get("error_request_count"), report
    first, tokens = report["time_to_first_token"], report["output_sequence_length"]
    assert first["avg"] > 0 and tokens["avg"] > 1, (first, tokens)
    print(f"aiperf, {kind}: first token after {first['avg']:.0f} ms, {tokens['avg']:.0f} tokens per answer")


def main():
    with server.running() as base:
        for kind in ("chat", "completions"):
            with tempfile.TemporaryDirectory() as folder:
                profile(base, kind, pathlib.Path(folder))
    print("aiperf: 2 passed, 0 failed")


if __name__ == "__main__":
    main()
