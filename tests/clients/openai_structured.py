"""Drives a server with the openai package: parse with pydantic, strict tools, the stream helper, responses.

    python tests/clients/openai_structured.py [BASE_URL]
"""

import json
from typing import Literal

import openai
import pydantic

import server

MESSAGES = [{"role": "user", "content": server.QUESTION}]
NO_THINKING = {"thinking": {"type": "disabled"}}


class Sum(pydantic.BaseModel):
    total: int = pydantic.Field(ge=0, le=999)
    unit: Literal["pens", "boxes"]
    certain: bool


class GetWeather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Rome"]
    days: int = pydantic.Field(ge=1, le=9)


def check_parse(client, model):
    whole = client.chat.completions.parse(model=model, messages=MESSAGES, response_format=Sum, max_tokens=1500, seed=3)
    message = whole.choices[0].message
    assert isinstance(message.parsed, Sum), message
    assert message.reasoning_content, "thinking is not to be skipped"
    print(f"parse: {message.parsed!r}")


def check_tools(client, model):
    tool = openai.pydantic_function_tool(GetWeather)
    for choice in ("required", {"type": "function", "function": {"name": "GetWeather"}}):
        whole = client.chat.completions.parse(model=model, messages=MESSAGES, tools=[tool], tool_choice=choice,
                                              parallel_tool_calls=False, max_tokens=1500, extra_body=NO_THINKING)
        assert whole.choices[0].finish_reason == "tool_calls", whole
        call = whole.choices[0].message.tool_calls[0]
        assert isinstance(call.function.parsed_arguments, GetWeather), call
    turn = [*MESSAGES, whole.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "18C"}]
    after = client.chat.completions.create(model=model, messages=turn, tools=[tool], max_tokens=8)
    assert after.usage.prompt_tokens > whole.usage.prompt_tokens, after


def check_stream_helper(client, model):
    tool = openai.pydantic_function_tool(GetWeather)
    with client.chat.completions.stream(model=model, messages=MESSAGES, tools=[tool], tool_choice="required",
                                        parallel_tool_calls=False, max_tokens=1500, extra_body=NO_THINKING) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather), final
    with client.chat.completions.stream(model=model, messages=MESSAGES, response_format=Sum, max_tokens=1500) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.done" in kinds and isinstance(final.choices[0].message.parsed, Sum), (kinds, final)


def check_responses(client, model):
    whole = client.responses.create(model=model, input=server.QUESTION, max_output_tokens=1500)
    assert whole.status == "completed" and whole.output_text, whole
    assert [item.type for item in whole.output] == ["reasoning", "message"], whole
    parsed = client.responses.parse(model=model, input=server.QUESTION, text_format=Sum, max_output_tokens=1500)
    assert isinstance(parsed.output_parsed, Sum), parsed
    with client.responses.stream(model=model, input=server.QUESTION, max_output_tokens=1500) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == final.output_text, final
    tool = {"type": "function", "name": "get_weather", "parameters": GetWeather.model_json_schema(), "strict": True}
    called = client.responses.create(model=model, input=server.QUESTION, tools=[tool], tool_choice="required",
                                     parallel_tool_calls=False, max_output_tokens=1500, reasoning={"effort": "none"})
    call = called.output[-1]
    assert call.type == "function_call" and GetWeather.model_validate_json(call.arguments), called
    turn = [{"role": "user", "content": server.QUESTION}, *[item.to_dict() for item in called.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"celsius": 18})}]
    after = client.responses.create(model=model, input=turn, tools=[tool], max_output_tokens=8)
    assert after.usage.input_tokens > called.usage.input_tokens, after
    print(f"responses: {whole.output_text!r}")


def check_refusals(client, model):
    unsupported = {"type": "object", "properties": {"a": {"not": {}}}}
    try:
        client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": unsupported, "strict": True}})
    except openai.BadRequestError as error:
        assert error.body["param"] == "response_format.json_schema.schema.properties.a.not", error.body
        return
    raise AssertionError("a keyword that cannot be enforced was accepted")


def main():
    with server.running() as base:
        client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=60)
        model = client.models.list().data[0].id
        for check in (check_parse, check_tools, check_stream_helper, check_responses, check_refusals):
            check(client, model)
    print("openai-python, structured output, tools and responses: 5 passed, 0 failed")


if __name__ == "__main__":
    main()
