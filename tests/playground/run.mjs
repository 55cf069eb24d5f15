// The playground in a headless Chromium, against the demo.
//
//     npm ci --prefix tests/playground && cargo build --release && node tests/playground/run.mjs [--screenshots DIR]
//
// Without Chromium ($CHROMIUM, or one of the system) it says so and passes, unless PERILUNE_REQUIRE_CHROMIUM is set.

import assert from "node:assert/strict";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fill, openBrowser, openPage, say, serve, until } from "./browser.mjs";
import { hostileChunks, hostileModels, sse } from "./hostile.mjs";

const QUESTION = "There are 3 boxes with 12 pens in each box. How many pens are there in total?";
const flag = process.argv.indexOf("--screenshots");
const shots = flag > 0 ? process.argv[flag + 1] : null;

async function shoot(page, name) {
  if (shots) await page.screenshot({ path: path.join(shots, `playground-${name}.png`) });
}

const text = (page, selector) => page.$eval(selector, (found) => found.textContent);
const lastAnswer = ".message.assistant:last-of-type";

/** A conversation: reasoning folded, the answer, figures, the cache in the second turn. */
async function conversation(browser, server) {
  const page = await openPage(browser, server.base);
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  await shoot(page, "empty");
  await fill(page, "#temperature", "0");
  await say(page, QUESTION);
  assert.match(await text(page, `${lastAnswer} > .body`), /36/);
  assert.equal(await page.$eval("details.reasoning", (details) => details.open), false, "reasoning is folded");
  assert.match(await text(page, "details.reasoning summary"), /^Thought for \d+\.\d s, \d+ tokens$/);
  assert.match(await text(page, "details.reasoning .body"), /36/);
  assert.match(await text(page, ".figures"), /\d+ tokens.*tok\/s.*ms to the first.*0 of \d+ prompt tokens cached.*accept length/);
  await say(page, "And if there are 5 boxes?");
  const cached = await page.$$eval(".figures", (all) => /(\d+) of \d+ prompt tokens/.exec(all.at(-1).textContent)[1]);
  assert.ok(Number(cached) > 0, `the second turn goes on from the first: ${cached}`);
  const accept = await until(page, () => Number(document.querySelector("#s-accept").textContent));
  assert.ok(accept >= 1 && accept <= 8, `${accept}`);
  assert.match(await text(page, "#s-cache"), /^\d+ %$/);
  await page.evaluate(() => document.querySelector("details.reasoning").setAttribute("open", ""));
  await until(page, () => document.querySelector("#spark .line").getAttribute("d"));
  await shoot(page, "light");
  await page.click("#new");
  assert.equal(await page.$$eval(".message", (all) => all.length), 0);
  return page;
}

/** Tokens in the colour of their probability, and what could have come. */
async function logprobs(browser, server) {
  const page = await openPage(browser, server.base, { dark: true });
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  await page.click("#logprobs");
  await fill(page, "#temperature", "0.7");
  await fill(page, "#seed", "3");
  await say(page, "Tell me about two trains and some apples.");
  await page.evaluate(() => document.querySelector("details.reasoning").setAttribute("open", ""));
  const colours = await page.$$eval(".token", (all) => all.map((token) => token.style.backgroundColor));
  assert.ok(colours.length > 5 && new Set(colours).size > 2, `${colours}`);
  const spans = await page.$$eval("details.reasoning .token", (all) => all.map((token) => token.textContent).join(""));
  assert.equal(spans, await text(page, "details.reasoning .body"));
  const tokens = await page.$$(".token");
  await tokens[3].hover();
  assert.match(await text(page, "#tip"), /"[^"]*"\d+\.\d %/);
  assert.equal(await page.$$eval("#tip tr.chosen", (all) => all.length), 1);
  await shoot(page, "dark");
  return page;
}

