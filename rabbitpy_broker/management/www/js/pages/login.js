// The login: name and password go to the broker once and are kept nowhere.
import { html, useState } from "../core/html.js";
import { login, sessionEnded } from "../core/api.js";
import { Button, Field, Note } from "../ui/bits.js";

export function Login() {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await login(name, password);
    } catch (error) {
      setProblem(error.status === 401 && error.message === "Login failed" ? "Name or password is wrong." : error.message);
      setBusy(false);
    }
  };
  return html`<main class="login"><form class="card" onSubmit=${submit} aria-label="Log in">
    <div class="mark"><img src="favicon.svg" alt="" width="36" height="36" /><div><h1>rabbitpy-broker</h1><span class="muted">${location.host}</span></div></div>
    ${(problem || sessionEnded.value) && html`<${Note} kind=${problem ? "bad" : ""}>${problem || sessionEnded.value}<//>`}
    <${Field} label="Name">${(id) => html`<input id=${id} class="input" name="username" autocomplete="username" autocapitalize="none" spellcheck=${false} required autofocus value=${name} onInput=${(event) => setName(event.currentTarget.value)} />`}<//>
    <${Field} label="Password">${(id) => html`<input id=${id} class="input" name="password" type="password" autocomplete="current-password" value=${password} onInput=${(event) => setPassword(event.currentTarget.value)} />`}<//>
    <${Button} type="submit" kind="primary" busy=${busy}>Log in<//></form></main>`;
}
