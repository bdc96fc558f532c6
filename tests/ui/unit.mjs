// What needs no browser: the decoders, the filter language, the order of rows, formats.
import { readFileSync } from "node:fs";
import { deflateSync, gzipSync } from "node:zlib";

const settings = JSON.parse(process.env.UI_TEST);
// The modules that import nothing; as data, so that no version of node asks what kind of module a .js is.
const load = (name) => import(`data:text/javascript;base64,${readFileSync(`${settings.www}/js/${name}`).toString("base64")}`);
const { decode, hexLines, msgpackOf, cborOf, unpack } = await load("queue/decode.js");
const { compile } = await load("core/filter.js");
const format = await load("core/format.js");

const same = (got, wanted) => { if (JSON.stringify(got) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(got)} is not ${JSON.stringify(wanted)}`); };
const message = (bytes, properties = {}) => ({ payload: Buffer.from(bytes).toString("base64"), payload_encoding: "base64", payload_bytes: bytes.length, properties });
const hex = (text) => Uint8Array.from(Buffer.from(text, "hex"));

const FIELDS = ["name", "vhost", "messages", "durable", "arguments"];
const ROWS = [["orders.eu", "/", 12, true, {}], ["orders.us", "/", 0, true, { "x-max-priority": 3 }], ["mail", "shop", 25000, false, {}], ["a b", "/", null, true, {}]];
function passing(text) {
  const reader = (field) => { const at = FIELDS.indexOf(field); return at < 0 ? null : (row) => row[at]; };
  const { test, problems } = compile(text, reader, (row) => `${row[0]}\u0001${row[1]}`.toLowerCase());
  return { names: ROWS.filter(test).map((row) => row[0]), problems };
}

const cases = {
  async json() { const made = await decode({ payload: '{"a": [1, null]}', payload_encoding: "string", properties: {} }); same([made.kind, made.value], ["JSON", { a: [1, null] }]); },
  async text() { const made = await decode({ payload: "hello", payload_encoding: "string", properties: {} }); same([made.kind, made.text], [undefined, "hello"]); },
  async "bytes that are nothing"() { const made = await decode(message(hex("fffefd00c1"))); same([made.kind, made.text], [undefined, null]); },
  async gzip() { const made = await decode(message(gzipSync('{"a":1}'), { content_encoding: "gzip" })); same([made.steps, made.value], [["gzip", "JSON"], { a: 1 }]); },
  async deflate() { const made = await decode(message(deflateSync('{"a":1}'), { content_encoding: "deflate" })); same(made.value, { a: 1 }); },
  async "what unpacks to too much is left packed"() { same(await unpack(gzipSync(Buffer.alloc(8 << 20)), "gzip"), null); },
  async "a name that lies"() { const made = await decode({ payload: "no gzip", payload_encoding: "string", properties: { content_encoding: "gzip" } }); same(made.text, "no gzip"); },
  async msgpack() { const made = await decode(message(Buffer.from("\x82\xa4name\xa3Ada\xa5count\x07", "latin1"))); same([made.kind, made.value], ["MessagePack", { name: "Ada", count: 7 }]); },
  "msgpack of all kinds"() {
    same(msgpackOf(hex("9c" + "c0" + "c2" + "c3" + "ff" + "d1fc18" + "ce00010000" + "cb3ff8000000000000" + "d90161" + "c403010203" + "81a16101" + "cfffffffffffffffff" + "d6ff00000001")).value,
      [null, false, true, -1, -1000, 65536, 1.5, "a", "<3 bytes: 010203>", { a: 1 }, "18446744073709551615", "<extension -1: 4 bytes: 00000001>"]);
  },
  "msgpack that ends early or goes on"() { same([msgpackOf(hex("93c0")), msgpackOf(hex("c0c0")), msgpackOf(hex("dfffffffff"))], [null, null, null]); },
  cbor() { same(cborOf(hex("a3616101616282f5f6616320")).value, { a: 1, b: [true, null], c: -1 }); same(cborOf(hex("9f01ff")).value, [1]); same(cborOf(hex("f93e00")).value, 1.5); same(cborOf(hex("c11a5f5e1000")).value, 1600000000); },
  "cbor that is none"() { same([cborOf(hex("1c")), cborOf(hex("9f01"))], [null, null]); },
  async celery() {
    const made = await decode({ payload: Buffer.from('[[1, 2], {"x": 3}, {}]').toString("base64"), payload_encoding: "string", properties: { content_type: "application/json", content_encoding: "base64", headers: { task: "app.add", id: "b1" } } });
    same([made.celery.task, made.celery.call.args, made.celery.call.kwargs], ["app.add", [1, 2], { x: 3 }]);
  },
  async "kombu's envelope"() {
    const made = await decode({ payload: JSON.stringify({ body: Buffer.from('[[1], {}, {}]').toString("base64"), "content-type": "application/json", properties: { body_encoding: "base64" } }), payload_encoding: "string", properties: {} });
    same(made.value.body, [[1], {}, {}]);
  },
  hex() { same(hexLines(hex("4142ff"), 2).split("\n").map((one) => one.trim()), ["000000  41 42                                            AB", "… 1 bytes more"]); },
  "words of a filter"() { same(passing("orders").names, ["orders.eu", "orders.us"]); same(passing("orders -us").names, ["orders.eu"]); same(passing('"a b"').names, ["a b"]); },
  "fields of a filter"() { same(passing("messages>10").names, ["orders.eu", "mail"]); same(passing("messages>20k").names, ["mail"]); same(passing("messages=0").names, ["orders.us", "a b"]); same(passing("name~^orders vhost:/ messages<5").names, ["orders.us"]); same(passing("durable=no").names, ["mail"]); same(passing("arguments:priority").names, ["orders.us"]); same(passing("-vhost=/").names, ["mail"]); },
  "what a filter does not understand"() { same(passing("nothing>3").problems, ["no column “nothing”"]); same(passing("name~[").problems.length, 1); same(passing("messages>many").problems.length, 1); same(passing("messages>").names.length, 4); },
  "numbers are short"() { same([0, 950, 12345, 4560000, null].map(format.short), ["0", "950", "12.3k", "4.56M", "–"]); same([0, 0.25, 3, 15000].map(format.rate), ["0", "0.3", "3", "15k"]); same([0, 1023, 1048576].map(format.bytes), ["0 B", "1023 B", "1.00 MiB"]); },
  "a sheet takes no name for a formula"() { same(format.csv(["name"], [["=1+1"], ['a"b,c']]), "name\r\n'=1+1\r\n\"a\"\"b,c\""); },
};
const verdict = {};
for (const [name, one] of Object.entries(cases)) {
  try { await one(); verdict[name] = "ok"; } catch (error) { verdict[name] = String(error.stack ?? error); }
}
console.log(JSON.stringify(verdict));
