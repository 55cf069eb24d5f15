"""Puts a small load on a server with `sglang.benchmark.serving`, over its own route, chat and completions.

    python tests/clients/sglang_serving.py [BASE_URL]
"""

import json
import pathlib
import tempfile

import program
import questions
import server


def measure(base, backend, folder):
    data, out = questions.sharegpt(folder / "conversations.json"), folder / f"{backend}.jsonl"
    tokenizer = questions.byte_tokenizer(folder / "tokenizer")
    program.run("-m", "sglang.benchmark.serving", "--backend", backend, "--base-url", base, "--model", "demo", "--tokenizer",
                tokenizer, "--dataset-name", "sharegpt", "--dataset-path", data, "--num-prompts", "6",
                "--sharegpt-output-len", "24", "--request-rate", "8", "--output-file", out)
    report = json.loads(out.read_text().splitlines()[-1])
    # It asks with ignore_eos, so that every answer has the length it wants.
    assert report["completed"] == 6 and report["total_output_tokens"] == 6 * 24, report
    assert report["mean_ttft_ms"] > 0 and report["mean_itl_ms"] > 0, report
    print(f"{backend}: first token after {report['mean_ttft_ms']:.0f} ms, {report['output_throughput']:.0f} tokens/s")


def main():
    with server.running() as base, tempfile.TemporaryDirectory() as folder:
        for backend in ("sglang", "sglang-oai-chat", "sglang-oai"):
            measure(base, backend, pathlib.Path(folder))
    print("sglang.benchmark.serving: 3 passed, 0 failed")


if __name__ == "__main__":
    main()
