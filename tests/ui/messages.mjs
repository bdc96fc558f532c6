// The message browser: what it shows is there and stays as it is; what it deletes, moves, copies, retries and replaces, the broker has done.
import { EVIL } from "./addresses.mjs";
import { api, check, login, run, settings, settled, start, until, visit } from "./browser.mjs";

const { browser, page, watch } = await start();
const dialog = () => page.locator("dialog[open]").last();
const closed = () => page.locator("dialog").waitFor({ state: "detached" });
const list = page.locator(".msglist");
const item = (n) => list.locator(".msg").nth(n);
const view = page.locator(".msgview");
const count = async (name) => (await api("GET", `queues/%2F/${encodeURIComponent(name)}`)).json.messages;
const open = async (name, query = "") => { await visit(page, `/queues/%2F/${encodeURIComponent(name)}?tab=messages${query}`); await list.locator(".msg").first().waitFor(); };
const select = async (...which) => { for (const n of which) await item(n).getByRole("checkbox").check(); };
const bar = (name) => page.locator(".selbar").getByRole("button", { name, exact: true });
const submit = async (name) => { await dialog().getByRole("button", { name }).last().click(); await closed(); };

const cases = {
  async "log in"() { await login(page); },
  async "a page, and the next one"() {
    await open("orders.eu");
    check((await list.locator(".msg").count()) === 50, "no page of 50");
    await page.getByRole("button", { name: "50 more" }).click();
    await until("100 messages", async () => (await list.locator(".msg").count()) === 100);
    const { json } = await api("GET", "queues/%2F/orders.eu/messages?limit=1");
    check(!json.items[0].redelivered, "looking has marked a message");
  },
  async "newest first"() {
    await open("scratch", "&order=tail");
    await item(0).locator("button").click();
    await view.getByText("scratch 7").waitFor();
  },
  async "JSON as a tree, as text, as bytes"() {
    await open("orders.eu");
    await item(0).locator("button").click();
    await view.locator(".jt .key", { hasText: "customer" }).waitFor();
    await view.getByRole("button", { name: "Text", exact: true }).click();
    await view.getByText('"country": "DE"').waitFor();
    await view.getByRole("button", { name: "Hex", exact: true }).click();
    await view.getByText("000000  7b 22").waitFor();
    await page.keyboard.press("j");
    await page.locator(".msg.current").nth(0).waitFor();
  },
  async "Celery, gzip, MessagePack and bytes"() {
    await open("emails");
    await item(0).locator("button").click();
    await view.getByText("app.add").first().waitFor();
    await view.locator(".jt .key", { hasText: "kwargs" }).waitFor();
    await item(1).locator("button").click();
    await view.getByText("packed").first().waitFor();
    await view.getByText(/gzip → JSON/).waitFor();
    await item(2).locator("button").click();
    await view.getByText("MessagePack", { exact: true }).waitFor();
    await view.locator(".jt .str", { hasText: "Ada" }).waitFor();
    await item(3).locator("button").click();
    await view.getByText("000010  10 11").waitFor();
  },
  async "a stream from an offset on, before it, and from a time on"() {
    await open("log");
    const from = page.getByLabel("From an offset or a time");
    await from.fill("90");
    await from.press("Enter");
    await item(0).getByText("@90", { exact: true }).waitFor();
    await page.getByRole("button", { name: "50 before these" }).click();
    await item(0).getByText("@40", { exact: true }).waitFor();
    await from.fill("1h");
    await from.press("Enter");
    await item(0).getByText("@0", { exact: true }).waitFor();
    await item(0).locator("button").click();
    await view.getByText("Offset 0").waitFor();
    check((await view.getByText("Move").count()) === 0, "a stream's message can be moved");
    await from.fill("soon");
    await from.press("Enter");
    check((await from.getAttribute("aria-invalid")) === "true", "nonsense is taken");
  },
  async "how often a quorum queue's message came back"() {
    await open("returned");
    await item(0).getByText("2× back").waitFor();
    await item(0).locator("button").click();
    await view.getByText("2 times; the delivery limit is 9").waitFor();
  },
  async "unacked messages and who holds them"() {
    await open("held", "&state=unacked");
    check((await list.locator(".msg").count()) === 3, "not three");
    await item(0).locator("button").click();
    await view.getByText(EVIL).first().waitFor();
    await view.getByText(/Held by/).waitFor();
    check(await page.evaluate(() => !window.hacked), "a name was taken for HTML");
  },
  async "dead letters have a timeline, and go back"() {
    await open("dead.orders");
    const before = await count("orders.eu");
    await item(0).locator("button").click();
    await view.locator(".timeline").getByRole("link", { name: "orders.eu" }).waitFor();
    await view.locator(".timeline").getByText("rejected").waitFor();
    await select(0);
    await bar("Retry").click();
    await dialog().getByText(/1 message is meant/).waitFor();
    await submit("Retry 1 message");
    await until("it is back", async () => (await count("orders.eu")) === before + 1 && (await count("dead.orders")) === 2);
  },
  async "search with matches and progress"() {
    await open("orders.eu");
    await page.getByRole("button", { name: "Search in the messages" }).click();
    await page.getByLabel("Where to search").selectOption("json");
    await page.getByLabel("Name").fill("id");
    await page.getByLabel("Search for").fill("57");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByText(/looked at.*, 1 match/).waitFor();
    check((await list.locator(".msg").count()) === 1, "not one");
    await page.getByLabel("Where to search").selectOption("header");
    await page.getByLabel("Name").fill("tenant");
    await page.getByLabel("Search for").fill("t3");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await until("17 matches", async () => (await list.locator(".msg").count()) === 17);
    await page.getByLabel("Where to search").selectOption("text");
    await page.getByLabel("Search for").fill("nothing of the kind");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByText("No message matches").waitFor();
  },
  async "a search is cancelled"() {
    await page.route(/messages\/search/, () => {}); // an answer that never comes
    watch.expected.push(/ERR_FAILED|ERR_ABORTED/);
    await page.getByLabel("Search for").fill("slow");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByText("cancelled").waitFor();
    await page.unroute(/messages\/search/);
    watch.expected.pop();
  },
  async "move chosen ones"() {
    await open("scratch");
    await select(1, 2);
    await bar("Move").click();
    await dialog().getByLabel("Queue", { exact: true }).fill("scratch");
    await dialog().getByText("That is where they are").waitFor();
    await dialog().getByLabel("Queue", { exact: true }).fill("target");
    await dialog().getByText(/2 messages are meant/).waitFor();
    check((await count("target")) === 0, "the dry run has moved something");
    await submit("Move 2 messages");
    await until("moved", async () => (await count("scratch")) === 6 && (await count("target")) === 2);
    await until("they are off the list", async () => (await list.locator(".msg").count()) === 6);
  },
  async "copy to an exchange"() {
    await select(0);
    await bar("Copy").click();
    await dialog().getByRole("button", { name: "An exchange" }).click();
    await dialog().getByLabel("Routing key").fill("target");
    await dialog().getByText(/1 message is meant/).waitFor();
    await submit("Copy 1 message");
    await until("copied", async () => (await count("scratch")) === 6 && (await count("target")) === 3);
  },
  async "delete all that match"() {
    await open("scratch");
    await page.getByRole("button", { name: "Search in the messages" }).click();
    await page.getByLabel("Where to search").selectOption("regex");
    await page.getByLabel("Search for").fill("scratch [4-6]$");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByRole("button", { name: "Delete all" }).click();
    await dialog().getByText(/3 messages are meant/).waitFor();
    await submit("Delete 3 messages");
    await until("deleted", async () => (await count("scratch")) === 3);
  },
  async "delete one"() {
    await open("scratch");
    await item(0).locator("button").click();
    await view.getByRole("button", { name: "More" }).click();
    await view.getByRole("button", { name: "Delete" }).click();
    await submit("Delete 1 message");
    await until("deleted", async () => (await count("scratch")) === 2);
  },
  async "edit and publish in its place"() {
    await open("scratch");
    await item(0).locator("button").click();
    await view.getByRole("button", { name: "Edit and publish" }).click();
    await dialog().getByLabel("Body").fill("edited");
    await dialog().getByLabel(/Take the original out/).check();
    await submit("Publish");
    await until("replaced", async () => JSON.stringify((await api("GET", "queues/%2F/scratch/messages")).json.items.map((one) => one.payload)) === '["scratch 7","edited"]');
  },
  async "copies are found over queues"() {
    await open("payments");
    await item(0).locator("button").click();
    await view.getByRole("button", { name: "Find copies" }).click();
    await view.getByRole("link", { name: /dead.orders|orders.eu/ }).first().waitFor();
  },
  async "copied and saved"() {
    await open("orders.eu");
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await item(0).locator("button").click();
    await view.getByRole("button", { name: "Copy as" }).click();
    await view.getByRole("button", { name: "Copy as Python" }).click();
    check((await page.evaluate(() => navigator.clipboard.readText())).includes("basic_publish("), "no Python");
    const saving = page.waitForEvent("download");
    await view.getByRole("link", { name: "Save the body" }).click();
    check((await saving).suggestedFilename().endsWith(".bin"), "no body");
    await select(0, 1);
    const lines = page.waitForEvent("download");
    await page.getByRole("button", { name: "Save as JSON lines" }).click();
    check((await lines).suggestedFilename() === "orders.eu.jsonl", "no lines");
  },
  async "what is text stays text"() {
    await open(EVIL);
    await item(0).locator("button").click();
    await view.getByText(EVIL).first().waitFor();
    check(await page.evaluate(() => !window.hacked && !document.querySelector("#app img:not([src='favicon.svg'])")), "it was taken for HTML");
  },
  async "a queue that is another one now is told"() {
    await api("PUT", "queues/%2F/again", {});
    for (let i = 0; i < 60; i += 1) await api("POST", "exchanges/%2F/amq.default/publish", { properties: {}, routing_key: "again", payload: "x", payload_encoding: "string" });
    await open("again");
    await api("DELETE", "queues/%2F/again");
    await page.getByText("There is no queue again").waitFor();
  },
  async "what comes is told as it comes"() {
    await visit(page, "/queues/%2F/target?tab=tail");
    await page.getByText("Waiting for messages").waitFor();
    await until("a message", async () => {
      await api("POST", "exchanges/%2F/amq.default/publish", { properties: {}, routing_key: "target", payload: "just now", payload_encoding: "string" });
      return (await page.locator(".tail li", { hasText: "just now" }).count()) > 0;
    });
    await page.getByRole("button", { name: "Pause" }).click();
    await page.locator(".tail li").first().getByRole("button").click();
    await dialog().getByText("just now").first().waitFor();
    await page.keyboard.press("Escape");
    await closed();
  },
};
await run(cases, { watch, browser, after: async (name) => { if (settings.shots) await page.screenshot({ path: `${settings.shots}/${name.replaceAll(/\W+/g, "_")}.png` }); await page.keyboard.press("Escape"); } });
