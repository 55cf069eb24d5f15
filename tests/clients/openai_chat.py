"""Drives a server with the openai package: chat and completions, streaming and not, usage, log-probabilities, errors.

    python tests/clients/openai_chat.py [BASE_URL]
"""

import openai

import server

QUESTION = [{"role": "user", "content": server.QUESTION}]


def check_models(client):
    models = client.models.list().data
    assert len(models) == 1, models
    assert client.models.retrieve(models[0].id).id == models[0].id
    return models[0].id


def check_chat(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=200)
    choice = whole.choices[0]
    assert choice.finish_reason == "stop", choice
    assert choice.message.role == "assistant" and choice.message.content, choice
    assert choice.message.reasoning_content, choice
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    reasoning, content, reasons, usage = "", "", [], None
    stream = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=200, stream=True,
                                            stream_options={"include_usage": True})
    for number, chunk in enumerate(stream):
        usage = chunk.usage or usage
        for part in chunk.choices:
            if number == 0:
                assert part.delta.role == "assistant", part
            reasoning += getattr(part.delta, "reasoning_content", None) or ""
            content += part.delta.content or ""
            reasons += [part.finish_reason] if part.finish_reason else []
    assert (reasoning, content) == (choice.message.reasoning_content, choice.message.content), (reasoning, content)
    assert reasons == ["stop"], reasons
    assert usage.completion_tokens == whole.usage.completion_tokens, usage
    assert usage.completion_tokens_details.reasoning_tokens > 0, usage
    print(f"chat: {reasoning!r} -> {content!r}")


def check_chat_options(client, model):
    def draw(**more):
        return client.chat.completions.create(model=model, messages=QUESTION, max_tokens=16, temperature=1.8, **more)

    texts = [c.message.reasoning_content for c in draw(seed=7, n=3).choices]
    assert texts == [c.message.reasoning_content for c in draw(seed=7, n=3).choices], texts
    assert len(set(texts)) > 1, texts
    direct = draw(seed=1, extra_body={"thinking": {"type": "disabled"}}).choices[0]
    assert direct.message.content and not getattr(direct.message, "reasoning_content", None), direct
    rows = draw(seed=1, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert rows and all(len(r.top_logprobs) == 3 and r.logprob <= 0 for r in rows), rows
    cut = draw(seed=1, extra_body={"ignore_eos": True, "min_tokens": 16, "thinking": {"type": "disabled"}})
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 16, cut


def check_completions(client, model):
    prompt = "Question: What is 7 + 5?\nAnswer:"
    whole = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=24)
    text = whole.choices[0].text
    assert text, whole
    stream = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=24, stream=True)
    assert "".join(c.text for chunk in stream for c in chunk.choices) == text
    several = client.completions.create(model=model, prompt=[prompt, "Question: What is"], temperature=0, max_tokens=24)
    assert [c.index for c in several.choices] == [0, 1] and several.choices[0].text == text, several
    ids = whole.choices[0].model_dump().get("prompt_token_ids") or tokenize(client, prompt)
    by_ids = client.completions.create(model=model, prompt=ids, temperature=0, max_tokens=24)
    assert by_ids.choices[0].text == text, by_ids
    scored = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=1, echo=True, logprobs=2)
    logprobs = scored.choices[0].logprobs
    assert scored.choices[0].text.startswith(prompt), scored
    assert logprobs.token_logprobs[0] is None and all(p <= 0 for p in logprobs.token_logprobs[1:]), logprobs
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(ids) + 1, logprobs
    stopped = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=24, stop=["="])
    assert "=" not in stopped.choices[0].text and stopped.choices[0].finish_reason == "stop", stopped
    print(f"completion: {text!r}")


def tokenize(client, prompt):
    base = str(client.base_url).rstrip("/").removesuffix("/v1")
    reply = client.post(f"{base}/tokenize", body={"prompt": prompt, "add_special_tokens": False}, cast_to=object)
    return reply["tokens"]


def check_errors(client, model):
    def refused(kind, param, **request):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, "max_tokens": 4, **request})
        except kind as error:
            assert error.body["param"] == param, error.body
            return
        raise AssertionError(f"{request} was accepted")

    for stream in (False, True):
        refused(openai.BadRequestError, "top_logprobs", logprobs=True, top_logprobs=21, stream=stream)
        refused(openai.BadRequestError, "temperature", temperature=-1, stream=stream)
        refused(openai.BadRequestError, "logit_bias", logit_bias={"163840": 1}, stream=stream)
        refused(openai.BadRequestError, "messages", messages=[], stream=stream)
        refused(openai.NotFoundError, "model", model="no-such-model", stream=stream)
    check_models(client)


def main():
    with server.running() as base:
        client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=60)
        model = check_models(client)
        check_chat(client, model)
        check_chat_options(client, model)
        check_completions(client, model)
        check_errors(client, model)
    print("openai-python, chat and completions: 5 passed, 0 failed")


if __name__ == "__main__":
    main()
