// An answer that tries to become markup, in every place where an answer has text.

/** Chunks with `script` as reasoning, content, tool name, arguments and, where `coloured`, as tokens. */
export function hostileChunks(script, coloured) {
  const token = { token: script, logprob: -1, bytes: [60], top_logprobs: [{ token: script, logprob: -0.5, bytes: [61] }] };
  const logprobs = coloured ? { content: [token] } : null;
  const fenced = `\`\`\`html\n${script}\n\`\`\`\n\`${script}\` **${script}** [x](javascript:window.hit=1)`;
  const call = { index: 0, id: script, type: "function", function: { name: script, arguments: JSON.stringify({ x: script }) } };
  const deltas = [{ role: "assistant", reasoning_content: script }, { content: script }, { content: fenced }, { tool_calls: [call] }];
  const usage = { prompt_tokens: script, completion_tokens: 3, prompt_tokens_details: { cached_tokens: script } };
  return deltas.map((delta) => ({ choices: [{ index: 0, delta, logprobs, finish_reason: null }], usage }));
}

/** The chunks as an event stream that ends with a reason, an error, or not at all. */
export function sse(chunks, ending, script) {
  const last = {
    tool_calls: [{ choices: [{ index: 0, delta: {}, finish_reason: "tool_calls" }] }],
    error: [{ error: { message: script, type: "server_error", param: null, code: script } }],
    cut: [],
  }[ending];
  const lines = [...chunks, ...last].map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`);
  return `: ping\n\n${lines.join("")}${ending === "cut" ? "" : "data: [DONE]\n\n"}`;
}

export const hostileModels = JSON.stringify({ data: [{ id: "<img src=x onerror=window.hit=1>" }] });
