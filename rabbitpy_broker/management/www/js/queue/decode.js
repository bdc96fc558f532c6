// What a body may mean: JSON, text, MessagePack, CBOR, gzip and deflate, Celery's messages. Everything is bounded: a body that
// unpacks to more than UNPACKED_MAX bytes or nests deeper than DEPTH_MAX is shown as it is.
const UNPACKED_MAX = 4 << 20;
const DEPTH_MAX = 100;
const ITEMS_MAX = 50000;

export function bytesOf(message) {
  if (message.payload_encoding === "base64") {
    const text = atob(message.payload);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
    return bytes;
  }
  return new TextEncoder().encode(message.payload ?? "");
}

export function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null; // not UTF-8: there is no text to show
  }
}

export function jsonOf(text) {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return null; // no JSON: shown as text
  }
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.items = 0;
  }

  need(count) {
    if (this.at + count > this.bytes.length) throw new RangeError("ends early");
    const at = this.at;
    this.at += count;
    return at;
  }

  take(count) {
    const at = this.need(count);
    return this.bytes.subarray(at, at + count);
  }

  u8() { return this.bytes[this.need(1)]; }
  u16() { return this.view.getUint16(this.need(2)); }
  u32() { return this.view.getUint32(this.need(4)); }
  u64() { return small(this.view.getBigUint64(this.need(8))); }
  i64() { return small(this.view.getBigInt64(this.need(8))); }

  text(count) { return new TextDecoder("utf-8", { fatal: true }).decode(this.take(count)); }

  many(count, depth, one) {
    if (depth > DEPTH_MAX || (this.items += count) > ITEMS_MAX || count > this.bytes.length) throw new RangeError("too much");
    const list = [];
    for (let i = 0; i < count; i += 1) list.push(one());
    return list;
  }
}

const small = (value) => (value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : `${value}`);
const hexOf = (bytes) => Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
const binary = (bytes) => `<${bytes.length} bytes: ${hexOf(bytes.subarray(0, 24))}${bytes.length > 24 ? "…" : ""}>`;
const mapOf = (pairs) => Object.fromEntries(pairs.map(([key, value]) => [typeof key === "object" ? JSON.stringify(key) : String(key), value]));

function msgpackValue(r, depth = 0) {
  const tag = r.u8();
  const list = (count) => r.many(count, depth, () => msgpackValue(r, depth + 1));
  const map = (count) => mapOf(r.many(count, depth, () => [msgpackValue(r, depth + 1), msgpackValue(r, depth + 1)]));
  const extension = (count) => { const kind = r.view.getInt8(r.need(1)); return `<extension ${kind}: ${binary(r.take(count)).slice(1)}`; };
  if (tag < 0x80) return tag;
  if (tag < 0x90) return map(tag & 15);
  if (tag < 0xa0) return list(tag & 15);
  if (tag < 0xc0) return r.text(tag & 31);
  if (tag >= 0xe0) return tag - 256;
  switch (tag) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: return binary(r.take(r.u8()));
    case 0xc5: return binary(r.take(r.u16()));
    case 0xc6: return binary(r.take(r.u32()));
    case 0xc7: return extension(r.u8());
    case 0xc8: return extension(r.u16());
    case 0xc9: return extension(r.u32());
    case 0xca: return r.view.getFloat32(r.need(4));
    case 0xcb: return r.view.getFloat64(r.need(8));
    case 0xcc: return r.u8();
    case 0xcd: return r.u16();
    case 0xce: return r.u32();
    case 0xcf: return r.u64();
    case 0xd0: return r.view.getInt8(r.need(1));
    case 0xd1: return r.view.getInt16(r.need(2));
    case 0xd2: return r.view.getInt32(r.need(4));
    case 0xd3: return r.i64();
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return extension(1 << (tag - 0xd4));
    case 0xd9: return r.text(r.u8());
    case 0xda: return r.text(r.u16());
    case 0xdb: return r.text(r.u32());
    case 0xdc: return list(r.u16());
    case 0xdd: return list(r.u32());
    case 0xde: return map(r.u16());
    case 0xdf: return map(r.u32());
    default: throw new RangeError("no MessagePack");
  }
}

