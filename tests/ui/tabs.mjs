// Several tabs of one browser, behind a proxy that counts the event streams that are open and can be cut: one stream for all tabs, none
// for what is hidden; what is shown when no stream comes through, and when the broker has gone and is back.
import http from "node:http";
import { check, login, run, settings, settled, start, until, visit } from "./browser.mjs";

const broker = new URL(settings.base);
let mode = "open"; // open; held: streams are taken and say nothing; shut: streams are refused; down: so is everything
let streams = 0;
let asked = [];
const sockets = new Set();
const proxy = http.createServer((request, response) => {
  const isStream = request.url.startsWith("/api/events");
  if (isStream) asked.push(new URL(request.url, broker).searchParams);
  if (isStream && mode === "shut") { response.writeHead(502).end(); return; }
  if (isStream) { streams += 1; response.on("close", () => { streams -= 1; }); }
  if (isStream && mode === "held") { response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders(); return; }
  const onwards = http.request({ host: broker.hostname, port: broker.port, path: request.url, method: request.method, headers: request.headers }, (answer) => { response.writeHead(answer.statusCode, answer.headers); answer.pipe(response); answer.on("error", () => response.destroy()); });
  onwards.on("error", () => response.destroy());
  response.on("close", () => onwards.destroy());
  request.pipe(onwards);
});
proxy.on("connection", (socket) => { if (mode === "down") { socket.destroy(); return; } sockets.add(socket); socket.on("close", () => sockets.delete(socket)); });
await new Promise((done) => { proxy.listen(0, "127.0.0.1", done); });
settings.base = `http://127.0.0.1:${proxy.address().port}/`;
const cut = (to) => { mode = to; for (const socket of sockets) socket.destroy(); };

const { browser, context, page, watch } = await start();
await context.clock.install(); // time goes on by itself, and is moved on where a page waits for long
const later = (seconds) => context.clock.fastForward(seconds * 1000);
watch.expected.push(/Failed to load resource|net::ERR/);
const hide = (tab, hidden) => tab.evaluate((on) => { Object.defineProperty(document, "hidden", { configurable: true, get: () => on }); document.dispatchEvent(new Event("visibilitychange")); }, hidden);
const live = (tab, timeout = 15_000) => tab.locator(".livedot.live").waitFor({ timeout });
const tick = (tab) => tab.evaluate(() => document.querySelector(".livedot").title);
const ticks = async (tab) => { const last = await tick(tab); await until("new figures", async () => (await tick(tab)) !== last); };
const open = async (address) => { const tab = await context.newPage(); await tab.goto(settings.base + `#${address}`); await tab.locator(".shell").waitFor(); await settled(tab); return tab; };
const tabs = [];
const row = (tab, name) => tab.locator(".vbody .vrow", { has: tab.getByText(name, { exact: true }) });

const cases = {
  async "all tabs have one stream"() {
    await login(page);
    await visit(page, "/queues");
    await live(page);
    await row(page, "orders.eu").waitFor();
    for (const address of ["/overview", "/queues", "/exchanges", "/queues/%2F/orders.eu", "/connections", "/overview", "/queues"]) tabs.push(await open(address));
    for (const tab of tabs) { await live(tab); await ticks(tab); }
    await row(tabs[1], "orders.eu").waitFor();
    await row(tabs[2], "orders").first().waitFor();
    await until("one stream", () => streams === 1);
  },
  async "who has a table is told what has changed, and not all of it again"() {
    const before = asked.length; // by now each tab has had a tick of the one stream; a new one wants no table that others have
    const another = await open("/channels");
    await until("another stream", () => asked.length > before);
    await another.close();
    const last = asked.at(before);
    check(last.get("known")?.split(",").includes("table:exchanges"), `known: ${last.get("known")}`);
    check(last.get("since"), "no tick is named");
  },
  async "closing the tab that was first hands over"() {
    await page.close();
    for (const tab of tabs.slice(0, 3)) await ticks(tab);
    await until("one stream", () => streams === 1);
  },
  async "a tab that is hidden asks for nothing, and is up to date when it is back"() {
    for (const tab of tabs) await hide(tab, true);
    await later(6);
    await until("no stream", () => streams === 0, 20_000);
    await tabs[1].locator(".livedot.paused").waitFor();
    await hide(tabs[1], false);
    await live(tabs[1]);
    await ticks(tabs[1]);
    check(streams === 1, `${streams} streams`);
    check(!asked.at(-1).get("topics").includes("table:connections"), "a hidden tab asks");
  },
  async "when no stream comes through the figures are asked for, until one does"() {
    for (const how of ["held", "shut"]) {
      cut(how);
      await later(7);
      await tabs[1].locator(".livedot.polling").waitFor({ timeout: 20_000 });
      await row(tabs[1], "orders.eu").waitFor();
      mode = "open";
      await later(21);
      await live(tabs[1], 40_000);
    }
  },
  async "a broker that has gone is told of, and its figures are there again when it is back"() {
    cut("down");
    await until("it is noticed", async () => { await later(7); return (await tabs[1].locator(".livedot.off").count()) > 0; }, 20_000);
    await tabs[1].getByText("The broker cannot be reached").waitFor({ timeout: 20_000 });
    await row(tabs[1], "orders.eu").waitFor();
    mode = "open";
    await live(tabs[1], 40_000);
    await ticks(tabs[1]);
    check((await tabs[1].getByText("The broker cannot be reached").count()) === 0, "it is still told");
  },
  async "who logs out is out in all tabs"() {
    await hide(tabs[0], false);
    await tabs[1].getByRole("button", { name: "Account" }).click();
    await tabs[1].getByRole("button", { name: "Log out" }).click();
    for (const tab of tabs.slice(0, 2)) await tab.getByLabel("Password").waitFor();
    await until("no stream", () => streams === 0);
    await login(tabs[1]);
    await tabs[0].locator(".shell").waitFor();
  },
  async "without shared workers each tab has its own"() {
    for (const tab of tabs) await tab.close();
    await until("no stream", () => streams === 0);
    await context.addInitScript(() => { delete window.SharedWorker; });
    const both = [await open("/queues"), await open("/overview")];
    for (const tab of both) { await live(tab); await ticks(tab); }
    check(streams === 2, `${streams} streams`);
    await both[0].close();
    await until("one stream", () => streams === 1);
    await ticks(both[1]);
  },
};
await run(cases, { watch, browser });
proxy.close();
process.exit(0);
