// One table for every long list: it holds all rows, draws only those in sight, and sorts and filters them here.
// Rows have one height. Values change in place each second; the order changes only while nobody points at a row or walks through
// them with the keyboard, so that what one is about to click stays where it is. Filter, order and columns are in the address.
import { html, useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback } from "../core/html.js";
import { compile } from "../core/filter.js";
import { int, download, csv } from "../core/format.js";
import { route, setQuery, go } from "../core/router.js";
import { tableState } from "../core/prefs.js";
import { bindKeys } from "../core/keys.js";
import { ViewsMenu } from "./views.js";
import { Button, Icon, Menu, Empty, Loading, Note, cls } from "./bits.js";

const ROW = 34;
const HEAD = 33;
const SPARE = 6;
const RESORT_MS = 2000;

const lower = (value) => (value == null ? "" : typeof value === "string" ? value.toLowerCase() : String(value));

/** What plain words are looked for in: all texts of a row, kept beside it. */
function wordsOf(table) {
  const texts = [];
  return (row) => {
    if (row.words === undefined) {
      texts.length = 0;
      for (const value of row) if (typeof value === "string") texts.push(value);
      row.words = texts.join("\u0001").toLowerCase();
    }
    return row.words;
  };
}

const parseSort = (text) => (text ? text.split(",").map((one) => (one.startsWith("-") ? { id: one.slice(1), down: true } : { id: one, down: false })) : []);
const sortText = (sort) => sort.map((one) => (one.down ? "-" : "") + one.id).join(",");

/** The rows in order. Values are read once for each row, then only numbers and ranks are compared. */
export function sorted(rows, keys) {
  if (!keys.length) return rows;
  const count = rows.length;
  const order = new Uint32Array(count);
  for (let i = 0; i < count; i += 1) order[i] = i;
  const columns = keys.map(({ read, down, numeric }) => {
    if (numeric) {
      const values = new Float64Array(count);
      for (let i = 0; i < count; i += 1) { const value = read(rows[i]); values[i] = value == null ? -Infinity : Number(value); }
      return { values, sign: down ? -1 : 1 };
    }
    return { values: rows.map((row) => lower(read(row))), sign: down ? -1 : 1 };
  });
  if (columns.length === 1) {
    const { values, sign } = columns[0];
    order.sort((a, b) => (values[a] < values[b] ? -sign : values[a] > values[b] ? sign : a - b));
  } else {
    order.sort((a, b) => {
      for (const { values, sign } of columns) {
        if (values[a] < values[b]) return -sign;
        if (values[a] > values[b]) return sign;
      }
      return a - b;
    });
  }
  const result = new Array(count);
  for (let i = 0; i < count; i += 1) result[i] = rows[order[i]];
  return result;
}

function timed(name, work) {
  const start = performance.now();
  const result = work();
  performance.clearMeasures(name); // only the last one is of interest, and all that are not cleared are kept
  performance.measure(name, { start, end: performance.now() });
  return result;
}

/** The columns that fit, the important ones first; a column that the user chose is always there. */
function fitting(columns, chosen, width) {
  const wanted = columns.filter((column) => (chosen ? chosen.includes(column.id) : !column.off));
  if (chosen && width > 640) return wanted;
  let left = width;
  const kept = new Set();
  for (const column of [...wanted].sort((a, b) => (a.prio ?? 5) - (b.prio ?? 5))) {
    const need = column.width ?? 90;
    if (kept.size > 1 && need > left) break;
    kept.add(column.id);
    left -= need;
  }
  return wanted.filter((column) => kept.has(column.id));
}

function FilterBox({ value, onValue, placeholder, problems, fields }) {
  const box = useRef();
  useEffect(() => bindKeys({ "/": { what: "Filter the table", run: () => { box.current?.focus(); box.current?.select(); } } }), []);
  return html`<div class="search"><${Icon} name="search" /><input ref=${box} class="input" type="search" value=${value} placeholder=${placeholder} aria-label="Filter" aria-invalid=${problems.length ? "true" : undefined}
    title=${problems.length ? problems.join("; ") : `Words, field:text, field~regex, field>number, - for not. Fields: ${fields}`} spellcheck=${false} autocomplete="off"
    onInput=${(event) => onValue(event.currentTarget.value)} onKeyDown=${(event) => { if (event.key === "Escape") { if (value) onValue(""); else event.currentTarget.blur(); event.stopPropagation(); } if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); document.querySelector(".vscroll")?.focus(); } }} />${!value && html`<kbd class="hide-narrow">/</kbd>`}</div>`;
}

