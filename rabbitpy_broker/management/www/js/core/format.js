// Numbers, sizes, times and rates as people read them. Times are local; the UTC form goes into a tooltip.
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const int = (value) => (value == null || Number.isNaN(value) ? "–" : whole.format(value));

/** At most five characters: 950, 12.3k, 4.56M. */
export function short(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size < 1e4) return whole.format(value);
  for (const [limit, unit, by] of [[1e6, "k", 1e3], [1e9, "M", 1e6], [1e12, "G", 1e9], [Infinity, "T", 1e12]]) {
    if (size < limit) return `${(value / by).toPrecision(3).replace(/\.0+$/, "")}${unit}`;
  }
  return "∞";
}

// A broker without rates shows none, which is not the same as rates of 0.
let rated = true;
export const hasRates = () => rated;
export const showRates = (on) => { rated = on; };

/** A change per second that the broker has found. */
export const rate = (value) => (rated ? decimal(value) : "–");

export function decimal(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) < 10) return value.toFixed(1).replace(/\.0$/, "");
  return short(Math.round(value));
}

export function bytes(value) {
  if (value == null || value === "" || Number.isNaN(value)) return "–";
  let unit = 0;
  let size = Number(value);
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size : size.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  const s = Math.max(0, Math.floor(seconds));
  if (seconds > 0 && seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${s % 3600 >= 60 ? `${Math.floor((s % 3600) / 60)} min` : ""}`.trim();
  return `${Math.floor(s / 86400)} d ${s % 86400 >= 3600 ? `${Math.floor((s % 86400) / 3600)} h` : ""}`.trim();
}

/** A Date of milliseconds, seconds, or the text of a time; null when it is none. */
export function date(value) {
  if (value == null || value === "") return null;
  const made = typeof value === "number" ? new Date(value < 1e11 ? value * 1000 : value) : new Date(value);
  return Number.isNaN(made.getTime()) ? null : made;
}

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dayFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
export const clock = (value) => { const made = date(value); return made ? clockFormat.format(made) : "–"; };
export function when(value) {
  const made = date(value);
  if (!made) return "–";
  return made.toDateString() === new Date().toDateString() ? clockFormat.format(made) : dayFormat.format(made);
}
export const utc = (value) => { const made = date(value); return made ? made.toISOString() : ""; };
export function ago(value) {
  const made = date(value);
  if (!made) return "–";
  const seconds = (Date.now() - made.getTime()) / 1000;
  if (seconds < 1.5) return "now";
  return seconds < 0 ? when(made) : `${duration(seconds < 120 ? seconds : seconds < 7200 ? Math.floor(seconds / 60) * 60 : seconds)} ago`;
}
export const plural = (count, one, many = `${one}s`) => `${int(count)} ${count === 1 ? one : many}`;
export const percent = (part, whole_) => (whole_ ? `${((100 * part) / whole_).toFixed(part / whole_ < 0.1 ? 1 : 0)} %` : "–");
export const exchangeLabel = (name) => (name === "" || name == null ? "(default)" : name);

export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function csv(columns, rows) {
  const cell = (value) => {
    const text = value == null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    // A sheet must not take a name for a formula.
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\r\n");
}
