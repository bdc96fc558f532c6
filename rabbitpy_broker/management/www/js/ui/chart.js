// Charts over time with uPlot, which is fetched when the first one is shown, and sparklines drawn as SVG.
import { html, useEffect, useLayoutEffect, useRef, useState, useMemo } from "../core/html.js";
import { theme, systemDark } from "../core/prefs.js";
import { get } from "../core/api.js";
import { rate, hasRates, bytes, short, clock } from "../core/format.js";
import { Card, Segmented, Loading } from "./bits.js";

let loading = null;
function library() {
  loading ??= new Promise((resolve, reject) => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = "vendor/uPlot.min.css";
    const script = document.createElement("script");
    script.src = import.meta.resolve("../../vendor/uPlot.iife.min.js"); // by the import map: with the hash of its content
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("the charts could not be loaded"));
    document.head.append(sheet, script);
  });
  return loading;
}

/** A line of values without axes. */
export function Spark({ values, color = "var(--c-deliver)", label, height = 26 }) {
  const drawn = useMemo(() => {
    const list = values.filter((value) => value != null);
    if (list.length < 2) return null;
    const most = Math.max(...list, 1e-9);
    const points = list.map((value, i) => `${((100 * i) / (list.length - 1)).toFixed(2)} ${(height - 2 - (value / most) * (height - 4)).toFixed(2)}`);
    return { line: `M${points.join("L")}`, area: `M0 ${height}L${points.join("L")}L100 ${height}Z` };
  }, [values, height]);
  return html`<svg class="spark" viewBox=${`0 0 100 ${height}`} preserveAspectRatio="none" role="img" aria-label=${label ?? "recent values"} style=${{ height: `${height}px` }}>${drawn && html`<path class="area" d=${drawn.area} style=${{ fill: color }} /><path d=${drawn.line} style=${{ stroke: color }} />`}</svg>`;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const FORMATS = { rate, count: short, bytes };

/** Series over time: `times` in seconds, `series` [{name, color: "--c-publish", values}]. */
export function Chart({ times, series, format = "rate", height = 190, label }) {
  const box = useRef();
  const plot = useRef();
  const [ready, setReady] = useState(Boolean(window.uPlot));
  const [hover, setHover] = useState(null);
  useEffect(() => { let here = true; library().then(() => here && setReady(true)); return () => { here = false; }; }, []);
  const names = series.map((one) => one.name).join();
  const show = FORMATS[format];
  useLayoutEffect(() => {
    if (!ready || !box.current) return undefined;
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: `11px ${css("--sans")}` };
    const made = new window.uPlot({
      width: box.current.clientWidth || 300, height, padding: [8, 24, 0, 0], legend: { show: false }, cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max((high ?? 0) * 1.08, format === "bytes" ? 1024 : 1)] } },
      axes: [{ ...axis, space: 70, size: 26, values: (_, ticks) => ticks.map((tick) => clock(tick * 1000).slice(0, ticks.length > 1 && ticks[1] - ticks[0] < 60 ? 8 : 5)) }, { ...axis, size: 52, space: 34, values: (_, ticks) => ticks.map((tick) => show(tick)) }],
      series: [{}, ...series.map((one) => ({ label: one.name, stroke: css(one.color), width: 1.6, fill: format === "rate" ? undefined : `${css(one.color)}1c`, points: { show: false }, spanGaps: false }))],
      hooks: { setCursor: [(u) => setHover(u.cursor.idx ?? null)] },
    }, [times, ...series.map((one) => one.values)], box.current);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: box.current?.clientWidth || 300, height }));
    observer.observe(box.current);
    return () => { observer.disconnect(); made.destroy(); plot.current = null; };
  }, [ready, names, format, height, theme.value, systemDark.value]);
  useEffect(() => { plot.current?.setData([times, ...series.map((one) => one.values)]); }, [times, series]);
  const lastOf = (values) => { for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] != null) return values[i]; return null; };
  return html`<figure aria-label=${label}><div class="chart" ref=${box} style=${{ minHeight: `${height}px` }} aria-hidden="true"></div>
    <figcaption class="legend">${series.map((one) => html`<span key=${one.name}><i style=${{ background: `var(${one.color})` }}></i>${one.name} <b>${show(hover != null ? one.values[hover] : lastOf(one.values))}</b></span>`)}${hover != null && times[hover] && html`<span class="muted">${clock(times[hover] * 1000)}</span>`}</figcaption></figure>`;
}

