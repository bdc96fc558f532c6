// RabbitMQ's own pages, unmodified, in front of our API: a small server sends its files and passes /api on, and Chromium is driven
// through every tab, form and page of a thing. The last line printed is a JSON object: what was done -> "ok" or what went wrong.
import { createServer, request } from "node:http";
import { createReadStream, existsSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { extname, join, normalize } from "node:path";

const settings = JSON.parse(process.env.UI_TEST);
const { chromium } = createRequire(`${settings.modules}/`)("playwright-core");
const KINDS = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon" };
const [host, port] = [settings.broker.slice(0, settings.broker.lastIndexOf(":")), Number(settings.broker.slice(settings.broker.lastIndexOf(":") + 1))];

function answer(incoming, outgoing) {
  const path = decodeURIComponent(incoming.url.split("?")[0]);
  if (path.startsWith("/api/")) {
    const passed = request({ host, port, path: incoming.url, method: incoming.method, headers: { ...incoming.headers, host: settings.broker, origin: `http://${settings.broker}` } }, (reply) => {
      outgoing.writeHead(reply.statusCode, reply.headers);
      reply.pipe(outgoing);
    });
    passed.on("error", () => outgoing.destroy());
    incoming.pipe(passed);
    return;
  }
  const file = join(settings.pages, normalize(path === "/" ? "/index.html" : path));
  if (!existsSync(file) || !statSync(file).isFile()) {
    outgoing.writeHead(404).end();
    return;
  }
  outgoing.writeHead(200, { "content-type": KINDS[extname(file)] ?? "application/octet-stream" });
  createReadStream(file).pipe(outgoing);
}

const server = createServer(answer);
await new Promise((resolve) => { server.listen(0, "127.0.0.1", resolve); });
const base = `http://127.0.0.1:${server.address().port}/`;
const browser = await chromium.launch({ executablePath: settings.chromium, args: settings.sandbox ? [] : ["--no-sandbox"] });
const page = await (await browser.newContext({ viewport: { width: 1400, height: 1000 } })).newPage();
page.setDefaultTimeout(6_000);

const problems = [];
page.on("console", (message) => { if (message.type() === "error") problems.push(`console: ${message.text()} ${message.location().url}`); });
page.on("pageerror", (error) => problems.push(`page: ${error.stack ?? error}`));
page.on("response", (response) => { if (response.status() >= 400) problems.push(`${response.status()} ${response.request().method()} ${response.url()}`); });
page.on("dialog", (dialog) => void dialog.accept());

const verdict = {};
async function step(name, act) {
  problems.length = 0;
  try {
    await act();
    const popups = await page.locator(".form-popup-warn:visible, .form-popup-help:visible, .status-error:visible").allInnerTexts();
    problems.push(...popups.map((text) => `popup: ${text}`));
    verdict[name] = problems.length ? problems.join("; ").slice(0, 1500) : "ok";
  } catch (error) {
    verdict[name] = `${error.message.split("\n")[0]} ${problems.join("; ")}`.slice(0, 1500);
  }
}

/** Shows a page, and waits until its heading says so. */
async function visit(hash, heading) {
  await page.evaluate((to) => { window.location.hash = to; }, hash);
  await page.waitForFunction((text) => document.querySelector("#main h1, #main > h2")?.innerText.includes(text), heading);
}

async function submit(form, fields) {
  for (const [name, value] of Object.entries(fields)) {
    const field = page.locator(`${form} [name="${name}"]`).first();
    if (await field.evaluate((element) => element.tagName) === "SELECT") await field.selectOption(value);
    else await field.fill(value);
  }
  await page.locator(`${form} input[type=submit]`).first().click();
}

/** Opens the parts of a page that are folded. */
async function unfold() {
  while (await page.locator("#main .section-invisible > h2:visible").count()) await page.locator("#main .section-invisible > h2:visible").first().click();
}

await step("log in", async () => {
  await page.goto(base);
  await page.locator('input[name="username"]').fill("guest");
  await page.locator('input[name="password"]').fill("guest");
  await page.locator('input[type="submit"]').click();
  await page.locator("#tabs").waitFor();
  await page.waitForFunction(() => document.querySelector("#main h1")?.innerText === "Overview");
});
await step("overview", async () => {
  await visit("#/", "Overview");
  await unfold();
  await page.getByText("Ports and contexts").first().waitFor();
});
const node = await page.evaluate(() => fetch("api/overview", { headers: { authorization: `Basic ${btoa("guest:guest")}` } }).then((reply) => reply.json()).then((found) => found.node));
await step("node", () => visit(`#/nodes/${encodeURIComponent(node)}`, "Node"));
await step("node unfolded", unfold);
for (const [hash, heading, shown] of [
  ["#/connections", "Connections", settings.connection.split(" ")[0]], ["#/channels", "Channels", settings.connection.split(" ")[0]],
  ["#/exchanges", "Exchanges", "amq.topic"], ["#/queues", "Queues", "orders"], ["#/users", "Users", "guest"], ["#/vhosts", "Virtual Hosts", "/"],
  ["#/policies", "Policies", "short"], ["#/limits", "Limits", "max-queues"], ["#/cluster-name", "Cluster name", node],
  ["#/feature-flags", "Feature Flags", "quorum_queue"],
]) await step(hash, async () => {
  await visit(hash, heading);
  await unfold();
  await page.waitForFunction((text) => document.querySelector("#main").innerText.includes(text), shown);
});
for (const [name, hash, heading] of [
  ["a connection", `#/connections/${encodeURIComponent(settings.connection)}`, "Connection"],
  ["a channel", `#/channels/${encodeURIComponent(`${settings.connection} (1)`)}`, "Channel"],
  ["an exchange", "#/exchanges/%2F/amq.topic", "Exchange"], ["the default exchange", "#/exchanges/%2F/amq.default", "Exchange"],
  ["a queue", "#/queues/%2F/orders", "Queue"], ["a quorum queue", "#/queues/%2F/safe", "Queue"], ["a user", "#/users/guest", "User"],
  ["a vhost", "#/vhosts/%2F", "Virtual Host"], ["a policy", "#/policies/%2F/short", "Policy"],
]) await step(name, async () => { await visit(hash, heading); await unfold(); });
await step("declare a queue", async () => {
  await visit("#/queues", "Queues");
  await unfold();
  await submit('form[action="#/queues"][method="put"]', { name: "made-here" });
  await page.getByRole("link", { name: "made-here" }).waitFor();
});
await step("publish and get", async () => {
  await visit("#/queues/%2F/made-here", "made-here");
  await unfold();
  await page.locator('form[action="#/exchanges/publish"] textarea[name="payload"]').fill("hello from the pages");
  await page.locator('form[action="#/exchanges/publish"] input[type=submit]').click();
  await page.getByText("Message published.").waitFor();
  await page.locator(".form-popup-info span, .form-popup-info .close").first().click();
  await page.locator('form[action="#/queues/get"] input[type=submit]').click();
  await page.getByText("hello from the pages").last().waitFor();
});
await step("purge and delete", async () => {
  await page.locator('form[action="#/queues"][method="delete"] input[name="mode"][value="purge"] ~ input[type=submit]').first().click();
  await page.getByText("Queue purged").waitFor();
  await page.locator(".form-popup-info span, .form-popup-info .close").first().click();
  await page.locator('form[action="#/queues"][method="delete"] input[name="mode"][value="delete"] ~ input[type=submit]').first().click();
  await page.waitForFunction(() => document.querySelector("#main h1")?.innerText.includes("Queues"));
});
await step("add and delete a user", async () => {
  await visit("#/users", "Users");
  await unfold();
  await submit('form[action="#/users-add"]', { username: "<img src=x onerror=alert(1)>", password: "p", password_confirm: "p" });
  await page.getByRole("link", { name: "<img src=x onerror=alert(1)>" }).click();
  await page.waitForFunction(() => document.querySelector("#main h1")?.innerText.includes("<img"));
  await unfold();
  await page.locator('form[action="#/users"][method="delete"] input[type=submit]').click();
  await page.waitForFunction(() => document.querySelector("#main h1")?.innerText === "Users");
});
await browser.close();
server.close();
console.log(JSON.stringify(verdict));
