// How a page is looked at in every way that a user may have it.
import { readFileSync } from "node:fs";
import { check, settings } from "./browser.mjs";

/** The page has axe from now on, until it is left. */
export async function withAxe(page) {
  if (!(await page.evaluate(() => Boolean(window.axe)))) await page.evaluate(readFileSync(`${settings.modules}/axe-core/axe.min.js`, "utf8"));
}

async function axe(page, only) {
  const found = await page.evaluate(async (rules) => {
    const result = await window.axe.run(document, { resultTypes: ["violations"], ...(rules ? { runOnly: { type: "rule", values: rules } } : { runOnly: { type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] } }) });
    return result.violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
  }, only);
  check(!found.length, found.join("\n"));
}

async function look(page, dark, width, rules) {
  await page.emulateMedia({ colorScheme: dark ? "dark" : "light" });
  await page.setViewportSize({ width, height: width < 500 ? 780 : 900 });
  await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); }));
  const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  check(over <= 0, `${over} px wider than a window of ${width}`);
  await axe(page, rules);
}

/** In both themes and at both widths: nothing wider than the window, no serious finding of axe, no name taken for HTML. */
export async function lookEveryWay(page) {
  await look(page, false, 1440);
  await look(page, true, 1440, ["color-contrast"]);
  await look(page, true, 360, ["color-contrast"]);
  await look(page, false, 360);
  check(!(await page.evaluate(() => window.hacked || document.querySelector("#app img:not([src='favicon.svg'])"))), "a name was taken for HTML");
}
