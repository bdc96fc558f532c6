// What comes into a queue, or to an exchange, as it comes: looked at in place several times a second, or copied. Nothing is taken; what
// was not seen is counted.
import { html, useState, useEffect, useRef } from "../core/html.js";
import { int, clock, bytes } from "../core/format.js";
import { Badge, Button, Card, Dialog, Empty, Note, show } from "../ui/bits.js";
import { exchangeTailAddress, tailAddress } from "./browse.js";
import { MessageView } from "./message.js";
import { bytesOf, textOf } from "./decode.js";

const KEPT = 500;

export function Tail({ vhost, name, exchange }) {
  const [items, setItems] = useState([]);
  const [missed, setMissed] = useState(0);
  const [going, setGoing] = useState(true);
  const [problem, setProblem] = useState("");
  const number = useRef(0);
  useEffect(() => {
    if (!going) return undefined;
    const source = new EventSource(exchange ? exchangeTailAddress(vhost, name) : tailAddress(vhost, name));
    source.addEventListener("messages", (event) => {
      const { items: list, unseen } = JSON.parse(event.data);
      const at = Date.now();
      if (unseen) setMissed((count) => count + unseen);
      setItems((old) => [...list.map((message) => ({ at, number: (number.current += 1), message })).reverse(), ...old].slice(0, KEPT));
    });
    source.addEventListener("end", (event) => { source.close(); setProblem({ deleted: "It has been deleted.", refused: "You may not read it any more." }[JSON.parse(event.data || "{}").reason] ?? "The stream has ended."); setGoing(false); });
    source.onopen = () => setProblem("");
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) { setProblem("It cannot be watched: it is gone, you may not read it, or many are watching."); setGoing(false); } };
    return () => source.close();
  }, [vhost, name, exchange, going]);
  const open = (message) => show((close) => html`<${Dialog} wide scrolls title=${message.routing_key || "Message"} onClose=${close}><${MessageView} message=${message} vhost=${vhost} queue=${name} /><//>`);
  const line = (message) => { const text = textOf(bytesOf(message)); return text === null ? `${bytes(message.payload_bytes)} of bytes` : text.slice(0, 300); };
  return html`<${Card} bare title="As it comes" actions=${html`${missed > 0 && html`<${Badge} kind="warn" title="More came than was looked at, or consumers were quicker">${int(missed)} unseen<//>`}<${Button} small icon=${going ? "stop" : "play"} onClick=${() => setGoing(!going)}>${going ? "Pause" : "Go on"}<//><${Button} small kind="ghost" onClick=${() => { setItems([]); setMissed(0); }}>Clear<//>`}>
    ${problem && html`<div class="body" style=${{ padding: "10px" }}><${Note} kind="bad">${problem}<//></div>`}
    ${items.length ? html`<ul class="tail" tabindex="0" aria-label="Messages as they come">${items.map(({ at, number: id, message }) => html`<li key=${id}><span class="muted">${clock(at)}</span><button type="button" class="linklike" onClick=${() => open(message)}>${message.routing_key || "(empty key)"}</button><span class="soft">${line(message)}</span></li>`)}</ul>` : html`<${Empty} icon="queue" title=${going ? "Waiting for messages" : "Paused"}>Looking takes nothing away from anybody.<//>`}<//>`;
}
