// The keyboard: single keys and sequences (`g q`) that work where nobody types. Pages bind theirs while they are shown.
const bindings = [];
let pending = "";
let timer = 0;

/** Binds keys: {"g q": {what, run}}; returns what unbinds them. `run` may return false: the key was not meant. */
export function bindKeys(keys) {
  bindings.unshift(keys);
  return () => { bindings.splice(bindings.indexOf(keys), 1); };
}

/** All that is bound now, the newest first. */
export function boundKeys() {
  const found = new Map();
  for (const keys of bindings) for (const [key, { what }] of Object.entries(keys)) if (what && !found.has(key)) found.set(key, what);
  return [...found];
}

const typing = (element) => element.closest?.("input:not([type=checkbox]):not([type=radio]),textarea,select,[contenteditable]");

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.altKey) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    for (const keys of bindings) if (keys["Ctrl K"]) { keys["Ctrl K"].run(); return; }
  }
  if (event.ctrlKey || event.metaKey || typing(event.target) || document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && event.target.closest?.("a,button,summary")) return;
  const name = pending ? `${pending} ${event.key}` : event.key;
  clearTimeout(timer);
  pending = "";
  for (const keys of bindings) {
    if (keys[name]) {
      if (keys[name].run(event) !== false) event.preventDefault();
      return;
    }
  }
  if (bindings.some((keys) => Object.keys(keys).some((key) => key.startsWith(`${event.key} `)))) {
    pending = event.key;
    timer = setTimeout(() => { pending = ""; }, 1200);
  }
});
