// Three nodes and a replicated virtual host: each page says who owns it, how far the others are, and what is away, in every way that a
// page may be looked at. The page is that of a node that follows, then that of the owner, which hands the virtual host over.
import { api, check, login, run, settings, start, until, visit } from "./browser.mjs";
import { lookEveryWay, withAxe } from "./looks.mjs";

const { browser, page, watch } = await start({ height: 2000 });

const vhost = settings.vhost;
const there = encodeURIComponent(vhost);
const here = settings.node;
const card = (name) => page.locator("section.card").filter({ has: page.locator("header h2", { hasText: name }) });
const row = (name, title) => card(title).locator("tbody tr").filter({ has: page.locator("td:first-child", { hasText: new RegExp(`^${name}( |$)`) }) });
const cluster = async () => (await api("GET", "cluster")).json;
const ofVhost = async () => (await cluster()).vhosts.find((one) => one.name === vhost);

const dialog = () => page.locator("dialog[open]");
const closed = () => page.locator("dialog").waitFor({ state: "detached", timeout: 90_000 });

const owned = {}; // node and base of the first owner
let owner = ""; // now
const SIZE = { width: 1440, height: 2000 };
const everyWay = async () => { await withAxe(page); await lookEveryWay(page); await page.emulateMedia({ colorScheme: "light" }); await page.setViewportSize(SIZE); };

