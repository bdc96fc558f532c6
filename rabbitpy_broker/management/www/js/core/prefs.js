// What this browser remembers: the theme, the vhost that is looked at, columns of tables, the last filters. No credentials, ever.
import { signal, effect } from "./html.js";

function read(key, fallback) {
  try {
    const text = localStorage.getItem(`rabbitpy.${key}`);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback; // storage is off, or holds what another version wrote
  }
}

export function remembered(key, fallback) {
  const made = signal(read(key, fallback));
  effect(() => {
    const text = JSON.stringify(made.value);
    try {
      localStorage.setItem(`rabbitpy.${key}`, text);
    } catch {
      // storage is off: what was chosen lasts as long as the page
    }
  });
  addEventListener("storage", (event) => { if (event.key === `rabbitpy.${key}`) made.value = read(key, fallback); }); // another tab
  return made;
}

export const theme = remembered("theme", "auto");
effect(() => { document.documentElement.dataset.theme = ["auto", "light", "dark"].includes(theme.value) ? theme.value : "auto"; });

const wishesDark = matchMedia("(prefers-color-scheme: dark)");
export const systemDark = signal(wishesDark.matches);
wishesDark.addEventListener("change", (event) => { systemDark.value = event.matches; });
export const isDark = () => theme.value === "dark" || (theme.value === "auto" && systemDark.value);

export const chosenVhost = remembered("vhost", "");
const tableStates = new Map();
export function tableState(kind) {
  if (!tableStates.has(kind)) tableStates.set(kind, remembered(`columns.${kind}`, null));
  return tableStates.get(kind);
}
