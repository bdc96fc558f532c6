// Deleting, moving, copying and retrying of chosen messages. Each dialog first asks the broker what it would do (a dry run) and shows
// the count; only then the button works. A message is at every moment in exactly one of both queues: a move is one step of the store.
import { html, useState, useEffect } from "../core/html.js";
import { get, path } from "../core/api.js";
import { plural, int } from "../core/format.js";
import { Check, Choice, FormDialog, Loading, Note, Segmented, Text, toast, useLoad } from "../ui/bits.js";
import { act } from "./browse.js";

const WORDS = {
  delete: ["Delete messages", "Delete", "deleted"], move: ["Move messages", "Move", "moved"], copy: ["Copy messages", "Copy", "copied"], retry: ["Retry dead letters", "Retry", "sent back"],
};

/** `chosen` is {seqs} or {filter, up_to_seq}; `origins` are the queues that the letters came from, for a retry. */
export function ActDialog({ verb, vhost, name, chosen, origins = [], onDone, onClose }) {
  const [title, action, done] = WORDS[verb];
  const needsTarget = verb === "move" || verb === "copy";
  const [kind, setKind] = useState("queue");
  const [target, setTarget] = useState("");
  const [exchange, setExchange] = useState("");
  const [key, setKey] = useState("");
  const [how, setHow] = useState("queue");
  const [death, setDeath] = useState("last");
  const [mark, setMark] = useState(false);
  const [dry, setDry] = useState(null);
  const { value: queues } = useLoad(() => (needsTarget ? get(`queues/${path(vhost)}?columns=name&disable_stats=true`) : Promise.resolve([])), [vhost]);
  const how_ = verb === "retry" ? { by: how, death } : needsTarget ? { to: kind === "queue" ? { queue: target } : { exchange, ...(key ? { routing_key: key } : {}) }, ...(mark ? { mark } : {}) } : {};
  const ready = !needsTarget || (kind === "queue" ? target !== "" && target !== name : true);
  const body = () => ({ ...chosen, ...how_ });
  const text = JSON.stringify(how_);
  useEffect(() => {
    setDry(null);
    if (!ready) return undefined;
    let here = true;
    const timer = setTimeout(() => act(vhost, name, verb, { ...body(), dry_run: true }).then((found) => { if (here) setDry(found); }, (error) => { if (here) setDry({ problem: error.message }); }), 250);
    return () => { here = false; clearTimeout(timer); };
  }, [text, ready]);
  const run = async () => {
    const found = await act(vhost, name, verb, { ...body(), dry_run: false });
    const skipped = found.skipped_count;
    toast(`${plural(found.done, "message")} ${done}${skipped ? `; ${plural(skipped, "was", "were")} left: ${found.skipped[0]?.reason}` : ""}`, skipped && !found.done ? "bad" : "good");
    onDone();
  };
  const reasons = {};
  for (const one of dry?.skipped ?? []) reasons[one.reason] = (reasons[one.reason] ?? 0) + 1;
  return html`<${FormDialog} title=${title} action=${dry && !dry.problem ? `${action} ${plural(dry.done, "message")}` : action} danger=${verb === "delete"} run=${run} onClose=${onClose} disabled=${!ready || !dry || dry.problem || dry.done === 0}>
    ${verb === "delete" && html`<p>The messages are taken out of <b>${name}</b> and dropped: nothing is dead-lettered. This cannot be undone.</p>`}
    ${needsTarget && html`<${Segmented} label="Where to" value=${kind} onValue=${setKind} options=${[["queue", "A queue"], ["exchange", "An exchange"]]} />
      ${kind === "queue" ? html`<${Text} label="Queue" value=${target} onValue=${setTarget} list=${(queues ?? []).map((one) => one.name).filter((one) => one !== name).slice(0, 2000)} mono autofocus required invalid=${target === name ? "That is where they are" : undefined} />` : html`<div class="fields"><${Text} label="Exchange" hint="Empty: the default exchange" value=${exchange} onValue=${setExchange} mono /><${Text} label="Routing key" hint="Empty: each message's own" value=${key} onValue=${setKey} mono /></div>`}<${Check} label="Note the move in a header (x-moved)" value=${mark} onValue=${setMark} />`}
    ${verb === "retry" && html`<p>Each message goes back to where it died, as its x-death header says${origins.length ? html`: ${origins.map((one) => html`<b>${one}</b> `)}` : ""}.</p><div class="fields"><${Choice} label="Send it" value=${how} onValue=${setHow} options=${[["queue", "Into the queue where it died"], ["exchange", "To the exchange it had come to"]]} /><${Choice} label="Of its deaths" value=${death} onValue=${setDeath} options=${[["last", "The last"], ["first", "The first"]]} /></div><p class="small muted">The header x-retry-count tells how often that was done.</p>`}
    ${chosen.filter && html`<p class="small muted">Chosen are all that match now; what is published from now on is not touched.</p>`}
    ${!ready ? null : !dry ? html`<${Loading} lines=${1} />` : dry.problem ? html`<${Note} kind="bad">${dry.problem}<//>` : html`<${Note} kind=${dry.matched ? "" : "warn"}><b>${plural(dry.matched, "message")}</b> ${dry.matched === 1 ? "is" : "are"} meant.${Object.entries(reasons).map(([reason, count]) => html`<div>${int(count)} left out: ${reason}</div>`)}<//>`}<//>`;
}
