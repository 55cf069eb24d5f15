"""Drives a server with litellm: completion, streaming, tools, response_format, the Anthropic route.

    python tests/clients/litellm_client.py [BASE_URL]
"""

import json
import os

# Prices of models come with the package: nothing is fetched.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm

import server

MESSAGES = [{"role": "user", "content": server.QUESTION}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}


def main():
    litellm.telemetry = False
    with server.running() as base:
        def ask(**more):
            return litellm.completion(model="hosted_vllm/demo", api_base=f"{base}/v1", api_key="none", messages=MESSAGES,
                                      max_tokens=400, num_retries=0, **more)

        whole = ask(temperature=0)
        assert whole.choices[0].message.content, whole
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(temperature=0, stream=True))
        assert streamed == whole.choices[0].message.content, streamed
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
        called = ask(tools=[tool], tool_choice="required", extra_body={"thinking": {"type": "disabled"}})
        arguments = json.loads(called.choices[0].message.tool_calls[0].function.arguments)
        assert arguments["city"] in ("Oslo", "Rome"), called
        shaped = ask(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
        assert json.loads(shaped.choices[0].message.content)["city"] in ("Oslo", "Rome"), shaped
        message = litellm.completion(model="anthropic/demo", api_base=base, api_key="none", messages=MESSAGES,
                                     max_tokens=300, num_retries=0)
        assert message.choices[0].message.content, message
    print("litellm: 5 passed, 0 failed")


if __name__ == "__main__":
    main()
