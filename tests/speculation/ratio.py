#!/usr/bin/env python3
"""Decoding speed of servers of one model, interleaved question by question, and whether they say the same.

    ratio.py QUESTIONS.jsonl URL URL ...        [--count N] [--max-tokens N] [--concurrency N] [--ignore-eos]

QUESTIONS has a `question` per line (GSM8K's form). The first server is what the others are compared with; start it with
`--speculative off`. Speed is output tokens after the first one by the time they took, streamed, greedy; one request at a time,
or with `--concurrency` so many at once, all of them by the time until the last one ended, prompts included.
With `--ignore-eos` every answer has `--max-tokens` tokens, so that prompts hardly count.
Needs Python 3 and nothing else. Ends with status 1 where answers differ.
"""

import argparse
import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def ask(url, question, more):
    """The answer's text, its tokens after the first, and the seconds they took."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    first, text, tokens = None, [], 0
    with urllib.request.urlopen(request) as stream:
        for line in stream:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic()
            chunk = json.loads(line[6:])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for choice in chunk["choices"]:
                delta = choice["delta"]
                text.append((delta.get("reasoning_content") or "") + (delta.get("content") or ""))
    return "".join(text), tokens - 1, time.monotonic() - first


def ask_all(url, questions, more):
    """The answers, their tokens, and the seconds until the last one ended."""
    if len(questions) == 1:
        text, tokens, seconds = ask(url, questions[0], more)
        return [text], tokens, seconds
    begin = time.monotonic()
    with ThreadPoolExecutor(len(questions)) as clients:
        replies = list(clients.map(lambda question: ask(url, question, more), questions))
    seconds = time.monotonic() - begin
    return [text for text, _, _ in replies], sum(tokens for _, tokens, _ in replies), seconds


def drafts(url):
    """Verifications, accept length with the target's own token, and acceptance by place; None without drafts."""
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("perilune_draft"))
    count = lambda name: float(values.get(f"perilune_{name}", 0))
    verified = count("draft_verifications_total")
    if verified == 0:
        return None
    places = range(7)
    drafted = [count(f'draft_tokens_total{{place="{place}"}}') for place in places]
    accepted = [count(f'draft_tokens_accepted_total{{place="{place}"}}') for place in places]
    rates = [f"{a / d:.2f}" if d else "-" for a, d in zip(accepted, drafted)]
    drafting = count("draft_microseconds_total") / verified / 1000
    length = 1 + sum(accepted) / verified
    return f"{verified:.0f} verifications, accept length {length:.2f}, by place {' '.join(rates)}, drafting {drafting:.2f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions")
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--ignore-eos", action="store_true")
    args = parser.parse_args()
    more = {"max_tokens": args.max_tokens, "ignore_eos": args.ignore_eos}
    with open(args.questions, encoding="utf-8") as lines:
        questions = [json.loads(line)["question"] for line in lines][: args.count]
    speeds, answers = {url: [] for url in args.urls}, {url: [] for url in args.urls}
    totals = {url: [0, 0.0] for url in args.urls}
    for first in range(0, len(questions), args.concurrency):
        for url in args.urls:
            texts, tokens, seconds = ask_all(url, questions[first : first + args.concurrency], more)
            answers[url].extend(texts)
            if tokens > 0:
                speeds[url].append(tokens / seconds)
                totals[url][0] += tokens
                totals[url][1] += seconds
    base = args.urls[0]
    for url in args.urls:
        ratios = sorted(ours / theirs for ours, theirs in zip(speeds[url], speeds[base]))
        tokens, seconds = totals[url]
        same = "same answers" if answers[url] == answers[base] else "OTHER ANSWERS"
        print(f"{url}: {tokens / seconds:.0f} tokens/s, median ratio {ratios[len(ratios) // 2]:.2f}, {same}")
        if found := drafts(url):
            print(f"    {found}")
    sys.exit(any(answers[url] != answers[base] for url in args.urls))


if __name__ == "__main__":
    main()