const cases = {
  async "log in"() {
    await until("all nodes are level", async () => { const it = await ofVhost(); return it?.owner && it.owner !== here && it.replicas.every((one) => one.running && one.lag === 0); }, 60_000);
    owner = (await ofVhost()).owner;
    owned.node = owner;
    owned.base = settings.bases[owner];
    await login(page);
  },
  async "the node's page has all nodes, the engine and the virtual host"() {
    await visit(page, "/node");
    await page.getByText("Engine: PostgreSQL").waitFor();
    await page.getByRole("heading", { level: 1, name: here, exact: true }).waitFor();
    for (const node of settings.nodes) await row(node, /^Cluster/).getByText("running", { exact: true }).waitFor();
    await row(here, /^Cluster/).getByText("this one").waitFor();
    await row(vhost, "Replicated virtual hosts").locator("td").nth(1).getByText(owner, { exact: true }).waitFor();
    await row(vhost, "Replicated virtual hosts").getByText("well", { exact: true }).waitFor();
    await everyWay();
  },
  async "a virtual host that is elsewhere is in the list, and its page is whole and names its owner"() {
    await visit(page, "/vhosts");
    await page.locator("tbody tr", { hasText: vhost }).getByText(owner, { exact: true }).waitFor();
    await everyWay();
    await page.locator("tbody tr", { hasText: vhost }).getByRole("link").click();
    await card("Permissions").waitFor();
    check((await card("Replicas").locator("tbody tr").count()) === settings.nodes.length, "replicas are missing");
    await row(owner, "Replicas").getByText("owner", { exact: true }).waitFor();
    for (const node of settings.nodes) await row(node, "Replicas").getByText("level", { exact: true }).waitFor();
    await everyWay();
  },
  async "at its owner it is shown whole"() {
    await login(page, "guest", "guest", owned.base);
    await visit(page, `/vhosts/${there}`);
    await row(owned.node, "Replicas").getByText("owner", { exact: true }).waitFor();
    await card("Permissions").waitFor();
    await everyWay();
  },
  async "a quorum queue has its leader and members"() {
    const made = await fetch(`${owned.base}api/queues/${there}/q`, { method: "PUT", headers: { authorization: `Basic ${btoa("guest:guest")}` }, body: JSON.stringify({ durable: true, arguments: { "x-queue-type": "quorum" } }) });
    check(made.status === 201, `the queue is not declared: ${made.status}`);
    await visit(page, `/queues/${there}/q`);
    const members = card("Declared").locator("dt", { hasText: "Members" }).locator("xpath=following-sibling::dd[1]");
    await members.getByText(`${owned.node}, leader`).waitFor();
    await until("all are online", async () => (await members.locator(".badge.good").count()) === settings.nodes.length);
    await everyWay();
  },
  async "it is handed over by a button"() {
    await visit(page, `/vhosts/${there}`);
    await card("Replicas").getByRole("button", { name: "Hand over" }).click();
    const dialog = page.locator("dialog[open]");
    await dialog.getByLabel("To node").selectOption(here);
    await everyWay();
    await dialog.getByRole("button", { name: "Hand over" }).click();
    await page.locator("dialog").waitFor({ state: "detached", timeout: 60_000 });
    await until("the other node owns it", async () => (await ofVhost()).owner === here, 60_000);
    owner = here;
    await row(here, "Replicas").getByText("owner", { exact: true }).waitFor({ timeout: 30_000 });
    check((await row(owned.node, "Replicas").getByText("owner", { exact: true }).count()) === 0, "there are two owners");
    await visit(page, "/audit");
    await page.locator("tbody tr", { hasText: vhost }).filter({ hasText: "owner" }).first().waitFor();
  },
  async "a replica is taken away and given back"() {
    const third = settings.nodes.find((node) => node !== owned.node && node !== here);
    const has = async () => (await ofVhost()).replicas.some((one) => one.node === third);
    await visit(page, `/vhosts/${there}`);
    await row(third, "Replicas").getByRole("button", { name: `Take the replica from ${third}` }).click();
    await everyWay();
    await dialog().getByRole("button", { name: "Take away" }).click();
    await closed();
    await until("it has none", async () => !(await has()), 30_000);
    await row(third, "Replicas").waitFor({ state: "detached", timeout: 30_000 });
    await card("Replicas").getByRole("button", { name: "Add replica" }).click();
    await dialog().getByLabel("At node").selectOption(third);
    await everyWay();
    await dialog().getByRole("button", { name: "Add replica" }).click();
    await closed();
    await row(third, "Replicas").getByText("level", { exact: true }).waitFor({ timeout: 60_000 });
    check(await has(), "the replica is not there");
  },
  async "a node is drained and revived from another one's page"() {
    const third = settings.nodes.find((node) => node !== owned.node && node !== here);
    const drained = async () => (await api("GET", `nodes/${third}/maintenance`)).json.maintenance;
    await visit(page, "/node");
    await row(third, /^Cluster/).getByRole("button", { name: "Drain" }).click();
    await everyWay();
    await dialog().getByRole("button", { name: "Drain" }).click();
    await closed();
    check(await drained(), "it is not in maintenance");
    await row(third, /^Cluster/).getByText("maintenance", { exact: true }).waitFor({ timeout: 30_000 });
    await everyWay();
    await row(third, /^Cluster/).getByRole("button", { name: "Revive" }).click();
    await dialog().getByRole("button", { name: "Revive" }).click();
    await closed();
    check(!(await drained()), "it is in maintenance");
    await row(third, /^Cluster/).getByRole("button", { name: "Drain" }).waitFor({ timeout: 30_000 });
  },
  async "a backup is made, listed and restored, and a refusal is shown"() {
    await visit(page, `/vhosts/${there}`);
    watch.expected.push(/400 \(Bad Request\)/);
    await card("Backups").getByRole("button", { name: "Back up now" }).click();
    await dialog().getByLabel("Name").fill("../elsewhere");
    await dialog().getByRole("button", { name: "Back up" }).click();
    await dialog().getByText("a backup is named by letters").waitFor();
    watch.expected.pop();
    await everyWay();
    await dialog().getByLabel("Name").fill("kept-1");
    await dialog().getByRole("button", { name: "Back up" }).click();
    await closed();
    await card("Backups").locator("tbody tr").filter({ hasText: "backup" }).getByText("done", { exact: true }).waitFor({ timeout: 60_000 });
    await everyWay();
    await visit(page, "/node");
    await row("kept-1", "Backups").getByRole("button", { name: "Restore" }).click();
    await dialog().getByLabel("As virtual host").fill("restored");
    await dialog().getByLabel("Replicas").fill("0");
    await everyWay();
    await dialog().getByRole("button", { name: "Restore" }).click();
    await closed();
    await card("Backups").locator("tbody tr").filter({ hasText: "restored" }).getByText("done", { exact: true }).waitFor({ timeout: 60_000 });
    await everyWay();
  },
  async "a virtual host is replicated, and one node's alone again"() {
    const replicas = async () => (await cluster()).vhosts.find((one) => one.name === "restored")?.replicas.length ?? 0;
    await visit(page, "/vhosts/restored");
    await page.getByRole("button", { name: "Actions" }).click();
    await page.getByRole("button", { name: "Replicate…" }).click();
    await everyWay();
    await dialog().getByRole("button", { name: "Replicate" }).click();
    await closed();
    await until("it is replicated", async () => (await replicas()) === settings.nodes.length);
    await card("Replicas").waitFor({ timeout: 30_000 });
    await page.getByRole("button", { name: "Actions" }).click();
    await page.getByRole("button", { name: "Unreplicate…" }).click();
    await dialog().getByLabel("Type restored to go on").fill("restored");
    await everyWay();
    await dialog().getByRole("button", { name: "Unreplicate" }).click();
    await closed();
    await until("it is not replicated any more", async () => (await replicas()) === 0);
    await card("Replicas").waitFor({ state: "detached", timeout: 30_000 });
  },
  async "queues of all nodes are in one table, and open"() {
    await visit(page, "/queues");
    const line = page.locator("[role=row]", { hasText: vhost }).filter({ hasText: "q" }).first();
    await line.getByText(owner, { exact: true }).waitFor({ timeout: 30_000 });
    await everyWay();
    await visit(page, `/queues/${there}/q`);
    await card("Declared").waitFor();
  },
  async "a node that is away is shown as away, and needs attention"() {
    const gone = settings.nodes.find((node) => node !== owned.node && node !== here);
    process.kill(settings.pids[gone], "SIGKILL");
    await visit(page, "/node");
    await row(gone, /^Cluster/).getByText("away", { exact: true }).waitFor({ timeout: 60_000 });
    await visit(page, "/attention");
    await page.getByText(`Node ${gone}`).waitFor({ timeout: 30_000 });
    await page.getByText("replica away", { exact: true }).waitFor();
    await everyWay();
    await visit(page, `/vhosts/${there}`);
    await row(gone, "Replicas").getByText("away", { exact: true }).waitFor();
    await row(owner, "Replicas").getByText("owner", { exact: true }).waitFor();
    await visit(page, "/node");
    await everyWay();
  },
};
await run(cases, { watch, browser, after: async (name) => { if (settings.shots) await page.screenshot({ path: `${settings.shots}/cluster_${name.replaceAll(/\W+/g, "_")}.png` }); await page.keyboard.press("Escape"); } });
