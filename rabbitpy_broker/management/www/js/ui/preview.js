// What a policy would change before it is set: the objects that match, and their settings before and after.
import { html, useState, useEffect } from "../core/html.js";
import { post } from "../core/api.js";
import { plural, int } from "../core/format.js";
import { Icon, Loading, Note } from "./bits.js";

const text = (value) => (value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** The settings that differ between two objects. */
export function Changes({ from, to }) {
  const names = [...new Set([...Object.keys(from ?? {}), ...Object.keys(to ?? {})])].filter((name) => JSON.stringify(from?.[name]) !== JSON.stringify(to?.[name]));
  return html`<span class="diff">${names.map((name) => html`<div>${name} ${from?.[name] !== undefined && html`<span class="from">${text(from[name])}</span>`} ${to?.[name] !== undefined && html`<span class="to">${text(to[name])}</span>`}</div>`)}</span>`;
}

export function PolicyPreview({ given }) {
  const [found, setFound] = useState(null);
  const key = JSON.stringify(given);
  const complete = given.delete || Object.keys(given.definition ?? {}).length > 0;
  useEffect(() => {
    if (!complete) return undefined;
    let here = true;
    const timer = setTimeout(() => post("policies/preview", given).then((answer) => { if (here) setFound(answer); }, (error) => { if (here) setFound({ problem: error.message }); }), 300);
    return () => { here = false; clearTimeout(timer); };
  }, [key]);
  if (!complete) return html`<p class="small muted">What it would change is shown as soon as it sets something.</p>`;
  if (!found) return html`<${Loading} lines=${1} />`;
  if (found.problem) return html`<${Note} kind="warn">${found.problem}<//>`;
  return html`<div class="stack tight"><${Note}><b>${plural(found.matched, "object")}</b> match${found.matched === 1 ? "es" : ""}; <b>${int(found.changed.length)}${found.truncated ? "+" : ""}</b> would change, ${int(found.unchanged)} would not.<//>
    ${found.changed.length > 0 && html`<div class="plain-wrap" style=${{ maxHeight: "220px", overflow: "auto" }} tabindex="0" role="region" aria-label="What would change"><table class="plain"><thead><tr><th>Name</th><th>Policy</th><th>Settings</th></tr></thead><tbody>${found.changed.slice(0, 200).map((one) => html`<tr><td><span class="row tight"><${Icon} name=${one.kind} />${one.name}</span></td><td class="small">${one.policy?.from ?? "–"} → ${one.policy?.to ?? "–"}</td><td><${Changes} from=${one.from} to=${one.to} /></td></tr>`)}</tbody></table></div>`}</div>`;
}