function cborFloat16(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

function cborValue(r, depth = 0) {
  const first = r.u8();
  const major = first >> 5;
  const info = first & 31;
  if (depth > DEPTH_MAX) throw new RangeError("too deep");
  if (major === 7) {
    const plain = { 20: false, 21: true, 22: null, 23: null };
    if (info in plain) return plain[info];
    if (info === 25) return cborFloat16(r.u16());
    if (info === 26) return r.view.getFloat32(r.need(4));
    if (info === 27) return r.view.getFloat64(r.need(8));
    throw new RangeError("no CBOR");
  }
  const endless = info === 31;
  const count = endless ? 0 : info < 24 ? info : info === 24 ? r.u8() : info === 25 ? r.u16() : info === 26 ? r.u32() : info === 27 ? r.u64() : NaN;
  if (Number.isNaN(count) || (endless && (major < 2 || major === 6))) throw new RangeError("no CBOR");
  const until = (one) => { const list = []; while (r.bytes[r.at] !== 0xff) { if ((r.items += 1) > ITEMS_MAX) throw new RangeError("too much"); list.push(one()); } r.u8(); return list; };
  const several = (one) => (endless ? until(one) : r.many(count, depth, one));
  switch (major) {
    case 0: return count;
    case 1: return typeof count === "number" ? -1 - count : `-${count}`;
    case 2: return endless ? until(() => cborValue(r, depth + 1)).join("") : binary(r.take(count));
    case 3: return endless ? until(() => cborValue(r, depth + 1)).join("") : r.text(count);
    case 4: return several(() => cborValue(r, depth + 1));
    case 5: return mapOf(several(() => [cborValue(r, depth + 1), cborValue(r, depth + 1)]));
    default: return cborValue(r, depth + 1); // a tag says how to read what follows; it is shown as it is
  }
}

function whole(bytes, read) {
  const reader = new Reader(bytes);
  try {
    const value = read(reader);
    return reader.at === bytes.length ? { value } : null;
  } catch (error) {
    if (error instanceof RangeError || error instanceof TypeError) return null; // the bytes are something else
    throw error;
  }
}
export const msgpackOf = (bytes) => whole(bytes, msgpackValue);
export const cborOf = (bytes) => whole(bytes, cborValue);

/** Unpacks with a bound; null when it is not packed so, or unpacks to too much. */
export async function unpack(bytes, format) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format));
  const reader = stream.getReader();
  const parts = [];
  let size = 0;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > UNPACKED_MAX) { await reader.cancel(); return null; }
      parts.push(value);
    }
  } catch {
    return null; // the bytes are not packed in this way
  }
  const all = new Uint8Array(size);
  let at = 0;
  for (const part of parts) { all.set(part, at); at += part.length; }
  return all;
}

const BASE64 = /^[A-Za-z0-9+/\s]+={0,2}\s*$/;
function fromBase64(text) {
  if (!BASE64.test(text) || text.trim().length < 4) return null;
  try {
    return Uint8Array.from(atob(text.trim()), (one) => one.charCodeAt(0));
  } catch {
    return null; // letters of base64 in a number that base64 does not have
  }
}

function structured(bytes, type) {
  const text = textOf(bytes);
  if (text !== null) {
    const json = /^\s*[[{"\-\dtfn]/.test(text) ? jsonOf(text) : null;
    if (json && (typeof json.value === "object" || /json/.test(type))) return { kind: "JSON", value: json.value };
  }
  if (/msgpack|messagepack/.test(type)) { const found = msgpackOf(bytes); if (found) return { kind: "MessagePack", value: found.value }; }
  if (/cbor/.test(type)) { const found = cborOf(bytes); if (found) return { kind: "CBOR", value: found.value }; }
  if (text === null && bytes.length > 1) {
    for (const [kind, read] of [["MessagePack", msgpackOf], ["CBOR", cborOf]]) { const found = read(bytes); if (found && found.value !== null && typeof found.value === "object") return { kind, value: found.value }; }
  }
  return null;
}

/**
 * All that can be made of a message: {steps, bytes, text, value?, kind?, celery?}. `steps` says how it was reached: ["gzip", "JSON"].
 */
export async function decode(message) {
  const properties = message.properties ?? {};
  const type = String(properties.content_type ?? "").toLowerCase();
  const encoding = String(properties.content_encoding ?? "").toLowerCase();
  const headers = properties.headers ?? {};
  const steps = [];
  let bytes = bytesOf(message);
  if (!message.truncated) {
    const packed = /gzip/.test(encoding) || (bytes[0] === 0x1f && bytes[1] === 0x8b) ? "gzip" : /deflate|zlib/.test(encoding) || (bytes[0] === 0x78 && [0x01, 0x9c, 0xda].includes(bytes[1])) ? "deflate" : null;
    const opened = packed && await unpack(bytes, packed);
    if (opened) { bytes = opened; steps.push(packed); }
  }
  const celery = "task" in headers && "id" in headers;
  const bodyEncoding = properties.body_encoding ?? (celery && /base64/.test(encoding) ? "base64" : null);
  let found = structured(bytes, type);
  if (celery && (!found || typeof found.value === "string" || bodyEncoding)) {
    const inner = fromBase64(typeof found?.value === "string" ? found.value : textOf(bytes) ?? "");
    const again = inner && structured(inner, type);
    if (again) { bytes = inner; found = again; steps.push("base64"); }
  }
  // The shape of kombu's transports: {"body": base64, "content-encoding", "headers", "properties": {"body_encoding": "base64"}}
  if (found?.value?.properties?.body_encoding === "base64" && typeof found.value.body === "string") {
    const inner = fromBase64(found.value.body);
    const again = inner && structured(inner, String(found.value["content-type"] ?? ""));
    if (again) found = { kind: `${again.kind} in kombu's envelope`, value: { ...found.value, body: again.value } };
  }
  const call = celery && Array.isArray(found?.value) && found.value.length === 3 ? { args: found.value[0], kwargs: found.value[1], embed: found.value[2] } : null;
  if (found) steps.push(found.kind);
  return { steps, bytes, text: textOf(bytes), value: found?.value, kind: found?.kind, celery: celery ? { task: headers.task, id: headers.id, retries: headers.retries, eta: headers.eta, origin: headers.origin, root: headers.root_id, call } : null };
}

/** Rows of a hex view: address, hex, letters. */
export function hexLines(bytes, most = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, most); at += 16) {
    const part = bytes.subarray(at, Math.min(at + 16, most));
    const hex = Array.from(part, (one) => one.toString(16).padStart(2, "0")).join(" ");
    const letters = Array.from(part, (one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${letters}`);
  }
  if (bytes.length > most) lines.push(`… ${bytes.length - most} bytes more`);
  return lines.join("\n");
}
