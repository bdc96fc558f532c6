// The vhost that lists are narrowed to; it is kept from page to page.
import { html, useEffect } from "../core/html.js";
import { get } from "../core/api.js";
import { chosenVhost } from "../core/prefs.js";
import { route, setQuery } from "../core/router.js";
import { useLoad } from "./bits.js";

export function useVhosts() {
  const { value } = useLoad(() => get("vhosts?columns=name"), []);
  return (value ?? []).map((one) => one.name);
}

export function VhostPicker() {
  const names = useVhosts();
  const given = route.value.query.vhost; // of an address that somebody has sent: "*" is all of them
  useEffect(() => { if (given) { chosenVhost.value = given === "*" ? "" : given; setQuery({ vhost: "" }); } }, [given]);
  if (names.length < 2 && !chosenVhost.value) return null;
  const known = names.includes(chosenVhost.value) || !chosenVhost.value || !names.length ? names : [chosenVhost.value, ...names];
  return html`<select aria-label="Virtual host" value=${chosenVhost.value} style=${{ width: "auto", maxWidth: "190px" }} onChange=${(event) => { chosenVhost.value = event.currentTarget.value; }}>
    <option value="" selected=${!chosenVhost.value}>All vhosts</option>${known.map((name) => html`<option value=${name} selected=${name === chosenVhost.value}>${name}</option>`)}</select>`;
}

/** A test on the rows of a table by the vhost that is chosen. */
export function vhostTest(table) {
  const wanted = chosenVhost.value;
  return { id: wanted, test: wanted ? (row) => table.value(row, "vhost") === wanted : null };
}
