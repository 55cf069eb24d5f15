"""Drives a server with lm-evaluation-harness: generation and log-likelihoods over completions, with the server's own
tokenizer (`tokenizer_backend=remote`), and generation over chat.

    python tests/clients/lm_eval_client.py [BASE_URL]
"""

import json
import math
import pathlib
import tempfile

import program
import server

TASKS = server.ROOT / "tests" / "lm_eval"


def evaluate(base, model, path, task, *more):
    """Runs one task; returns its results and its samples."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = f"base_url={base}{path},model=demo,num_concurrent=4,max_length=4096"
        if model == "local-completions":
            arguments += ",tokenizer_backend=remote"
        program.run("lm_eval", "--model", model, "--model_args", arguments, "--tasks", task, "--include_path", TASKS,
                    "--output_path", folder, "--log_samples", *more)
        found = {file.name.split("_")[0]: file for file in pathlib.Path(folder).rglob("*.json*")}
        results = json.loads(found["results"].read_text())["results"][task]
        return results, [json.loads(line) for line in found["samples"].read_text().splitlines()]


def check_generation(base, model, path, *more):
    results, samples = evaluate(base, model, path, "perilune_gsm8k", "--limit", "6", *more)
    assert len(samples) == 6 and 0 <= results["exact_match,last-line"] <= 1, results
    texts = [sample["resps"][0][0] for sample in samples]
    # A model that thinks may reach the limit of the task before it answers.
    answers = [text for text in texts if text.strip()]
    assert len(answers) >= 3, texts
    print(f"{model}: {answers[0][:70]!r}")


def check_choices(base):
    results, samples = evaluate(base, "local-completions", "/v1/completions", "perilune_choice")
    likelihoods = [float(choice[0][0]) for sample in samples for choice in sample["resps"]]
    assert len(likelihoods) == 48 and all(math.isfinite(value) and value < 0 for value in likelihoods), likelihoods
    # The demo writes a sum's own digits as the likeliest ones more often than chance would (one in four).
    assert results["acc,none"] > 0.25, results
    print(f"log-likelihoods: accuracy {results['acc,none']:.2f} of 12 sums with four answers each")


def main():
    with server.running() as base:
        check_generation(base, "local-completions", "/v1/completions")
        check_choices(base)
        check_generation(base, "local-chat-completions", "/v1/chat/completions", "--apply_chat_template")
    print("lm-evaluation-harness: 3 passed, 0 failed")


if __name__ == "__main__":
    main()