/** A tool is offered, called, answered. */
async function tools(browser, server) {
  const page = await openPage(browser, server.base, { dark: true });
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  await fill(page, "#tools", "[{");
  assert.match(await text(page, "#tools-wrong"), /^This is not JSON/);
  await page.type("#prompt", QUESTION);
  await page.keyboard.press("Enter");
  assert.match(await text(page, ".problem"), /The tools: This is not JSON/);
  assert.equal(await page.$eval("#prompt", (field) => field.value), QUESTION, "what was typed stays");
  await page.click("#new");
  await fill(page, "#prompt", "");
  await page.$eval("#example-tool", (button) => button.click());
  assert.equal(await page.$eval("#tools-wrong", (line) => line.hidden), true);
  await fill(page, "#tool_choice", "required");
  await fill(page, "#effort", "none");
  await fill(page, "#extra", '{"parallel_tool_calls": false}');
  await say(page, "What is the weather in Oslo for 3 days?");
  assert.equal(await text(page, ".call .name"), "get_weather");
  const args = JSON.parse(await text(page, ".call pre"));
  assert.ok(["Oslo", "Rome"].includes(args.city) && Number.isInteger(args.days), JSON.stringify(args));
  await fill(page, ".call textarea", "18 degrees, rain");
  await fill(page, "#tool_choice", "none");
  await shoot(page, "tools");
  await page.click(".call + .actions button");
  await until(page, () => document.querySelectorAll(".message.assistant:not(.writing)").length === 2);
  assert.equal(await text(page, ".message.tool .body"), "18 degrees, rain");
  assert.equal(await page.$$eval(".problem", (all) => all.length), 0);
  return page;
}

/** Stop, by button and by key, ends the work on the server, not only the picture. */
async function stop(browser, server) {
  const page = await openPage(browser, server.base);
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  await fill(page, "#extra", '{"ignore_eos": true}');
  await fill(page, "#max_tokens", "3900");
  const running = async () => {
    const metrics = await (await fetch(`${server.base}/metrics`)).text();
    return [/^perilune_requests_running (\d+)/m, /reason="abort"\} (\d+)/].map((figure) => Number(figure.exec(metrics)[1]));
  };
  for (const [turn, way] of [() => page.click("#send"), () => page.keyboard.press("Escape")].entries()) {
    const [, aborted] = await running();
    await page.type("#prompt", QUESTION);
    await page.keyboard.press("Enter");
    await until(page, () => document.querySelector(".message.assistant:last-of-type").textContent.length > 120);
    assert.equal((await running())[0], 1);
    assert.equal(await text(page, "#send"), "Stop");
    await way();
    await until(page, () => document.querySelector("#send").textContent === "Send");
    for (let tries = 0; (await running())[1] === aborted; tries++) {
      assert.ok(tries < 40, "the server goes on after the stop");
      await sleep(50);
    }
    assert.equal((await running())[0], 0);
    assert.equal(await page.$$eval(".note", (all) => all.at(-1).textContent), "You stopped it.", `turn ${turn}`);
  }
  return page;
}

/** What the server refuses is said as a sentence; so is a server that is gone. */
async function errors(browser) {
  const server = await serve();
  const page = await openPage(browser, server.base);
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  await fill(page, "#temperature", "7");
  await say(page, "Hello");
  assert.match(await text(page, ".problem"), /`temperature` is 7/i);
  assert.equal(await page.$eval(".problem", (box) => box.getAttribute("role")), "alert");
  await fill(page, "#temperature", "");
  await page.click(".message.assistant .figures button");
  await until(page, () => document.querySelectorAll(".message.assistant:not(.writing) .body:not(:empty)").length > 0);
  assert.equal(await page.$$eval(".problem", (all) => all.length), 0, "asked again, it answers");
  await server.stop();
  await say(page, "Are you there?");
  assert.match(await page.$$eval(".problem", (all) => all.at(-1).textContent), /The server cannot be reached/);
  return page;
}

/** Whatever a model, a tool or an error says stays text. */
async function hostile(browser, server) {
  const page = await openPage(browser, server.base);
  await page.setRequestInterception(true);
  const events = { contentType: "text/event-stream", headers: { "cache-control": "no-store" } };
  let body = "";
  page.on("request", (request) => {
    const path = new URL(request.url()).pathname;
    if (path === "/v1/chat/completions") return request.respond({ status: 200, ...events, body });
    if (path === "/v1/models") return request.respond({ status: 200, contentType: "application/json", body: hostileModels });
    return request.continue();
  });
  await page.reload();
  await until(page, () => document.querySelector("#model").options.length > 0);
  const script = "<img src=x onerror=window.hit=1>";
  for (const coloured of [false, true]) {
    if (coloured) await page.click("#logprobs");
    for (const ending of ["tool_calls", "error", "cut"]) {
      body = sse(hostileChunks(script, coloured), ending, script);
      await say(page, script);
    }
  }
  const all = await page.$$eval(".token", (all) => all.length);
  assert.ok(all > 0);
  await (await page.$(".message:last-of-type .token"))?.hover();
  await sleep(200);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  const foreign = "#log :is(img, script, iframe, a, form, object, svg, style)";
  assert.equal(await page.$$eval(foreign, (all) => all.length), 0);
  const problems = await page.$$eval(".problem", (all) => all.map((box) => box.textContent));
  assert.ok(problems.some((said) => said.includes(script)) && problems.some((said) => said.includes("ended before")), `${problems}`);
  // The policy holds even where the page did not.
  await page.evaluate(() => (document.querySelector("#log").innerHTML = "<img src=x onerror=window.hit=1>"));
  await sleep(200);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  const blocked = page.complaints.filter((line) => line.includes("Content Security Policy"));
  assert.ok(blocked.length > 0, `${page.complaints}`);
  page.complaints = page.complaints.filter((line) => !line.includes("Content Security Policy"));
  return page;
}

