// The pictures of the documentation, or every page in every way.
import { login, settings, settled, start, until, visit } from "./browser.mjs";
import { ADDRESSES } from "./addresses.mjs";

const { browser, page } = await start();
const shot = (name) => page.screenshot({ path: `${settings.into}/${name}.png` });
const theme = async (dark) => { await page.emulateMedia({ colorScheme: dark ? "dark" : "light" }); await page.waitForTimeout(200); };
const drawn = async () => { await settled(page); await page.waitForTimeout(2500); };
const openMessage = async (n = 0) => { await page.locator(".msg").nth(n).locator("button").click(); await settled(page); };

async function everything() {
  const addresses = { ...ADDRESSES, messages: "/queues/%2F/orders.eu?tab=messages", "dead letters": "/queues/%2F/dead.orders?tab=messages", unacked: "/queues/%2F/invoices?tab=messages&state=unacked", tail: "/queues/%2F/audit.log?tab=tail", stream: "/queues/%2F/clicks", "stream messages": "/queues/%2F/clicks?tab=messages&at=2500", quorum: "/queues/%2F/refunds", "quorum messages": "/queues/%2F/refunds?tab=messages", "super stream": "/exchanges/%2F/visits", connection: "/connections", "long name": "/queues/staging/a.queue.with.a.name.that.is.as.long.as.names.of.generated.queues.are-7f0c1d1e4c1b4a0f" };
  const wanted = settings.pages ? settings.pages.split(",") : Object.keys(addresses);
  for (const [name, address] of Object.entries(addresses)) {
    if (!wanted.includes(name) || name.startsWith("evil") || name.startsWith("no such")) continue;
    await page.setViewportSize({ width: 1440, height: 900 });
    await visit(page, address);
    if (["messages", "dead letters", "unacked", "stream messages", "quorum messages"].includes(name)) await openMessage();
    await drawn();
    for (const [dark, width] of [[true, 1440], [false, 1440], [true, 360], [false, 360]]) {
      await page.setViewportSize({ width, height: width < 500 ? 780 : 900 });
      await theme(dark);
      await shot(`${name.replaceAll(" ", "_")}-${width}-${dark ? "dark" : "light"}`);
    }
  }
}

async function documentation() {
  await page.setViewportSize({ width: 1280, height: 800 });
  await theme(true);
  await visit(page, "/overview");
  await page.waitForTimeout(6000);
  await drawn();
  await shot("ui_overview");
  await theme(false);
  await visit(page, "/queues?sort=-messages");
  await drawn();
  await shot("ui_queues");
  await visit(page, "/queues/%2F/dead.orders?tab=messages");
  await openMessage();
  await drawn();
  await shot("ui_messages");
  await visit(page, "/queues/%2F/clicks");
  await drawn();
  await shot("ui_stream");
  await theme(true);
  await visit(page, "/topology");
  await drawn();
  await shot("ui_topology");
}

async function ofCluster() {
  await page.setViewportSize({ width: 1280, height: 800 });
  await theme(false);
  await visit(page, "/node");
  await page.getByText("telemetry", { exact: true }).waitFor();
  await drawn();
  await shot("ui_cluster");
}

await login(page);
await until("figures", async () => (await page.locator(".livedot.live").count()) > 0);
await (settings.cluster ? ofCluster() : settings.all ? everything() : documentation());
await browser.close();
