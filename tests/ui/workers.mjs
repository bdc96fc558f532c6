// A daemon with two workers: all pages are of both, and what is done in a vhost of the second is done there. A vhost moves, a worker goes.
import { ADDRESSES, EVIL } from "./addresses.mjs";
import { api, check, login, run, settings, settled, start, until, visit } from "./browser.mjs";

const { browser, page, watch } = await start({ height: 2000 }); // all rows of a table are in sight
watch.expected.push(/404 \(Not Found\)/);

const there = encodeURIComponent(EVIL); // the vhost of the second worker
const dialog = () => page.locator("dialog[open]").last();
const closed = () => page.locator("dialog").waitFor({ state: "detached" });
const submit = async (name) => { await dialog().getByRole("button", { name, exact: typeof name === "string" }).last().click(); await closed(); };
const head = (name) => page.locator(".page-head").getByRole("button", { name, exact: typeof name === "string" });
const menu = async (item) => { await head(/Actions/).click(); await page.locator(".menu").getByRole("button", { name: item }).click(); };
const rows = (name) => page.locator(".vbody .vrow", { hasText: name });
const card = (name) => page.locator("section.card").filter({ has: page.locator("header h2", { hasText: name }) });
const count = async (name) => (await api("GET", `queues/${there}/${name}`)).json.messages;
const workers = async () => (await api("GET", "nodes")).json[0].workers;
const workerOf = async (vhost) => (await workers()).find((one) => one.vhosts.includes(vhost)).worker;

