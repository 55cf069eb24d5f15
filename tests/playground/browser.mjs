// A headless Chromium, and a server that it looks at: the release binary with the demo and its draft.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

export const ROOT = path.resolve(fileURLToPath(import.meta.url), "../../..");

/** The browser of $CHROMIUM, or where distributions put it; null where there is none. */
export async function openBrowser() {
  const places = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
  const executablePath = places.find((place) => place && existsSync(place));
  if (!executablePath) return null;
  // In containers there is no room for its sandbox, and its pages come from this machine alone.
  const args = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"];
  return puppeteer.launch({ executablePath, args });
}

/** Starts a server with `flags`; `stop` ends it and waits. */
export async function serve(...flags) {
  const port = await freePort();
  const target = process.env.CARGO_TARGET_DIR ?? path.join(ROOT, "target");
  const command = ["serve", "--port", String(port), "--draft-model", "models/demo-dspark", ...flags];
  const child = spawn(path.join(target, "release/perilune"), command, { cwd: ROOT, stdio: ["ignore", "ignore", "inherit"] });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  // Where a check fails before its end.
  process.once("exit", () => child.kill("SIGKILL"));
  const base = `http://127.0.0.1:${port}`;
  for (let tries = 0; tries < 600 && child.exitCode === null; tries++) {
    const ready = await fetch(`${base}/ready`).catch(() => null);
    // 401 where it has keys: it answers.
    if (ready?.ok || ready?.status === 401) return { base, stop: async () => (child.kill("SIGTERM"), await ended) };
    await sleep(100);
  }
  child.kill("SIGKILL");
  throw new Error("the server did not become ready within 60 s");
}

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => probe.once("listening", resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** A fresh page; what its console complained of is in `page.complaints`, dialogs that it opened too. */
export async function openPage(browser, url, { width = 1240, height = 860, dark = false } = {}) {
  const page = await (await browser.createBrowserContext()).newPage();
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("console", (line) => {
    // The browser's own line for a refusal, which the page shows itself.
    const expected = /^Failed to load resource: (the server responded with a status of|net::ERR_)/.test(line.text());
    if (["error", "warn"].includes(line.type()) && !expected) page.complaints.push(line.text());
  });
  page.on("dialog", (dialog) => (page.complaints.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await page.setViewport({ width, height, deviceScaleFactor: 1 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
  await page.goto(`${url}/playground`);
  return page;
}

/** Waits until `check`, in the page, gives something true, and returns it. */
export async function until(page, check, ...args) {
  const handle = await page.waitForFunction(check, { timeout: 30_000, polling: 50 }, ...args);
  return handle.jsonValue();
}

/** Puts a value into a field as a person would leave it. */
export async function fill(page, selector, value) {
  await page.$eval(selector, (field, value) => {
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }, value);
}

/** Sends a question by the keyboard and waits for the end of the answer. */
export async function say(page, text) {
  const before = await page.$$eval(".message.assistant", (all) => all.length);
  await page.type("#prompt", text);
  await page.keyboard.press("Enter");
  await until(page, (before) => document.querySelectorAll(".message.assistant:not(.writing)").length > before, before);
}
