// Drives a server with the openai package of npm: chat, the stream helper, parse with zod, tools, the tool runner,
// responses, stopping, errors.
//
//     npm ci --prefix tests/clients/node && node tests/clients/node/openai_node.mjs BASE_URL

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const base = process.argv[2].replace(/\/$/, "").replace(/\/v1$/, "");
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;
const question = "There are 3 boxes with 12 pens in each box. How many pens are there in total?";
const messages = [{ role: "user", content: question }];
const noThinking = { reasoning_effort: "none" };

const Sum = z.object({ total: z.number().int().min(0).max(999), unit: z.enum(["pens", "boxes"]), certain: z.boolean() });
const Weather = z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) });

/** The whole answer, and the same from the stream helper, event by event. */
async function chat() {
  const whole = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 200 });
  const { message, finish_reason: reason } = whole.choices[0];
  assert.equal(reason, "stop");
  assert.ok(message.content && message.reasoning_content, JSON.stringify(message));
  const options = { model, messages, temperature: 0, max_tokens: 200, stream_options: { include_usage: true } };
  const stream = client.chat.completions.stream(options);
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(text, message.content);
  assert.equal(final.choices[0].message.content, message.content);
  assert.deepEqual((await stream.totalUsage()).completion_tokens, whole.usage.completion_tokens);
  console.log(`chat: ${JSON.stringify(message.reasoning_content)} -> ${JSON.stringify(message.content)}`);
}

/** Answers that must have the form of a zod schema, streamed and not. */
async function parse() {
  const options = { model, messages, response_format: zodResponseFormat(Sum, "sum"), max_tokens: 1500, seed: 3 };
  const whole = (await client.chat.completions.parse(options)).choices[0].message;
  assert.deepEqual(Sum.parse(whole.parsed), whole.parsed);
  const streamed = await client.chat.completions.stream(options).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, whole.parsed);
  console.log(`parse: ${JSON.stringify(whole.parsed)}`);
}

/** A strict tool; the deltas of the stream; the runner that calls it and sends the result back. */
async function tools() {
  const tool = zodFunction({ name: "get_weather", parameters: Weather, description: "The weather of a city." });
  const options = { model, messages, tools: [tool], tool_choice: "required", parallel_tool_calls: false, max_tokens: 400, seed: 1, ...noThinking };
  const whole = (await client.chat.completions.parse(options)).choices[0];
  assert.equal(whole.finish_reason, "tool_calls");
  const call = whole.message.tool_calls[0].function;
  assert.deepEqual(Weather.parse(call.parsed_arguments), call.parsed_arguments);
  const stream = client.chat.completions.stream(options);
  let pieces = "";
  stream.on("tool_calls.function.arguments.delta", (event) => (pieces += event.arguments_delta));
  const streamed = (await stream.finalChatCompletion()).choices[0].message.tool_calls[0].function;
  assert.equal(streamed.arguments, call.arguments);
  assert.equal(pieces, call.arguments);
  let asked = null;
  const runnable = zodFunction({
    name: "get_weather",
    parameters: Weather,
    description: "The weather of a city.",
    function: (args) => ((asked = args), "18 degrees"),
  });
  const runner = client.chat.completions.runTools({ ...options, tools: [runnable] }, { maxChatCompletions: 1 });
  const results = [];
  runner.on("functionToolCallResult", (result) => results.push(result));
  await runner.done().catch((error) => assert.match(String(error), /max|limit|turn|content/i));
  assert.deepEqual(asked, call.parsed_arguments);
  assert.deepEqual(results, ["18 degrees"]);
  console.log(`tools: get_weather(${call.arguments})`);
}

/** Responses: whole, streamed with its events, parsed. */
async function responses() {
  const options = { model, input: question, temperature: 0, max_output_tokens: 200 };
  const whole = await client.responses.create(options);
  assert.equal(whole.status, "completed");
  assert.ok(whole.output_text, JSON.stringify(whole.output));
  const stream = client.responses.stream(options);
  let text = "";
  let events = 0;
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  stream.on("event", (event) => assert.equal(event.sequence_number, events++));
  const final = await stream.finalResponse();
  assert.equal(text, whole.output_text);
  assert.equal(final.output_text, whole.output_text);
  const format = zodTextFormat(Sum, "sum");
  const parsed = await client.responses.parse({ model, input: question, text: { format }, max_output_tokens: 1500 });
  assert.deepEqual(Sum.parse(parsed.output_parsed), parsed.output_parsed);
  console.log(`responses: ${JSON.stringify(whole.output_text)} in ${events} events`);
}

/** Leaving a stream ends the work on the server. */
async function stop() {
  const aborted = async () => /reason="abort"\} (\d+)/.exec(await (await fetch(`${base}/metrics`)).text())[1];
  const before = await aborted();
  const endless = { model, messages, stream: true, max_tokens: 3900, ignore_eos: true };
  for await (const chunk of await client.chat.completions.create(endless)) {
    if (chunk.choices.length) break;
  }
  for (let tries = 0; (await aborted()) === before; tries++) {
    assert.ok(tries < 100, "the server goes on after the client has left");
    await sleep(50);
  }
}

/** Errors come as the package's classes, with the field. */
async function errors() {
  for (const stream of [false, true]) {
    const ask = (wrong) => client.chat.completions.create({ model, messages, max_tokens: 4, stream, ...wrong });
    await assert.rejects(ask({ temperature: -1 }), (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
    await assert.rejects(ask({ model: "none" }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
    await assert.rejects(ask({ messages: [] }), (error) => error instanceof OpenAI.BadRequestError && error.param === "messages");
  }
  await assert.rejects(client.embeddings.create({ model, input: "x" }), (error) => error.status === 501);
}

const checks = [chat, parse, tools, responses, stop, errors];
for (const check of checks) await check();
console.log(`openai-node: ${checks.length} passed, 0 failed`);
