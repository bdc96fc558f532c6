// The filter language of the tables: words, `field:text`, `field~regex`, `field=value`, `field>number`, each with `-` for "not".
//   orders vhost:/ type=quorum messages>1k consumers=0 -name~^amq
// `compile` turns a text into a test on a row; what it does not understand it says, and takes the rest.
const TERM = /(-)?(?:([a-z_][\w.]*)(>=|<=|!=|:|~|=|>|<))?("(?:[^"\\]|\\.)*"|\S*)/giy;
const SUFFIX = { k: 1e3, m: 1e6, g: 1e9, kib: 1024, mib: 1048576, gib: 1073741824, kb: 1e3, mb: 1e6, gb: 1e9 };

function number(text) {
  const found = /^(-?\d+(?:\.\d+)?)([a-z]*)$/i.exec(text);
  if (!found) return NaN;
  return Number(found[1]) * (found[2] ? SUFFIX[found[2].toLowerCase()] ?? NaN : 1);
}

const textOf = (value) => (value == null ? "" : value === true ? "yes" : value === false ? "no" : typeof value === "object" ? JSON.stringify(value) : String(value));

function comparison(read, operator, text, problems) {
  if (operator === "~") {
    try {
      const pattern = new RegExp(text.slice(0, 256), "i");
      return (row) => pattern.test(textOf(read(row)));
    } catch {
      problems.push(`“${text}” is no regular expression`);
      return null;
    }
  }
  if (operator === ":") {
    const wanted = text.toLowerCase();
    return (row) => textOf(read(row)).toLowerCase().includes(wanted);
  }
  const limit = number(text);
  if (operator === "=" || operator === "!=") {
    const same = operator === "=";
    const wanted = text.toLowerCase();
    const alias = wanted === "true" ? "yes" : wanted === "false" ? "no" : wanted;
    return (row) => {
      const value = read(row);
      const equal = typeof value === "number" ? value === limit : value == null && limit === 0 ? true : textOf(value).toLowerCase() === alias;
      return equal === same;
    };
  }
  if (Number.isNaN(limit)) {
    problems.push(`“${text}” is no number`);
    return null;
  }
  switch (operator) {
    case ">": return (row) => (read(row) ?? 0) > limit;
    case "<": return (row) => (read(row) ?? 0) < limit;
    case ">=": return (row) => (read(row) ?? 0) >= limit;
    default: return (row) => (read(row) ?? 0) <= limit;
  }
}

/**
 * @param {string} text
 * @param {(field: string) => ((row: any[]) => any) | null} reader how a field of a row is read; null when there is none
 * @param {(row: any[]) => string} words the lower-case text in which plain words are looked for
 */
export function compile(text, reader, words) {
  const tests = [];
  const problems = [];
  TERM.lastIndex = 0;
  for (const part of text.trim().match(/-?[^\s"]*"(?:[^"\\]|\\.)*"|\S+/g) ?? []) {
    TERM.lastIndex = 0;
    const [, minus, field, operator, raw] = TERM.exec(part) ?? [];
    const value = raw?.startsWith('"') ? raw.slice(1, raw.endsWith('"') && raw.length > 1 ? -1 : undefined).replace(/\\(.)/g, "$1") : raw ?? "";
    let test = null;
    const read = field && reader(field.toLowerCase());
    if (field && !read) {
      if (operator === ":" || operator === "~") {
        const plain = part.replace(/^-/, "").toLowerCase();
        test = (row) => words(row).includes(plain);
      } else problems.push(`no column “${field}”`);
    } else if (field) {
      if (value === "") continue; // still being typed
      test = comparison(read, operator, value, problems);
    } else if (value !== "") {
      const plain = value.toLowerCase();
      test = (row) => words(row).includes(plain);
    }
    if (test) tests.push(minus ? (row) => !test(row) : test);
  }
  return { problems, empty: tests.length === 0, test: (row) => { for (const one of tests) if (!one(row)) return false; return true; } };
}
