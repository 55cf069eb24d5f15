"""Drives a server with the anthropic package: messages, the stream helper, tools, counting, errors.

    python tests/clients/anthropic_messages.py [BASE_URL]
"""

import anthropic

import server

MESSAGES = [{"role": "user", "content": server.QUESTION}]
TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city", "days"], "additionalProperties": False}}


def check_messages(client, model):
    plain = client.messages.create(model=model, max_tokens=300, messages=MESSAGES)
    assert [block.type for block in plain.content] == ["text"] and plain.stop_reason == "end_turn", plain
    thinking = {"type": "enabled", "budget_tokens": 1024}
    thought = client.messages.create(model=model, max_tokens=1100, messages=MESSAGES, thinking=thinking)
    assert [block.type for block in thought.content] == ["thinking", "text"], thought
    cut = client.messages.create(model=model, max_tokens=1, messages=MESSAGES)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1, cut
    print(f"message: {thought.content[0].thinking!r} -> {thought.content[1].text!r}")
    return thought


def check_stream(client, model, whole):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(model=model, max_tokens=1100, messages=MESSAGES, thinking=thinking) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[1].text, text
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content], final
    assert final.usage.output_tokens == whole.usage.output_tokens, final


def check_tools(client, model):
    def ask(**more):
        return client.messages.create(model=model, max_tokens=400, tools=[TOOL], **{"messages": MESSAGES, **more})

    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
        used = ask(tool_choice=choice)
        assert used.stop_reason == "tool_use" and len(used.content) == 1, used
        assert used.content[0].input["city"] in ("Oslo", "Rome") and isinstance(used.content[0].input["days"], int), used
    result = {"type": "tool_result", "tool_use_id": used.content[0].id, "content": "18C"}
    turns = [*MESSAGES, {"role": "assistant", "content": used.content}, {"role": "user", "content": [result]}]
    after = ask(messages=turns)
    assert after.usage.input_tokens + after.usage.cache_read_input_tokens > 0, after


def check_count(client, model):
    counted = client.messages.count_tokens(model=model, messages=MESSAGES, tools=[TOOL])
    made = client.messages.create(model=model, max_tokens=1, messages=MESSAGES, tools=[TOOL])
    assert counted.input_tokens == made.usage.input_tokens + made.usage.cache_read_input_tokens, (counted, made.usage)


def check_errors(client, model):
    for wrong, kind in (({"messages": []}, anthropic.BadRequestError), ({"model": "none"}, anthropic.NotFoundError)):
        try:
            client.messages.create(**{"model": model, "max_tokens": 4, "messages": MESSAGES, **wrong})
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error.body
            continue
        raise AssertionError(f"{wrong} was accepted")


def main():
    with server.running() as base:
        client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=60)
        model = client.get("/v1/models", cast_to=object)["data"][0]["id"]
        whole = check_messages(client, model)
        check_stream(client, model, whole)
        for check in (check_tools, check_count, check_errors):
            check(client, model)
    print("anthropic: 5 passed, 0 failed")


if __name__ == "__main__":
    main()
