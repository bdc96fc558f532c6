// Starts the page: asks who is logged in, then shows the login or the shell.
import { html, render, useEffect, useState } from "./core/html.js";
import { session, resume } from "./core/api.js";
import "./core/prefs.js";
import { Shell } from "./ui/shell.js";
import { Login } from "./pages/login.js";
import { Toasts, Dialogs, Button, Empty } from "./ui/bits.js";

function App() {
  const [state, setState] = useState("asking");
  const ask = () => resume().then(() => setState("known"), () => setState("unreachable"));
  useEffect(() => { void ask(); }, []);
  if (state === "asking") return null;
  if (state === "unreachable") return html`<main class="login"><${Empty} icon="node" title="The broker cannot be reached"><${Button} icon="refresh" onClick=${ask}>Try again<//><//></main>`;
  return html`${session.value ? html`<${Shell} />` : html`<${Login} />`}<${Dialogs} /><${Toasts} />`;
}

render(html`<${App} />`, document.getElementById("app"));
