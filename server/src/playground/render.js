// From answers to elements. What a model or a person wrote becomes text nodes and nothing else: no markup is ever parsed.

/** An element with properties and children; strings become text. */
function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Fills `body` with text in which fences, `code` and **strong** are shown as such. */
function showText(body, text) {
  const parts = text.split(/^```[^\n`]*\n?/m);
  const nodes = parts.flatMap((part, place) => {
    if (place % 2 === 1) return [element("pre", {}, element("code", {}, part.replace(/\n$/, "")))];
    return inline(place > 0 ? part.replace(/^\n/, "") : part);
  });
  body.replaceChildren(...nodes);
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return element("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return element("strong", {}, part.slice(2, -2));
    return document.createTextNode(part);
  });
}

/** Adds the tokens that `body` does not have yet, each in the colour of its probability. */
function showTokens(body, pieces) {
  for (const piece of pieces.slice(body.childNodes.length)) {
    const span = element("span", { className: "token", textContent: piece.text, tabIndex: -1 });
    const least = Math.min(0, ...piece.tokens.map((token) => token.logprob));
    if (piece.tokens.length) span.style.backgroundColor = `rgb(226 86 60 / ${(0.75 * (1 - Math.exp(least))).toFixed(3)})`;
    span.tokens = piece.tokens;
    body.append(span);
  }
}

/** What could have come in place of a token, likeliest first. */
function showAlternatives(tip, span) {
  const rows = span.tokens.flatMap((token) => {
    const others = token.top_logprobs.length ? token.top_logprobs : [token];
    const known = others.some((other) => same(other, token)) ? others : [...others, token];
    return known.map((other) => {
      const percent = `${(100 * Math.exp(other.logprob)).toFixed(1)} %`;
      const row = element("tr", {}, element("td", {}, JSON.stringify(other.token)), element("td", {}, percent));
      row.className = same(other, token) ? "chosen" : "";
      return row;
    });
  });
  tip.replaceChildren(rows.length ? element("table", {}, ...rows) : "not known");
  tip.hidden = false;
  const [box, size] = [span.getBoundingClientRect(), tip.getBoundingClientRect()];
  const above = box.top - size.height - 6;
  tip.style.left = `${Math.max(6, Math.min(box.left, innerWidth - size.width - 6))}px`;
  tip.style.top = `${above > 6 ? above : box.bottom + 6}px`;
}

function same(one, other) {
  return one.token === other.token && String(one.bytes) === String(other.bytes);
}

/** A turn of the user, the system or a tool. */
function plainTurn(role, text) {
  const turn = element("article", { className: `message ${role}` });
  if (role !== "user") turn.append(element("div", { className: "who" }, role === "tool" ? "Result of a tool" : role));
  turn.append(element("div", { className: "body" }, text));
  return turn;
}

function problemBox(problem) {
  const title = problem.status === 401 || problem.status === 403 ? "No entry" : "That did not work";
  return element("div", { className: "problem", role: "alert" }, element("strong", {}, title), problem.message);
}

/** An answer on the screen; `show` brings it up to date. */
class AnswerView {
  constructor(answer, options) {
    this.answer = answer;
    this.options = options; // coloured, onResults, onAgain
    this.turn = element("article", { className: "message assistant writing" });
    this.wait = element("i", { className: "waiting", title: "Waiting for the first token" });
    this.summary = element("summary");
    this.thoughts = element("div", { className: "body" });
    this.reasoning = element("details", { className: "reasoning live", hidden: true }, this.summary, this.thoughts);
    this.body = element("div", { className: "body" });
    this.calls = element("div");
    this.figures = element("div", { className: "figures" });
    this.turn.append(this.wait, this.reasoning, this.body, this.calls, this.figures);
  }

  /** Draws at most once a frame. */
  show() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    const { reasoning, content, calls } = this.answer;
    this.wait.hidden = this.answer.first !== null;
    this.reasoning.hidden = !reasoning.text;
    if (reasoning.text) this.channel(this.thoughts, reasoning);
    this.channel(this.body, content);
    const seconds = (((this.answer.thought ?? this.answer.last) - this.answer.started) / 1000).toFixed(1);
    const thinking = this.answer.thought === null && !this.done;
    this.reasoning.classList.toggle("live", thinking);
    const tokens = this.answer.usage?.completion_tokens_details?.reasoning_tokens;
    this.summary.textContent = `${thinking ? "Thinking" : "Thought"} for ${seconds} s` + (tokens ? `, ${tokens} tokens` : "");
    calls.forEach((call, place) => this.call(call, place));
    this.figures.replaceChildren(...figuresOf(this.answer));
  }

  channel(body, channel) {
    if (this.options.coloured) showTokens(body, channel.pieces);
    else if (body.shown !== channel.text) showText(body, channel.text);
    body.shown = channel.text;
  }

  call(call, place) {
    const box = this.calls.children[place] ?? this.calls.appendChild(element("div", { className: "call" }));
    if (!box.firstChild) box.append(element("div", { className: "name" }), element("pre"));
    box.children[0].textContent = call.name;
    box.children[1].textContent = pretty(call.arguments);
  }

  /** Ends the answer: `ending` is null, "stopped" or a Problem. */
  end(ending) {
    this.done = true;
    cancelAnimationFrame(this.frame);
    this.draw();
    this.wait.hidden = true;
    this.turn.classList.remove("writing");
    const copy = element("button", { className: "quiet", type: "button", textContent: "Copy" });
    copy.onclick = () => navigator.clipboard?.writeText(this.answer.content.text);
    const again = element("button", { className: "quiet", type: "button", textContent: "Again", title: "Answer once more" });
    again.onclick = () => this.options.onAgain();
    this.figures.append(element("span", { className: "ways" }, ...(this.answer.content.text ? [copy] : []), again));
    if (ending === "stopped") this.turn.append(element("div", { className: "note" }, "You stopped it."));
    else if (ending) this.turn.append(problemBox(ending));
    else if (this.answer.finish === "length") {
      this.turn.append(element("div", { className: "note" }, "Cut: the most tokens allowed were reached."));
    }
    if (!ending && this.answer.finish === "tool_calls") this.askForResults();
  }

  askForResults() {
    this.answer.calls.forEach((call, place) => {
      const result = element("textarea", { className: "code", rows: 2, placeholder: "What the tool answers" });
      result.oninput = () => (call.result = result.value);
      this.calls.children[place].append(element("label", { className: "tall" }, `Result of ${call.name}`, result));
    });
    const send = element("button", { className: "main", type: "button", textContent: "Send results" });
    send.onclick = () => {
      send.disabled = true;
      this.options.onResults(this.answer.calls);
    };
    this.calls.append(element("div", { className: "actions" }, send));
  }
}

/** Arguments with line breaks, once they are whole. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
