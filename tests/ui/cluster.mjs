// Three nodes and a replicated virtual host: each page says who owns it, how far the others are, and what is away. The page is that of a
// node that follows, until the virtual host is handed over to it.
import { api, check, login, run, settings, start, until, visit } from "./browser.mjs";

const { browser, page, watch } = await start({ height: 2000 });

const vhost = settings.vhost;
const there = encodeURIComponent(vhost);
const here = settings.node;
const card = (name) => page.locator("section.card").filter({ has: page.locator("header h2", { hasText: name }) });
const row = (name, title) => card(title).locator("tbody tr").filter({ has: page.locator("td:first-child", { hasText: name }) });
const cluster = async () => (await api("GET", "cluster")).json;
const ofVhost = async () => (await cluster()).vhosts.find((one) => one.name === vhost);

const cases = {
  async "log in"() {
    await until("all nodes are level", async () => { const it = await ofVhost(); return it?.owner && it.owner !== here && it.replicas.every((one) => one.running && one.lag === 0); }, 60_000);
    await login(page);
  },
  async "the node's page has all nodes, the engine and the virtual host"() {
    await visit(page, "/node");
    await page.getByText("Engine: PostgreSQL").waitFor();
    const { owner } = await ofVhost();
    for (const node of settings.nodes) await row(node, /^Cluster /).getByText("running", { exact: true }).waitFor();
    await row(here, /^Cluster /).getByText("this one").waitFor();
    await row(vhost, "Replicated virtual hosts").locator("td").nth(1).getByText(owner, { exact: true }).waitFor();
    await row(vhost, "Replicated virtual hosts").getByText("well", { exact: true }).waitFor();
  },
  async "a virtual host that is elsewhere is in the list, and its page names its owner"() {
    await visit(page, "/vhosts");
    const { owner } = await ofVhost();
    await page.locator("tbody tr", { hasText: vhost }).getByText(owner, { exact: true }).waitFor();
    await page.locator("tbody tr", { hasText: vhost }).getByRole("link").click();
    await page.getByText(`Node ${owner} owns it`).waitFor();
    check((await card("Replicas").locator("tbody tr").count()) === settings.nodes.length, "replicas are missing");
    await row(owner, "Replicas").getByText("owner", { exact: true }).waitFor();
    for (const node of settings.nodes) await row(node, "Replicas").getByText("level", { exact: true }).waitFor();
  },
  async "it is handed over to this node, and is shown whole"() {
    watch.expected.push(/503|Failed to load resource/);
    await card("Replicas").getByRole("button", { name: "Hand over" }).click();
    const dialog = page.locator("dialog[open]").last();
    await dialog.getByLabel("To node").selectOption(here);
    await dialog.getByRole("button", { name: "Hand over" }).click();
    await page.locator("dialog").waitFor({ state: "detached", timeout: 30_000 });
    await until("this node owns it", async () => (await ofVhost()).owner === here, 30_000);
    await row(here, "Replicas").getByText("owner", { exact: true }).waitFor();
    await card("Permissions").waitFor();
    watch.expected.pop();
  },
  async "a quorum queue has its leader and members"() {
    check((await api("PUT", `queues/${there}/q`, { durable: true, arguments: { "x-queue-type": "quorum" } })).status === 201, "the queue is not declared");
    await visit(page, `/queues/${there}/q`);
    const members = card("Declared").locator("dt", { hasText: "Members" }).locator("xpath=following-sibling::dd[1]");
    await members.getByText(`${here}, leader`).waitFor();
    await until("all are online", async () => (await members.locator(".badge.good").count()) === settings.nodes.length);
  },
  async "a node that is away is shown as away, and needs attention"() {
    const gone = settings.nodes.find((node) => node !== here);
    process.kill(settings.pids[gone], "SIGKILL");
    await visit(page, "/node");
    await row(gone, /^Cluster /).getByText("away", { exact: true }).waitFor({ timeout: 60_000 });
    await visit(page, "/attention");
    await page.getByText(`Node ${gone}`).waitFor({ timeout: 30_000 });
    await page.getByText("replica away", { exact: true }).waitFor();
    await visit(page, `/vhosts/${there}`);
    await row(gone, "Replicas").getByText("away", { exact: true }).waitFor();
    await row(here, "Replicas").getByText("owner", { exact: true }).waitFor();
  },
};
await run(cases, { watch, browser, after: async (name) => { if (settings.shots) await page.screenshot({ path: `${settings.shots}/cluster_${name.replaceAll(/\W+/g, "_")}.png` }); await page.keyboard.press("Escape"); } });