/**
 * @param {object} p
 * @param {Table} p.table
 * @param {object[]} p.columns {id, title, field?, width, grow?, num?, prio?, off?, read?, render?(value,row,table), sortable?, hint?, ifTold?: only where the broker tells it}
 * @param {(row: any[]) => string} [p.href] where Enter and a click lead
 * @param {(row: any[]) => void} [p.onOpen] what they do instead
 * @param {string} p.noun "queue"
 * @param {string} p.sort the order when the address has none
 */
export function DataTable({ table, columns: given, href, onOpen, noun, nouns = `${noun}s`, sort: firstSort = "", toolbar, empty, prefilter, actionsFor, selection, state = "", tall }) {
  const { query } = route.value;
  const qKey = `${state}q`;
  const sKey = `${state}sort`;
  const cKey = `${state}cols`;
  const filter = query[qKey] ?? "";
  const sort = useMemo(() => parseSort(query[sKey] ?? firstSort), [query[sKey], firstSort]);
  const scroller = useRef();
  const [width, setWidth] = useState(0);
  const [height, setHeight] = useState(400);
  const [top, setTop] = useState(0);
  const [cursor, setCursor] = useState(-1);
  const pointed = useRef(false);
  const lastSort = useRef({ at: 0, rows: [], id: "" });
  const columns = useMemo(() => given.filter((one) => !one.ifTold || table.at[one.id] !== undefined), [given, table, table.columns]);
  const remembered = tableState(table.kind); // the columns; those of the address go before
  const chosen = query[cKey] ? query[cKey].split(",") : remembered.value;
  const choose = (ids) => { if (query[cKey]) setQuery({ [cKey]: ids?.join(",") ?? "" }); else remembered.value = ids; };
  const version = table.version.value;

  const reader = useCallback((field) => {
    const column = columns.find((one) => one.id === field);
    if (column?.read) return (row) => column.read(row, table);
    return table.reader(column?.field ?? field) ?? null;
  }, [table, columns, table.columns]);

  const test = useMemo(() => compile(filter, (field) => reader(field) ?? (table.columns.length ? null : () => null), wordsOf(table)), [filter, reader, table, table.columns]);

  const rows = useMemo(() => {
    const id = `${filter}|${sortText(sort)}|${table.kind}|${prefilter?.id ?? ""}`;
    const same = lastSort.current.id === id && lastSort.current.table === table;
    const now = performance.now();
    if (same && table.rows.length === lastSort.current.total && (pointed.current || cursor >= 0 || now - lastSort.current.at < RESORT_MS)) return lastSort.current.rows;
    const passed = timed("table:filter", () => {
      let found = table.rows;
      if (prefilter?.test) found = found.filter(prefilter.test);
      return test.empty ? found : found.filter(test.test);
    });
    const keys = sort.map((one) => { const column = columns.find((candidate) => candidate.id === one.id); const read = reader(one.id); return read && { read, down: one.down, numeric: column?.num && !column.textual }; }).filter(Boolean);
    const result = timed("table:sort", () => sorted(passed, keys));
    lastSort.current = { id, table, rows: result, at: now, total: table.rows.length };
    return result;
  }, [version, filter, sort, table, test, prefilter?.id]);

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const measure = () => { setWidth(element.clientWidth); setHeight(element.clientHeight); };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => { setCursor(-1); if (scroller.current) scroller.current.scrollTop = 0; }, [filter, query[sKey]]);

  const shown = useMemo(() => fitting(columns, chosen, (width || 900) - (selection ? 34 : 0) - (actionsFor ? 44 : 0)), [columns, chosen?.join(), width, Boolean(selection)]);
  const isVhostHidden = table.at.vhost !== undefined && !prefilter?.id && !shown.some((column) => column.id === "vhost");
  const template = (selection ? "34px " : "") + shown.map((column) => (column.grow ? `minmax(${column.width ?? 120}px, ${column.grow}fr)` : `${column.width ?? 90}px`)).join(" ") + (actionsFor ? " 44px" : "");
  const first = Math.max(0, Math.floor((top - HEAD) / ROW) - SPARE);
  const last = Math.min(rows.length, Math.ceil((top + height) / ROW) + SPARE);

  const open = (row, event) => {
    if (onOpen) onOpen(row);
    else if (href) { if (event && (event.ctrlKey || event.metaKey)) window.open(href(row)); else go(href(row).slice(1)); }
  };
  const move = (to) => {
    const at = Math.max(0, Math.min(rows.length - 1, to));
    setCursor(at);
    const element = scroller.current;
    if (!element || !rows.length) return;
    const y = at * ROW;
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + ROW > element.scrollTop + element.clientHeight - HEAD) element.scrollTop = y + ROW - element.clientHeight + HEAD;
  };
  const page = Math.max(1, Math.floor((height - HEAD) / ROW) - 1);
  // A row that is as it was keeps its element, which is then not looked at again: scrolling makes the rows that come into sight.
  const made = useRef({ basis: [], rows: new Map() });
  const basis = [version, shown, template, table, reader, href, isVhostHidden, selection?.chosen];
  if (basis.some((one, i) => one !== made.current.basis[i])) made.current = { basis, rows: new Map() };
  const elements = new Map();
  for (let at = first; at < last; at += 1) {
    const row = rows[at];
    const before = made.current.rows.get(row);
    elements.set(row, before && before.at === at && before.cursor === (cursor === at) ? before : { at, cursor: cursor === at, element: html`<${Row} key=${row.key} row=${row} at=${at} columns=${shown} template=${template} table=${table} reader=${reader} cursor=${cursor === at} selected=${selection?.has(row)} selection=${selection} open=${href || onOpen ? (...given) => latest.current.open(...given) : null} href=${href} actionsFor=${actionsFor} vhostOf=${isVhostHidden && reader("vhost")} />` });
  }
  made.current.rows = elements;
  const latest = useRef();
  latest.current = { move, cursor, rows, open };
  useEffect(() => bindKeys({
    j: { what: "Next row", run: () => latest.current.move(latest.current.cursor + 1) },
    k: { what: "Previous row", run: () => latest.current.move(latest.current.cursor - 1) },
    Enter: { what: "Open the row", run: () => { const row = latest.current.rows[latest.current.cursor]; if (row && (href || onOpen)) latest.current.open(row); return Boolean(row); } },
  }), []);
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined && event.target === scroller.current) { event.preventDefault(); move(step === Infinity ? rows.length - 1 : step === -Infinity ? 0 : cursor + step); }
    if (event.key === " " && selection && cursor >= 0 && event.target === scroller.current) { event.preventDefault(); selection.toggle(rows[cursor]); }
  };
  const sortBy = (column, event) => {
    const current = sort.find((one) => one.id === column.id);
    const next = { id: column.id, down: current ? !current.down : Boolean(column.num) };
    const others = event.shiftKey ? sort.filter((one) => one.id !== column.id) : [];
    setQuery({ [sKey]: sortText([...others, next]) });
  };
  const fields = columns.map((column) => column.id).join(", ");
  const exportAs = (kind) => {
    const list = columns.filter((column) => column.id !== "actions");
    const values = rows.map((row) => list.map((column) => reader(column.id)?.(row) ?? null));
    if (kind === "csv") download(`${nouns}.csv`, csv(list.map((column) => column.id), values), "text/csv");
    else download(`${nouns}.json`, JSON.stringify(values.map((one) => Object.fromEntries(list.map((column, i) => [column.id, one[i]]))), null, 1));
  };
  const waiting = !table.complete.value && !table.rows.length;

  return html`
    <div class="toolbar">
      <${FilterBox} value=${filter} onValue=${(text) => setQuery({ [qKey]: text })} problems=${test.problems} fields=${fields} placeholder=${`Filter ${nouns}`} />
      ${toolbar}
      <${ViewsMenu} kind=${table.kind} keys=${{ q: qKey, sort: sKey, cols: cKey }} />
      <${Menu} icon="columns" label="Columns and export">${() => html`<div class="k">Columns</div>
        ${columns.filter((column) => column.title).map((column) => html`<label><input type="checkbox" checked=${shown.some((one) => one.id === column.id)} onChange=${(event) => {
          const before = chosen ?? columns.filter((one) => !one.off).map((one) => one.id);
          choose(event.currentTarget.checked ? [...before, column.id] : before.filter((one) => one !== column.id));
        }} />${column.title}</label>`)}
        <button type="button" onClick=${() => { remembered.value = null; choose(null); }}>As many as fit</button><hr />
        <button type="button" onClick=${() => exportAs("csv")}><${Icon} name="download" />Save as CSV</button>
        <button type="button" onClick=${() => exportAs("json")}><${Icon} name="download" />Save as JSON</button>`}<//>
    </div>
    ${table.problem.value && html`<div class="toolbar"><div class="grow"><${Note} kind="bad">${table.problem.value}<//></div></div>`}
    <div class="vtable" style=${tall ? { minHeight: `${tall}px`, height: `${tall}px` } : undefined}>
      <div class="vscroll" ref=${scroller} tabindex="0" role="table" aria-label=${nouns} aria-rowcount=${rows.length + 1} aria-colcount=${shown.length} onKeyDown=${onKey}
        onScroll=${(event) => setTop(Math.floor(event.currentTarget.scrollTop / ROW) * ROW)} onPointerEnter=${() => { pointed.current = true; }} onPointerLeave=${() => { pointed.current = false; }} onBlur=${(event) => { if (!event.currentTarget.contains(event.relatedTarget)) setCursor(-1); }}>
        <div class="vhead" role="rowgroup"><div class="vrow" role="row" aria-rowindex="1" style=${{ gridTemplateColumns: template }}>
          ${selection && html`<div class="vcell" role="columnheader"><span class="sr">Selected</span></div>`}
          ${shown.map((column) => { const by = sort.find((one) => one.id === column.id); return html`<div class=${cls("vcell", column.num && "num")} role="columnheader" key=${column.id} aria-sort=${by ? (by.down ? "descending" : "ascending") : undefined}>
            <button type="button" onClick=${(event) => sortBy(column, event)} title=${column.hint ?? `${column.title}: sort (with shift: then by this)`}><span class="ellipsis">${column.title}</span>${by && html`<${Icon} name=${by.down ? "down" : "up"} />`}</button></div>`; })}
          ${actionsFor && html`<div class="vcell" role="columnheader"><span class="sr">Actions</span></div>`}</div></div>
        <div class="vbody" role="rowgroup" style=${{ height: `${rows.length * ROW}px` }}>
          ${[...elements.values()].map((one) => one.element)}
        </div>
        ${waiting && html`<div class="empty"><${Loading} lines=${6} /></div>`}
        ${!waiting && rows.length === 0 && (filter || (prefilter && table.rows.length) ? html`<${Empty} icon="search" title=${`No ${noun} matches`}>${filter && html`<a href="#" onClick=${(event) => { event.preventDefault(); setQuery({ [qKey]: "" }); }}>Clear the filter</a>`}<//>` : html`<${Empty} title=${empty ?? `No ${nouns}`} />`)}
      </div>
      <div class="vfoot"><span>${filter || prefilter?.test ? `${int(rows.length)} of ${int(table.rows.length)}` : int(rows.length)} ${rows.length === 1 ? noun : nouns}</span>
        ${!table.complete.value && table.rows.length > 0 && html`<span>loading…</span>`}${test.problems.length > 0 && html`<span class="bad">${test.problems.join("; ")}</span>`}
        <span class="grow"></span><span class="hide-narrow"><kbd>j</kbd> <kbd>k</kbd> move · <kbd>Enter</kbd> open · <kbd>?</kbd> keys</span></div>
    </div>`;
}

function Row({ row, at, columns, template, table, reader, cursor, selected, selection, open, href, actionsFor, vhostOf }) {
  const vhost = vhostOf ? vhostOf(row) : "/";
  const click = (event) => { if (open && !event.target.closest("a,button,input,label,.menu") && !String(getSelection())) open(row, event); };
  return html`<div class=${cls("vrow", cursor && "cursor", selected && "selected", open && "open")} role="row" aria-rowindex=${at + 2} style=${{ transform: `translateY(${at * ROW}px)`, gridTemplateColumns: template }} onClick=${click}>
    ${selection && html`<div class="vcell" role="cell"><input type="checkbox" checked=${Boolean(selected)} aria-label="Select" onChange=${() => selection.toggle(row)} /></div>`}
    ${columns.map((column) => {
      const value = reader(column.id)?.(row);
      return html`<div class=${cls("vcell", column.num && "num", column.num && !value && "zero", column.mono && "mono")} role="cell" key=${column.id} title=${typeof value === "string" && !column.render ? value : undefined}>${column.link ? html`<a href=${href(row)} title=${value}>${column.render ? column.render(value, row, table) : value}</a>${vhost !== "/" && html` <span class="muted small">${vhost}</span>`}` : column.render ? column.render(value, row, table) : column.num ? int(value) : value === true ? "yes" : value === false ? "" : value ?? ""}</div>`;
    })}
    ${actionsFor && html`<div class="vcell act" role="cell">${actionsFor(row)}</div>`}</div>`;
}

/** What is selected in a table, by key. */
export function useSelection() {
  const [chosen, setChosen] = useState(new Map());
  return {
    chosen,
    count: chosen.size,
    rows: [...chosen.values()],
    has: (row) => chosen.has(row.key),
    toggle: (row) => setChosen((old) => { const next = new Map(old); if (!next.delete(row.key)) next.set(row.key, row); return next; }),
    clear: () => setChosen(new Map()),
    set: (rows) => setChosen(new Map(rows.map((row) => [row.key, row]))),
  };
}
