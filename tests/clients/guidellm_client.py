"""Puts a small load on a server with guidellm and checks its report.

    python tests/clients/guidellm_client.py [BASE_URL]
"""

import json
import pathlib
import tempfile

import program
import questions
import server


def main():
    with server.running() as base, tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = questions.lines(folder / "questions.json", "prompt")
        program.run("guidellm", "run", "--backend", f"kind=openai_http,target={base},model=demo", "--profile",
                    "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=8", "--data",
                    f"kind=json_file,path={data}", "--output", f"kind=json,path={folder}/report.json", "--disable-console")
        metrics = json.loads((folder / "report.json").read_text())["benchmarks"][0]["metrics"]
        totals = metrics["request_totals"]
        assert totals["successful"] == 8 and not totals["errored"] and not totals["incomplete"], totals
        first = metrics["time_to_first_token_ms"]["successful"]
        words = metrics["output_token_count"]["successful"]
        assert first["count"] == 8 and first["mean"] > 0 and words["mean"] > 1, (first, words)
        print(f"guidellm: first token after {first['mean']:.0f} ms, {words['mean']:.0f} tokens per answer")
    print("guidellm: 1 passed, 0 failed")


if __name__ == "__main__":
    main()
