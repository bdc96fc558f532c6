// A page that is logged in, what goes wrong on it, and the verdict that is printed. What a test waits for, it polls.
import { createRequire } from "node:module";

export const settings = JSON.parse(process.env.UI_TEST);
const require = createRequire(`${settings.modules}/`);
const { chromium } = require("playwright-core");

/** What is no fault of the page: answers that a case provokes are named by it. */
export class Watch {
  constructor(page) {
    this.problems = [];
    this.expected = [];
    page.on("console", (message) => { if (message.type() === "error") this.add(`console: ${message.text()} (${message.location().url})`); });
    page.on("pageerror", (error) => this.add(`page: ${error.stack ?? error}`));
    page.on("response", (response) => { if (response.status() >= 500) this.add(`${response.status()} ${response.url()}`); });
    page.on("dialog", (dialog) => { this.add(`dialog: ${dialog.message()}`); void dialog.dismiss(); });
  }

  add(text) {
    if (!this.expected.some((pattern) => pattern.test(text))) this.problems.push(text);
  }

  take() {
    const found = this.problems;
    this.problems = [];
    return found;
  }
}

export async function start({ width = 1440, height = 900, dark = false } = {}) {
  const browser = await chromium.launch({ executablePath: settings.chromium, args: settings.sandbox ? [] : ["--no-sandbox"] });
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? "dark" : "light", acceptDownloads: true });
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  return { browser, context, page, watch: new Watch(page) };
}

export async function login(page, name = "guest", password = name, base = settings.base) {
  await page.goto(base);
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.locator(".shell").waitFor();
}

/** Shows a page of the UI, and waits until it has what it asked for. */
export async function visit(page, address) {
  await page.evaluate((hash) => { location.hash = hash; }, address);
  await settled(page);
}

export async function settled(page) {
  await page.waitForFunction(() => document.querySelector("#content")?.childElementCount > 0 && !document.querySelector("[aria-busy=true], .skeleton, .spin"));
}

export async function until(what, test, timeout = 10_000) {
  const end = Date.now() + timeout;
  let last;
  for (;;) {
    last = await test();
    if (last) return last;
    if (Date.now() > end) throw new Error(`${what}: not within ${timeout} ms`);
    await new Promise((resolve) => { setTimeout(resolve, 40); });
  }
}

export function check(condition, text) {
  if (!condition) throw new Error(text);
}

/** Asks the broker as a tool would. */
export async function api(method, path, body) {
  const response = await fetch(`${settings.base}api/${path}`, { method, headers: { authorization: `Basic ${btoa("guest:guest")}` }, body: body && JSON.stringify(body) });
  const text = await response.text();
  return { status: response.status, json: text ? JSON.parse(text) : null };
}

/** Runs cases one after the other and prints what became of each. */
export async function run(cases, { watch, browser, after } = {}) {
  const verdict = {};
  for (const [name, one] of Object.entries(cases)) {
    if (settings.only && !name.includes(settings.only)) continue;
    try {
      await one();
      const found = watch?.take() ?? [];
      verdict[name] = found.length ? found.join("; ").slice(0, 1500) : "ok";
    } catch (error) {
      verdict[name] = `${error.stack ?? error}${watch ? `; ${watch.take().join("; ")}` : ""}`.slice(0, 1800);
    }
    if (verdict[name] !== "ok" && after) await after(name);
  }
  await browser?.close();
  console.log(JSON.stringify(verdict));
}
