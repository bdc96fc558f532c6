// A broker that changes nothing, below a prefix: the pages are there, messages are looked at and searched, and no button does anything else.
import { check, login, run, settled, start, visit } from "./browser.mjs";
import { ADDRESSES } from "./addresses.mjs";

const { browser, page, watch } = await start();
const WRITES = /declare|publish|bind$|delete|purge|add (?!header)|set$|set a limit|change|edit|move|apply|close$|more actions|select several/i;

const cases = {
  async "log in below a prefix"() {
    await login(page);
    await page.locator(".livedot.live").waitFor();
  },
  async "no page offers a change"() {
    for (const [name, address] of Object.entries(ADDRESSES)) {
      if (name.startsWith("evil") || name.startsWith("no such")) continue;
      await visit(page, address);
      const found = (await page.locator("#content button").allInnerTexts()).filter((text) => WRITES.test(text.trim()));
      check(!found.length, `${name}: ${found}`);
    }
  },
  async "messages are looked at and searched"() {
    await visit(page, "/queues/%2F/orders.eu?tab=messages");
    await page.locator(".msg").first().locator("button").click();
    await page.locator(".msgview .jt").waitFor();
    await page.getByRole("button", { name: "Search in the messages" }).click();
    await page.getByLabel("Search for").fill("Ada");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByText(/looked at.*matches/).waitFor();
    await settled(page);
  },
};
await run(cases, { watch, browser });