export const RATE_LINES = [["publish", "Published", "--c-publish"], ["deliver_get", "Delivered", "--c-deliver"], ["ack", "Acked", "--c-ack"], ["redeliver", "Redelivered", "--c-redeliver"]];
export const COUNT_LINES = [["messages_ready", "Ready", "--c-ready"], ["messages_unacknowledged", "Unacked", "--c-unacked"]];
const RANGES = [["10m", "10 min"], ["1h", "1 h"], ["24h", "24 h"]];
const SPANS = { "10m": [600, 1], "1h": [3600, 60], "24h": [86400, 60] };

const SHOWN_MIN = 90;

/** Without the time before anything was known, as long as that leaves something to look at. */
function known(data) {
  const lists = Object.values(data.series);
  let first = data.times.findIndex((_, i) => lists.some((list) => list[i] != null));
  if (first < 0) first = data.times.length;
  const cut = Math.max(0, Math.min(first - 2, data.times.length - SHOWN_MIN));
  return cut === 0 ? data : { ...data, times: data.times.slice(cut), series: Object.fromEntries(Object.entries(data.series).map(([name, list]) => [name, list.slice(cut)])) };
}

/** Two charts of a scope's history: rates and lengths. `live` is [seconds, {metric: value}] and is put at the end each second. */
export function History({ scope, live, long = true, className = "s6", step }) {
  const [range, setRange] = useState("10m");
  const [data, setData] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let here = true;
    const load = async () => {
      const [span, fine] = SPANS[range];
      const now = Math.floor(Date.now() / 1000);
      try {
        const found = await get(`history/${scope}?from=${now - span}&to=${now}&step=${range === "10m" ? step ?? fine : fine}`);
        if (here) { setData(known(found)); setProblem(""); }
      } catch (error) {
        if (here) setProblem(error.message);
      }
    };
    setData(null);
    void load();
    const timer = setInterval(() => { if (!document.hidden) void load(); }, range === "10m" ? 30000 : 60000);
    return () => { here = false; clearInterval(timer); };
  }, [scope, range, step]);
  const atEnd = live?.[0];
  useEffect(() => {
    if (!live || range !== "10m") return;
    setData((old) => {
      if (!old || old.times.at(-1) >= live[0]) return old;
      const cut = old.times.length >= 620 ? 1 : 0;
      const series = {};
      for (const name in old.series) series[name] = [...(cut ? old.series[name].slice(1) : old.series[name]), live[1][name] ?? null];
      return { ...old, times: [...(cut ? old.times.slice(1) : old.times), live[0]], series };
    });
  }, [atEnd]);
  const lines = (list) => list.filter(([key]) => data?.series[key]).map(([key, name, color]) => ({ name, color, values: data.series[key] }));
  const rates = useMemo(() => lines(RATE_LINES), [data]);
  const counts = useMemo(() => lines(COUNT_LINES), [data]);
  if (!hasRates()) return html`<div class=${className}><${Card} title="Message rates"><p class="muted">Rates are off on this broker, and nothing is kept to be drawn: <code>management.rates_mode</code> is <code>none</code>, or <code>management_agent.disable_metrics_collector</code> is set.</p><//></div>`;
  const body = (series, format, label) => (data && series.length ? html`<${Chart} times=${data.times} series=${series} format=${format} label=${label} />` : problem ? html`<p class="muted">${problem}</p>` : html`<${Loading} lines=${5} />`);
  const switcher = long && html`<${Segmented} label="Time span" value=${range} onValue=${setRange} options=${RANGES} />`;
  return html`<div class=${className}><${Card} title="Message rates" actions=${switcher}>${body(rates, "rate", "Message rates per second")}<//></div><div class=${className}><${Card} title="Messages">${body(counts, "count", "Messages in queues")}<//></div>`;
}
