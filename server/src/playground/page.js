// The page: settings, the conversation, and the keyboard.

const $ = (id) => document.getElementById(id);
const SETTINGS = ["effort", "temperature", "top_p", "max_tokens", "seed", "stop", "system", "tool_choice", "tools", "extra"];
const EXAMPLES = [
  "There are 3 boxes with 12 pens in each box. How many pens are there in total?",
  "Anna has 45 apples. She gives 17 of them to Ben. How many apples does she have left?",
];
const EXAMPLE_TOOL = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Oslo", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
      required: ["city", "days"],
      additionalProperties: false,
    },
  },
};

const chat = { messages: [], running: null };
/** The API key, empty where none is needed. */
const key = () => $("key").value.trim();
const server = new ServerFigures(key, () => chat.running !== null);

// ---- settings

function restore() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem("perilune") ?? "{}");
  } catch {
    // As if there were none.
  }
  for (const id of SETTINGS) if (typeof kept[id] === "string") $(id).value = kept[id];
  $("logprobs").checked = kept.logprobs === true;
  setTheme(["light", "dark"].includes(kept.theme) ? kept.theme : "auto");
  $("key").value = sessionStorage.getItem("perilune-key") ?? "";
  $("key-section").hidden = !key();
}

function keep() {
  const all = Object.fromEntries(SETTINGS.map((id) => [id, $(id).value]));
  const theme = document.documentElement.dataset.theme;
  localStorage.setItem("perilune", JSON.stringify({ ...all, logprobs: $("logprobs").checked, theme }));
  sessionStorage.setItem("perilune-key", key());
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
}

/** The JSON in a field, undefined where it is empty; throws a Problem, shown beside it, where it is none of the kind. */
function json(id, kind, fits) {
  const text = $(id).value.trim();
  let value;
  let wrong = "";
  try {
    value = text ? JSON.parse(text) : undefined;
    if (text && !fits(value)) wrong = `This must be ${kind}.`;
  } catch (error) {
    wrong = `This is not JSON: ${error.message}`;
  }
  $(`${id}-wrong`).textContent = wrong;
  $(`${id}-wrong`).hidden = !wrong;
  $(id).setAttribute("aria-invalid", String(Boolean(wrong)));
  if (wrong) throw new Problem(`${id === "tools" ? "The tools" : "More fields"}: ${wrong}`, 400);
  return value;
}

const readTools = () => json("tools", "a list", Array.isArray);
const readExtra = () => json("extra", "an object", (value) => value !== null && typeof value === "object" && !Array.isArray(value));

