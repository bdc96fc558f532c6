// What a page with 20,000 queues costs its browser: frames while it is scrolled, and the heap after ten minutes of figures, which come as
// fast as they are drawn from a stream that is made up here. Used by table.mjs and by perf/ui.py.
import { settings, settled, until } from "./browser.mjs";

/** Scrolls for some seconds, some rows further in each frame. {fps, longest: ms, drawn: rows at most} */
export function scrolling(page, seconds) {
  return page.evaluate((duration) => new Promise((done) => {
    const table = document.querySelector(".vscroll");
    const began = performance.now();
    let last = began;
    let frames = 0;
    let longest = 0;
    let drawn = 0;
    table.scrollTop = 0;
    const frame = () => {
      const now = performance.now();
      if (frames) longest = Math.max(longest, now - last);
      last = now;
      frames += 1;
      drawn = Math.max(drawn, document.querySelectorAll(".vbody .vrow").length);
      if (now - began >= duration) { table.scrollTop = 0; done({ fps: (1000 * (frames - 1)) / (now - began), longest, drawn }); return; }
      table.scrollTop = (table.scrollTop + 370) % (table.scrollHeight - table.clientHeight);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }), seconds * 1000);
}

/** A tab whose figures come from `tick` below, and not from the broker. */
export async function madeUp(context, address) {
  const page = await context.newPage();
  await page.addInitScript(() => {
    delete window.SharedWorker;
    window.EventSource = class {
      constructor() { this.handlers = {}; window.stream = this; }
      addEventListener(kind, handler) { this.handlers[kind] = handler; }
      close() { this.handlers = {}; }
      tell(kind, data) { this.handlers[kind]?.({ data: JSON.stringify(data), lastEventId: "" }); }
    };
  });
  await page.goto(`${settings.base}#${address}`);
  await page.locator(".shell").waitFor();
  await until("a stream", () => page.evaluate(() => Boolean(window.stream)));
  await page.evaluate(async () => {
    const table = await (await fetch("api/table/queues")).json();
    window.made = { table, tick: 0, at: Date.now() };
    const rates = { publish: 1, deliver_get: 1, ack: 1, redeliver: 0, return_unroutable: 0, drop_unroutable: 0 };
    const totals = { queues: table.rows.length, exchanges: 9, connections: 1, channels: 1, consumers: 1, messages: 1, messages_ready: 1, messages_unacknowledged: 0 };
    window.stream.tell("snapshot", { topic: "overview", as_of: Date.now(), value: { rates, totals, node: null, alarms: [] } });
    window.stream.tell("snapshot", { topic: "table:queues", as_of: Date.now(), ...table, part: 0, done: true });
  });
  await settled(page);
  return page;
}

/** So many seconds of figures, each drawn: `changing` queues have other ones, and one goes and comes. */
export const ticks = (page, count, changing = 500) => page.evaluate(async ([seconds, rows]) => {
  const { made } = window;
  const { table } = made;
  const [vhost, name] = ["vhost", "name"].map((column) => table.columns.indexOf(column));
  for (let i = 0; i < seconds; i += 1) {
    made.tick += 1;
    const as_of = made.at + made.tick * 1000;
    const changed = Array.from({ length: rows }, (_, n) => {
      const row = table.rows[(made.tick * 37 + n * 41) % table.rows.length];
      const count = (made.tick * 7 + n) % 1000;
      return [[row[vhost], row[name]], { messages: count, messages_ready: count, publish_rate: count / 10, deliver_rate: count / 11, ack_rate: count / 11 }];
    });
    const moving = table.rows[made.tick % table.rows.length];
    const key = [moving[vhost], moving[name]];
    window.stream.tell("delta", made.tick % 2 ? { topic: "table:queues", as_of, changed, gone: [key], added: [] } : { topic: "table:queues", as_of, changed, gone: [], added: [table.rows[(made.tick - 1) % table.rows.length]] });
    window.stream.tell("delta", { topic: "overview", as_of, value: { rates: { publish: made.tick % 91, deliver_get: made.tick % 83, ack: made.tick % 79 }, totals: { queues: table.rows.length, messages_ready: made.tick % 997, messages_unacknowledged: made.tick % 7 } } });
    await new Promise((done) => { requestAnimationFrame(done); });
  }
}, [count, changing]);

/** Bytes that are in use when nothing is left to be collected. */
export async function heap(page) {
  const inspector = await page.context().newCDPSession(page);
  for (let i = 0; i < 3; i += 1) await inspector.send("HeapProfiler.collectGarbage");
  const { usedSize } = await inspector.send("Runtime.getHeapUsage");
  await inspector.detach();
  return usedSize;
}
