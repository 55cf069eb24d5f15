// Talking to the server: requests with the key, errors as sentences, server-sent events, and what a stream adds up to.

/** What went wrong, as a sentence for a person. `status` is 0 where no answer came. */
class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Asks a route of this server. Throws a Problem unless it answers well. */
async function ask(path, key, options = {}) {
  const headers = { ...options.headers };
  if (!/^[\x21-\x7e]*$/.test(key)) throw new Problem("The key has characters that no key has.", 401);
  if (key) headers["Authorization"] = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached. Is it still running?", 0);
  }
  if (response.ok) return response;
  throw new Problem(sentence(await response.text(), response.status), response.status);
}

/** The message in an error's body, or what the status alone says. */
function sentence(body, status) {
  try {
    const error = JSON.parse(body).error;
    if (typeof error.message === "string") return capital(error.message);
  } catch {
    // Not ours: a proxy's page, perhaps.
  }
  return `The server answered with status ${status} and no explanation.`;
}

function capital(text) {
  const start = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}

/** The JSON values of an event stream, one after another, until `[DONE]`. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Problem("The connection ended before the answer did.", 0);
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        if (!block.startsWith("data: ")) continue; // a ping
        const data = block.slice("data: ".length);
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } catch (error) {
    if (error instanceof Problem || error.name === "AbortError") throw error;
    throw new Problem("The connection broke before the answer was complete.", 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** An answer as its chunks add up. */
class Answer {
  reasoning = new Channel();
  content = new Channel();
  calls = [];
  finish = null;
  usage = null;
  started = performance.now();
  first = null;
  firstTokens = 0;
  thought = null;
  last = null;

  add(chunk) {
    if (chunk.error) throw new Problem(capital(chunk.error.message), chunk.error.code ?? 500);
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) {
      this.last = performance.now();
      if (this.first === null) this.firstTokens = chunk.usage?.completion_tokens ?? 0;
      this.first ??= this.last;
      const delta = choice.delta;
      const tokens = choice.logprobs?.content ?? [];
      if (delta.reasoning_content) this.reasoning.add(delta.reasoning_content, tokens);
      if (delta.content) {
        this.thought ??= this.last;
        // Where one chunk has both, its tokens are shown with the reasoning.
        this.content.add(delta.content, delta.reasoning_content ? [] : tokens);
      }
      for (const call of delta.tool_calls ?? []) this.addCall(call);
      if (choice.finish_reason) this.finish = choice.finish_reason;
    }
  }

  addCall(delta) {
    this.thought ??= this.last;
    const call = (this.calls[delta.index] ??= { id: "", name: "", arguments: "", result: "" });
    if (delta.id) call.id = delta.id;
    if (delta.function.name) call.name = delta.function.name;
    call.arguments += delta.function.arguments ?? "";
  }

  /** The turn as the next request says it again. */
  message() {
    const message = { role: "assistant", content: this.content.text || (this.calls.length ? null : "") };
    if (this.reasoning.text) message.reasoning_content = this.reasoning.text;
    if (this.calls.length) {
      const calls = this.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
      message.tool_calls = calls;
    }
    return message;
  }
}

/** Text of one channel, and the tokens it came in where their probabilities are known. */
class Channel {
  text = "";
  pieces = [];

  add(text, tokens) {
    this.text += text;
    const whole = tokens.map((token) => token.token).join("");
    // Characters made of several tokens, or markup around the text: one piece for all of them.
    if (tokens.length === 0 || whole !== text) this.pieces.push({ text, tokens });
    else this.pieces.push(...tokens.map((token) => ({ text: token.token, tokens: [token] })));
  }
}