/** The request for the conversation as it stands. */
function request() {
  const body = { model: $("model").value, messages: [...chat.messages], stream: true };
  if ($("system").value.trim()) body.messages.unshift({ role: "system", content: $("system").value });
  body.stream_options = { include_usage: true, continuous_usage_stats: true };
  for (const id of ["temperature", "top_p", "max_tokens", "seed"]) {
    if ($(id).value !== "") body[id] = Number($(id).value);
  }
  if ($("stop").value) body.stop = [$("stop").value];
  if ($("effort").value) body.reasoning_effort = $("effort").value;
  if ($("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  const tools = readTools();
  if (tools?.length) Object.assign(body, { tools, tool_choice: $("tool_choice").value });
  return Object.assign(body, readExtra());
}

// ---- conversation

/** Asks for an answer to the conversation and shows it as it comes. */
async function answer() {
  let body;
  try {
    body = request();
  } catch (problem) {
    return failed(problem);
  }
  const running = new AbortController();
  setRunning(running);
  const from = chat.messages.length;
  const made = new Answer();
  const view = new AnswerView(made, {
    coloured: body.logprobs === true,
    onAgain: () => again(from, view.turn),
    onResults: sendResults,
  });
  append(view.turn);
  let ending = null;
  try {
    const headers = { "Content-Type": "application/json" };
    const options = { method: "POST", headers, body: JSON.stringify(body), signal: running.signal };
    const response = await ask("/v1/chat/completions", key(), options);
    for await (const chunk of events(response)) {
      made.add(chunk);
      view.show();
      follow();
    }
  } catch (error) {
    ending = error.name === "AbortError" ? "stopped" : error instanceof Problem ? error : new Problem(String(error), 0);
  }
  view.end(ending);
  if (made.first !== null && chat.running === running) chat.messages.push(made.message());
  if (ending?.status === 401 || ending?.status === 403) askForKey();
  if (chat.running === running) setRunning(null);
  follow();
  server.poll();
}

function setRunning(running) {
  chat.running = running;
  $("send").textContent = running ? "Stop" : "Send";
  $("send").classList.toggle("stop", running !== null);
}

function send() {
  const text = $("prompt").value.trim();
  if (!text || chat.running) return;
  try {
    request();
  } catch (problem) {
    return failed(problem); // and the text stays where it is
  }
  $("prompt").value = "";
  grow();
  chat.messages.push({ role: "user", content: text });
  append(plainTurn("user", text));
  answer();
}

function sendResults(calls) {
  if (chat.running) return;
  for (const call of calls) {
    chat.messages.push({ role: "tool", tool_call_id: call.id, content: call.result });
    append(plainTurn("tool", call.result || "(nothing)"));
  }
  answer();
}

/** Forgets an answer and what followed it, and asks once more. */
function again(from, turn) {
  if (chat.running) return;
  chat.messages.length = from;
  while (turn.nextSibling) turn.nextSibling.remove();
  turn.remove();
  answer();
}

function stop() {
  chat.running?.abort();
}

function forget() {
  stop();
  setRunning(null);
  chat.messages = [];
  $("log").replaceChildren();
  $("empty").hidden = false;
  $("prompt").focus();
}

function failed(problem) {
  append(problemBox(problem));
}

function append(node) {
  $("empty").hidden = true;
  $("log").append(node);
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

/** Keeps the end in sight, unless the reader has scrolled away from it. */
function follow() {
  const box = $("scroll");
  if (box.scrollHeight - box.scrollTop - box.clientHeight < 130) box.scrollTop = box.scrollHeight;
}

// ---- server

async function connect() {
  try {
    const models = await (await ask("/v1/models", key())).json();
    const chosen = $("model").value;
    $("model").replaceChildren(...models.data.map(({ id }) => element("option", { value: id, textContent: id })));
    if (models.data.some(({ id }) => id === chosen)) $("model").value = chosen;
    say("good", "");
  } catch (problem) {
    say("bad", problem.status === 401 ? "needs a key" : problem.message);
    if (problem.status === 401) askForKey();
    if (problem.status === 503) setTimeout(connect, 2000);
  }
  server.poll();
}

function say(colour, text) {
  $("dot").className = `dot ${colour}`;
  $("state").textContent = text;
}

function askForKey() {
  document.body.classList.remove("wide");
  document.body.classList.add("panel");
  $("key-section").hidden = false;
  $("key").focus();
}

async function copyCurl() {
  let body;
  try {
    body = request();
  } catch (problem) {
    return failed(problem);
  }
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const auth = key() ? ' -H "Authorization: Bearer $KEY"' : "";
  const command = `curl -N ${location.origin}/v1/chat/completions -H 'Content-Type: application/json'${auth} -d '${quoted}'`;
  await navigator.clipboard?.writeText(command);
  $("copy-curl").textContent = "Copied";
  setTimeout(() => ($("copy-curl").textContent = "Copy as curl"), 1500);
}

// ---- keyboard and pointer

function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

function quietly(read) {
  try {
    read();
  } catch {
    // Said beside the field.
  }
}

function wire() {
  $("ask").onsubmit = (event) => {
    event.preventDefault();
    chat.running ? stop() : send();
  };
  $("prompt").oninput = grow;
  $("prompt").onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  document.onkeydown = (event) => {
    if (event.key === "Escape") chat.running ? stop() : document.body.classList.remove("panel");
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      $("prompt").focus();
    }
  };
  $("new").onclick = forget;
  $("theme").onclick = () => {
    const order = ["auto", "light", "dark"];
    setTheme(order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length]);
    keep();
  };
  const narrow = matchMedia("(max-width: 860px)");
  $("toggle-panel").onclick = () => document.body.classList.toggle(narrow.matches ? "panel" : "wide");
  $("shade").onclick = $("close-panel").onclick = () => document.body.classList.remove("panel");
  $("key").onchange = connect;
  $("panel").onchange = keep;
  $("logprobs").onchange = () => ($("legend").hidden = !$("logprobs").checked);
  $("tools").oninput = () => quietly(readTools);
  $("extra").oninput = () => quietly(readExtra);
  const setTools = (text) => {
    $("tools").value = text;
    quietly(readTools);
    keep();
  };
  $("example-tool").onclick = () => setTools(JSON.stringify([EXAMPLE_TOOL], null, 2));
  $("tidy-tools").onclick = () => setTools(pretty($("tools").value));
  $("clear-tools").onclick = () => setTools("");
  $("copy-curl").onclick = copyCurl;
  $("log").onmouseover = (event) => {
    const token = event.target.closest(".token");
    if (token) showAlternatives($("tip"), token);
    else $("tip").hidden = true;
  };
  $("log").onmouseleave = () => ($("tip").hidden = true);
  $("log").onclick = $("log").onmouseover; // a tap, where nothing hovers
}

restore();
wire();
$("legend").hidden = !$("logprobs").checked;
$("examples").append(...EXAMPLES.map((text) => {
  const button = element("button", { type: "button", textContent: text });
  button.onclick = () => {
    $("prompt").value = text;
    send();
  };
  return button;
}));
connect();
if (!matchMedia("(max-width: 860px)").matches) $("prompt").focus();
