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

/** `chosen` is {ids} or {where, up_to}; `origins` are the queues that the letters came from, for a retry. */
export function ActDialog({ verb, vhost, name, chosen, origins = [], onDone, onClose }) {
  const [title, action, done] = WORDS[verb];
  const needsTarget = verb === "move" || verb === "copy";
  const [kind, setKind] = useState("queue");
  const [target, setTarget] = useState("");
  const [exchange, setExchange] = useState("");
  const [key, setKey] = useState("");
  const [how, setHow] = useState("exchange");
  const [dry, setDry] = useState(null);
  const { value: queues } = useLoad(() => (needsTarget ? get(`queues/${path(vhost)}?columns=name&disable_stats=true`) : Promise.resolve([])), [vhost]);
  const to = needsTarget ? (kind === "queue" ? { vhost, queue: target } : { vhost, exchange, ...(key ? { routing_key: key } : {}) }) : verb === "retry" ? { to: how } : undefined;
  const ready = !needsTarget || (kind === "queue" ? target !== "" && target !== name : true);
  const body = () => ({ ...chosen, ...(verb === "retry" ? to : needsTarget ? { to } : {}) });
  const text = JSON.stringify(to);
  useEffect(() => {
    setDry(null);
    if (!ready) return undefined;
    let here = true;
    const timer = setTimeout(() => act(vhost, name, verb, { ...body(), dry_run: true }).then((found) => { if (here) setDry(found); }, (error) => { if (here) setDry({ problem: error.message }); }), 250);
    return () => { here = false; clearTimeout(timer); };
  }, [text, ready]);
  const run = async () => {
    const found = await act(vhost, name, verb, { ...body(), dry_run: false });
    const skipped = found.skipped?.length ?? 0;
    toast(`${plural(found.done, "message")} ${done}${skipped ? `; ${plural(skipped, "was", "were")} left: ${found.skipped[0].reason}` : ""}`, skipped && !found.done ? "bad" : "good");
    onDone();
  };
  const reasons = {};
  for (const one of dry?.skipped ?? []) reasons[one.reason] = (reasons[one.reason] ?? 0) + 1;
  return html`<${FormDialog} title=${title} action=${dry && !dry.problem ? `${action} ${plural(dry.matched - (dry.skipped?.length ?? 0), "message")}` : action} danger=${verb === "delete"} run=${run} onClose=${onClose} disabled=${!ready || !dry || dry.problem || dry.matched === 0}>
    ${verb === "delete" && html`<p>The messages are taken out of <b>${name}</b> and dropped: nothing is dead-lettered. This cannot be undone.</p>`}
    ${needsTarget && html`<${Segmented} label="Where to" value=${kind} onValue=${setKind} options=${[["queue", "A queue"], ["exchange", "An exchange"]]} />
      ${kind === "queue" ? html`<${Text} label="Queue" value=${target} onValue=${setTarget} list=${(queues ?? []).map((one) => one.name).filter((one) => one !== name).slice(0, 2000)} mono autofocus required invalid=${target === name ? "That is where they are" : undefined} />` : html`<div class="fields"><${Text} label="Exchange" hint="Empty: the default exchange" value=${exchange} onValue=${setExchange} mono /><${Text} label="Routing key" hint="Empty: each message's own" value=${key} onValue=${setKey} mono /></div>`}`}
    ${verb === "retry" && html`<p>Each message goes back to where it died last, as its x-death header says${origins.length ? html`: ${origins.map((one) => html`<b>${one}</b> `)}` : ""}.</p><${Choice} label="Send it" value=${how} onValue=${setHow} options=${[["exchange", "To its exchange, with its routing key"], ["queue", "Straight into its queue"]]} />`}
    ${!ready ? null : !dry ? html`<${Loading} lines=${1} />` : dry.problem ? html`<${Note} kind="bad">${dry.problem}<//>` : html`<${Note} kind=${dry.matched ? "" : "warn"}><b>${plural(dry.matched, "message")}</b> ${dry.matched === 1 ? "is" : "are"} meant.${Object.entries(reasons).map(([reason, count]) => html`<div>${int(count)} left out: ${reason}</div>`)}<//>`}<//>`;
}