/** With keys the page opens, asks for one and works with the right one. */
async function keys(browser) {
  const server = await serve("--api-key", "sesame");
  const page = await openPage(browser, server.base);
  await until(page, () => document.querySelector("#state").textContent === "needs a key");
  assert.equal(await page.evaluate(() => document.activeElement.id), "key");
  await fill(page, "#key", "wrong");
  await until(page, () => document.querySelector("#s-wrong").textContent.includes("not one of"));
  await fill(page, "#key", "sésame");
  await until(page, () => document.querySelector("#s-wrong").textContent.includes("characters"));
  await fill(page, "#key", "sesame");
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  await say(page, QUESTION);
  assert.equal(await page.$$eval(".problem", (all) => all.length), 0);
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("sesame")), false, "kept for the tab alone");
  await server.stop();
  return page;
}

/** On a phone nothing is wider than the screen, and the panel lies over the chat. */
async function phone(browser, server) {
  const page = await openPage(browser, server.base, { width: 390, height: 844, dark: true });
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  const wide = () => page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  assert.equal(await wide(), false);
  await say(page, `${QUESTION} ${"m".repeat(90)}`);
  assert.equal(await wide(), false);
  await shoot(page, "phone");
  await page.click("#toggle-panel");
  const box = await page.$eval("#panel", (panel) => panel.getBoundingClientRect().toJSON());
  assert.ok(box.width > 200 && box.right <= 390, JSON.stringify(box));
  await shoot(page, "phone-panel");
  await page.keyboard.press("Escape");
  assert.equal(await page.$eval("#panel", (panel) => getComputedStyle(panel).display), "none");
  return page;
}

/** All of it without a pointer. */
async function keyboard(browser, server) {
  const page = await openPage(browser, server.base);
  await until(page, () => document.querySelector("#dot").classList.contains("good"));
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("/");
  await page.type("#prompt", "one");
  await page.keyboard.down("Shift");
  await page.keyboard.press("Enter");
  await page.keyboard.up("Shift");
  await page.type("#prompt", "two");
  assert.equal(await page.$eval("#prompt", (field) => field.value), "one\ntwo");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.id), "send");
  await page.keyboard.press("Enter");
  await until(page, () => document.querySelectorAll(".message.assistant:not(.writing)").length === 1);
  assert.equal(await text(page, ".message.user .body"), "one\ntwo");
  const reached = new Set();
  for (let presses = 0; presses < 60; presses++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id));
  }
  const fields = await page.$$eval("aside :is(input, select, textarea)", (all) => all.filter((field) => field.checkVisibility()).map((field) => field.id));
  assert.deepEqual(fields.filter((id) => !reached.has(id)), []);
  return page;
}

const browser = await openBrowser();
if (!browser) {
  console.log("playground: skipped, there is no Chromium here");
  process.exit(process.env.PERILUNE_REQUIRE_CHROMIUM ? 1 : 0);
}
const server = await serve();
const checks = [conversation, logprobs, tools, stop, errors, hostile, keys, phone, keyboard];
let failures = 0;
for (const check of checks) {
  try {
    const page = await check(browser, server);
    assert.deepEqual(page.complaints, [], "the console is quiet");
    await page.browserContext().close();
    console.log(`playground, ${check.name}: passed`);
  } catch (error) {
    failures += 1;
    console.error(`playground, ${check.name}: ${error.stack}`);
  }
}
await browser.close();
await server.stop();
console.log(`playground: ${checks.length - failures} passed, ${failures} failed`);
process.exit(failures ? 1 : 0);
