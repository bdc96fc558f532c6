// A broker without rates: every page is there without an error, says that rates are off where they would be drawn, and follows counts.
import { check, login, run, settled, start, visit } from "./browser.mjs";
import { ADDRESSES } from "./addresses.mjs";

const { browser, page, watch } = await start();
watch.expected.push(/404 \(Not Found\).*nowhere/);

const cases = {
  async "log in"() {
    await login(page);
    await page.locator(".livedot.live").waitFor();
  },
  async "every page"() {
    for (const address of Object.values(ADDRESSES)) await visit(page, address);
  },
  async "charts say that rates are off"() {
    for (const address of ["/", "/queues/%2F/orders.eu"]) {
      await visit(page, address);
      await page.getByText("Rates are off on this broker").waitFor();
      check(!(await page.locator(".uplot").count()), `${address}: something is drawn`);
    }
  },
  async "no rate is shown as 0"() {
    await visit(page, "/");
    const published = page.locator(".stat", { hasText: "Published" }).locator(".v");
    check((await published.innerText()).startsWith("–"), await published.innerText());
  },
  async "counts go on"() {
    await visit(page, "/queues/%2F/graves");
    const ready = page.locator(".stat", { hasText: "Ready" }).locator(".v");
    await ready.waitFor();
    const before = await ready.innerText();
    await page.evaluate(async () => {
      const csrf = (await (await fetch("api/session")).json()).csrf;
      const body = JSON.stringify({ properties: {}, routing_key: "graves", payload: "x", payload_encoding: "string" });
      await fetch("api/exchanges/%2F/amq.default/publish", { method: "POST", body, headers: { "X-CSRF-Token": csrf } });
    });
    await page.waitForFunction((was) => [...document.querySelectorAll(".stat")].find((one) => one.textContent.startsWith("Ready"))?.querySelector(".v").innerText !== was, before);
    await settled(page);
  },
};
await run(cases, { watch, browser });