const cases = {
  async "log in"() {
    check((await workerOf("/")) !== (await workerOf(EVIL)), "both vhosts are with one worker");
    await login(page);
  },
  async "every page"() {
    for (const address of Object.values(ADDRESSES)) await visit(page, address);
    check(await page.evaluate(() => !window.hacked), "a name was taken for HTML");
  },
  async "a queue in the vhost of the second worker, in one table with those of the first"() {
    await visit(page, "/queues");
    await page.locator(".livedot.live").waitFor();
    await head("Declare queue").click();
    await dialog().getByLabel("Virtual host").selectOption(EVIL);
    await dialog().getByLabel("Name", { exact: true }).fill("far");
    await submit("Declare");
    await page.getByRole("heading", { name: "far" }).waitFor();
    await visit(page, "/queues");
    await rows("orders.eu").waitFor();
    await api("PUT", `queues/${there}/farther`, { durable: true });
    await rows("farther").waitFor();
  },
  async "publish and get"() {
    await visit(page, `/queues/${there}/far`);
    await head("Publish").click();
    await dialog().getByLabel("Body").fill("from afar");
    await dialog().getByLabel("Copies").fill("4");
    await dialog().getByRole("button", { name: "Publish", exact: true }).click();
    await dialog().getByText(/4 messages confirmed in .* All reached a queue/).waitFor();
    await page.keyboard.press("Escape");
    await closed();
    await menu("Get messages");
    await dialog().getByRole("button", { name: "Get", exact: true }).click();
    await dialog().getByText("from afar").first().waitFor();
    await page.keyboard.press("Escape");
    await closed();
    await until("the page knows", async () => (await page.locator(".stat", { hasText: "Ready" }).first().innerText()).includes("4"));
  },
  async "messages are browsed, searched and moved"() {
    await visit(page, `/queues/${there}/far?tab=messages`);
    await until("four", async () => (await page.locator(".msglist .msg").count()) === 4);
    await page.getByRole("button", { name: "Search in the messages" }).click();
    await page.getByLabel("Where to search").selectOption("text");
    await page.getByLabel("Search for").fill("afar");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByText(/looked at.*, 4 match/).waitFor();
    await page.locator(".msglist .msg").first().getByRole("checkbox").check();
    await page.locator(".selbar").getByRole("button", { name: "Move", exact: true }).click();
    await dialog().getByLabel("Queue", { exact: true }).fill("farther");
    await dialog().getByText(/1 message is meant/).waitFor();
    await submit("Move 1 message");
    await until("moved", async () => (await count("far")) === 3 && (await count("farther")) === 1);
  },
  async "the live tail of a queue"() {
    await visit(page, `/queues/${there}/far?tab=tail`);
    await page.getByText("Waiting for messages").waitFor();
    await until("a message", async () => {
      await api("POST", `exchanges/${there}/amq.default/publish`, { properties: { delivery_mode: 2 }, routing_key: "far", payload: "just now", payload_encoding: "string" });
      return (await page.locator(".tail li", { hasText: "just now" }).count()) > 0;
    });
  },
  async "where a message would go, and the drawing"() {
    await api("POST", `bindings/${there}/e/amq.topic/q/far`, { routing_key: "far.#" });
    await visit(page, `/exchanges/${there}/amq.topic`);
    await card("Where would this message go?").getByLabel("Routing key").fill("far.away");
    await page.getByRole("button", { name: "Show the way" }).click();
    await page.getByText(/It reaches 1 queue/).waitFor();
    for (const [vhost, queue] of [["%2F", "orders.eu"], [there, "far"]]) {
      await visit(page, `/topology?vhost=${vhost}`);
      await page.locator(`.topo g.queue a[href$='/${queue}']`).waitFor();
    }
  },
  async "a definitions file for both is compared and applied"() {
    await visit(page, "/definitions");
    const queue = { durable: true, auto_delete: false, arguments: {} };
    const file = { queues: [{ vhost: "/", name: "filed-near", ...queue }, { vhost: EVIL, name: "filed-far", ...queue }, { vhost: EVIL, name: "far", ...queue }] };
    await page.getByLabel("Definitions as JSON").fill(JSON.stringify(file));
    await page.getByRole("button", { name: "Compare" }).click();
    for (const one of file.queues.slice(0, 2)) await page.locator("td", { hasText: one.name }).first().waitFor();
    await page.getByRole("button", { name: /Apply 2 changes/ }).click();
    await submit(/Apply 2/);
    await page.getByRole("button", { name: /Apply 0/ }).waitFor();
    check((await api("GET", `queues/${there}/filed-far`)).status === 200 && (await api("GET", "queues/%2F/filed-near")).status === 200, "they are not there");
  },
  async "a vhost moves, and its rows and messages stay"() {
    const before = await workerOf(EVIL);
    const messages = await count("far");
    await visit(page, `/vhosts/${there}`);
    await menu("Move to another worker");
    await submit("Move");
    await until("moved", async () => (await workerOf(EVIL)) === 1 - before);
    check((await count("far")) === messages, "messages are missing");
    await page.locator("dt", { hasText: "Worker" }).locator("xpath=following-sibling::dd[1]").getByText(String(1 - before), { exact: true }).waitFor();
    await visit(page, "/queues");
    await rows("farther").waitFor();
    await api("PUT", `queues/${there}/farthest`, { durable: true });
    await rows("farthest").waitFor();
    await visit(page, "/audit");
    await page.locator("td", { hasText: /PUT.*worker/ }).first().waitFor();
    check((await api("PUT", `vhosts/${there}/worker`, { worker: before })).status === 204, "it does not move back");
  },
  async "a worker that goes takes its rows, and comes back with them"() {
    watch.expected.push(/503|Failed to load resource/);
    await visit(page, "/vhosts");
    await page.getByRole("columnheader", { name: "Worker" }).waitFor();
    await visit(page, "/queues");
    await rows("farther").waitFor();
    const gone = (await workers()).find((one) => one.vhosts.includes(EVIL));
    process.kill(Number(gone.os_pid), "SIGKILL");
    await rows("farther").waitFor({ state: "detached" });
    await rows("orders.eu").waitFor();
    await rows("filed-far").waitFor({ timeout: 60_000 });
    await visit(page, "/node");
    await until("both run", async () => (await card("Workers").getByText("running", { exact: true }).count()) === 2, 60_000);
    watch.expected.pop();
  },
};
await run(cases, { watch, browser, after: async (name) => { if (settings.shots) await page.screenshot({ path: `${settings.shots}/workers_${name.replaceAll(/\W+/g, "_")}.png` }); await page.keyboard.press("Escape"); } });
