// Every page in both themes and at both widths: no error, no answer of 500, nothing wider than the window, no serious finding of axe, no
// name taken for HTML.
import { api, axeSource, check, login, run, settings, settled, start, visit } from "./browser.mjs";
import { ADDRESSES } from "./addresses.mjs";

const { browser, page, watch } = await start();
watch.expected.push(/404 \(Not Found\).*nowhere/);
await page.goto(settings.base);
await page.evaluate(axeSource());

async function axe(only) {
  const found = await page.evaluate(async (rules) => {
    const result = await window.axe.run(document, { resultTypes: ["violations"], ...(rules ? { runOnly: { type: "rule", values: rules } } : { runOnly: { type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] } }) });
    return result.violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
  }, only);
  check(!found.length, found.join("\n"));
}

async function look(dark, width, rules) {
  await page.emulateMedia({ colorScheme: dark ? "dark" : "light" });
  await page.setViewportSize({ width, height: width < 500 ? 780 : 900 });
  await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); }));
  const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  check(over <= 0, `${over} px wider than a window of ${width}`);
  await axe(rules);
}

async function everyWay() {
  await look(false, 1440);
  await look(true, 1440, ["color-contrast"]);
  await look(true, 360, ["color-contrast"]);
  await look(false, 360);
  check(!(await page.evaluate(() => window.hacked || document.querySelector("#app img:not([src='favicon.svg'])"))), "a name was taken for HTML");
}

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
