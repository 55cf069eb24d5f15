"""Drives a server with langchain-openai: invoke, stream, bind_tools, with_structured_output.

    python tests/clients/langchain_openai_client.py [BASE_URL]
"""

from typing import Literal

import langchain_openai
import pydantic

import server


class GetWeather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Rome"]
    days: int


def main():
    with server.running() as base:
        quiet = {"thinking": {"type": "disabled"}}
        model = langchain_openai.ChatOpenAI(base_url=f"{base}/v1", api_key="none", model="demo", max_tokens=400,
                                            max_retries=0, extra_body=quiet)
        whole = model.invoke(server.QUESTION)
        assert whole.content and whole.usage_metadata["total_tokens"], whole
        assert "".join(chunk.content for chunk in model.stream(server.QUESTION)) == whole.content
        called = model.bind_tools([GetWeather], tool_choice="required").invoke(server.QUESTION)
        assert called.tool_calls and GetWeather(**called.tool_calls[0]["args"]), called
        for method in ("json_schema", "function_calling"):
            found = model.with_structured_output(GetWeather, method=method).invoke(server.QUESTION)
            assert isinstance(found, GetWeather), (method, found)
    print("langchain-openai: 4 passed, 0 failed")


if __name__ == "__main__":
    main()
