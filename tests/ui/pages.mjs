// Every page in both themes and at both widths: no error, no answer of 500, nothing wider than the window, no serious finding of axe, no
// name taken for HTML.
import { check, run, settings, settled, start, visit } from "./browser.mjs";
import { ADDRESSES, EVIL } from "./addresses.mjs";
import { lookEveryWay, withAxe } from "./looks.mjs";

const { browser, page, watch } = await start();
watch.expected.push(/404 \(Not Found\).*nowhere/);
await page.goto(settings.base);
await withAxe(page);

const everyWay = () => lookEveryWay(page);

const cases = { login: everyWay };
cases["log in"] = async () => {
  await page.getByLabel("Name").fill("guest");
  await page.getByLabel("Password").fill("guest");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.locator(".shell").waitFor();
};
for (const [name, address] of Object.entries(ADDRESSES)) {
  cases[name] = async () => {
    await page.setViewportSize({ width: 1440, height: 900 });
    await visit(page, address);
    if (name.endsWith("messages")) { await page.locator(".msg").first().click(); await settled(page); }
    await everyWay();
  };
}
// Where a name that would be an element has to stand as text.
const LISTS = {
  queues: "/queues", exchanges: "/exchanges", connections: "/connections", channels: "/channels", consumers: "/consumers", vhosts: "/vhosts", users: "/users", policies: "/policies", "operator policies": "/policies?tab=operator", "vhost limits": "/limits", "user limits": "/limits", audit: "/audit", log: "/audit?tab=log", topology: "/topology",
  "a queue's bindings, settings, policies": ADDRESSES["evil queue"], "a queue's messages": ADDRESSES["evil messages"], "an exchange's bindings": ADDRESSES["evil exchange"], "a stream's readers and offsets": ADDRESSES.stream, "a stream's messages": ADDRESSES["stream messages"], partitions: ADDRESSES["super stream"],
  "a vhost's permissions": "/vhosts/%2F", "a user's permissions": ADDRESSES["evil user"], "dead letters": "/queues/%2F/graves?tab=messages", "definitions of a vhost": "/definitions", "one connection": "/connections", "one channel": "/channels",
};
cases["a hostile name is text in every list"] = async () => {
  const missing = [];
  await page.setViewportSize({ width: 1440, height: 2000 });
  for (const [list, address] of Object.entries(LISTS)) {
    await visit(page, address);
    if (list === "one connection" || list === "one channel") { await page.locator(".vbody .vrow", { hasText: EVIL }).first().locator("a").first().click(); await settled(page); }
    if (list === "dead letters") { await page.locator(".msg").first().locator("button").click(); await settled(page); }
    const found = await page.getByText(EVIL).or(page.locator("option", { hasText: EVIL })).first().waitFor({ state: "attached", timeout: 5000 }).then(() => true, () => false);
    if (!found) missing.push(list);
    check(!(await page.evaluate(() => window.hacked || document.querySelector("#app img:not([src='favicon.svg'])"))), `${list}: a name was taken for HTML`);
  }
  check(!missing.length, `it does not stand in: ${missing.join(", ")}`);
  await page.setViewportSize({ width: 1440, height: 900 });
};
cases["a hostile name is text in the palette and in views"] = async () => {
  await visit(page, "/queues?q=orders");
  await page.getByRole("button", { name: "Views" }).click();
  await page.getByRole("button", { name: "Keep this view…" }).click();
  await page.locator("dialog[open]").getByLabel("Name").fill(EVIL);
  await page.locator("dialog[open]").getByRole("button", { name: "Keep", exact: true }).click();
  await page.locator("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: EVIL, exact: true }).first().click();
  await page.getByRole("button", { name: `Forget ${EVIL}` }).waitFor();
  check(!(await page.evaluate(() => window.hacked)), "a name was taken for HTML");
  await page.getByRole("button", { name: `Forget ${EVIL}` }).click();
  await page.keyboard.press("Control+k");
  await page.locator("dialog[open] input").fill("onerror");
  await page.locator("dialog[open] li", { hasText: EVIL }).first().waitFor();
  await everyWay();
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
};
cases["the forms"] = async () => {
  for (const [address, open] of [["/queues", "Declare queue"], ["/exchanges", "Declare exchange"], ["/queues/%2F/orders.eu", "Publish"], ["/policies", "Add policy"], ["/users", "Add user"], ["/vhosts", "Add virtual host"]]) {
    await page.setViewportSize({ width: 1440, height: 900 });
    await visit(page, address);
    await page.locator(".page-head").getByRole("button", { name: open }).click();
    await page.locator("dialog[open]").waitFor();
    await settled(page);
    await everyWay();
    await page.keyboard.press("Escape");
    await page.locator("dialog").waitFor({ state: "detached" });
  }
};
cases["the palette and the keys"] = async () => {
  await page.setViewportSize({ width: 1440, height: 900 });
  for (const key of ["Control+k", "?"]) {
    await page.keyboard.press(key);
    await page.locator("dialog[open]").waitFor();
    await everyWay();
    await page.keyboard.press("Escape");
    await page.locator("dialog").waitFor({ state: "detached" });
  }
};
await run(cases, { watch, browser });
