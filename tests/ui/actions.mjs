// Everything that can be done on the pages is done, and the broker is asked whether it is so.
import { api, check, login, run, settings, settled, start, until, visit } from "./browser.mjs";

const { browser, context, page, watch } = await start();
watch.expected.push(/404 \(Not Found\)/);

const dialog = () => page.locator("dialog[open]").last();
const closed = () => page.locator("dialog").waitFor({ state: "detached" });
const submit = async (name) => { await dialog().getByRole("button", { name, exact: typeof name === "string" }).last().click(); await closed(); };
const head = (name) => page.locator(".page-head").getByRole("button", { name, exact: typeof name === "string" });
const menu = async (item) => { await head(/Actions/).click(); await page.locator(".menu").getByRole("button", { name: item }).click(); };
const rows = (name) => page.locator(".vbody .vrow", { hasText: name });
const exists = async (path) => (await api("GET", path)).status === 200;
const card = (name) => page.locator("section.card").filter({ has: page.locator("header h2", { hasText: name }) });

const cases = {
  async "a wrong password is told"() {
    watch.expected.push(/401 \(Unauthorized\)/);
    await page.goto(settings.base);
    await page.getByLabel("Name").fill("guest");
    await page.getByLabel("Password").fill("wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("Name or password is wrong").waitFor();
    watch.expected.pop();
  },
  async "log in, and the page is there after a reload"() {
    await login(page);
    await page.reload();
    await page.locator(".shell").waitFor();
    const kept = await page.evaluate(() => JSON.stringify([localStorage, document.cookie]));
    check(!/guest/.test(kept), `a credential is kept: ${kept}`);
  },
  async "figures come by themselves"() {
    await visit(page, "/overview");
    await page.locator(".livedot.live").waitFor();
    const read = () => page.evaluate(() => document.querySelector(".livedot").title);
    const before = await read();
    await until("newer figures", async () => (await read()) !== before);
  },
  async "declare a queue"() {
    await visit(page, "/queues");
    await head("Declare queue").click();
    await dialog().getByLabel("Name", { exact: true }).fill("made here");
    await dialog().getByRole("button", { name: "Message TTL" }).click();
    await dialog().getByLabel("Arguments: value").fill("60000");
    await submit("Declare");
    await page.getByRole("heading", { name: "made here" }).waitFor();
    const { json } = await api("GET", "queues/%2F/made%20here");
    check(json.durable && json.arguments["x-message-ttl"] === 60000, JSON.stringify(json));
  },
  async "declare a stream, with what a stream may have"() {
    await visit(page, "/queues");
    await head("Declare queue").click();
    await dialog().getByLabel("Name", { exact: true }).fill("made stream");
    await dialog().getByLabel("Type", { exact: true }).selectOption("stream");
    check((await dialog().getByRole("button", { name: "Message TTL" }).count()) === 0, "a stream is offered a TTL");
    await dialog().getByRole("button", { name: "Max age" }).click();
    await dialog().getByLabel("Arguments: value").fill("7D");
    await submit("Declare");
    await page.getByText("Nothing has been published yet").waitFor();
    await page.getByText("for 7 d").waitFor();
    await api("DELETE", "queues/%2F/made%20stream");
  },
  async "a refusal is shown in the form"() {
    watch.expected.push(/400 \(Bad Request\)/);
    await visit(page, "/queues");
    await head("Declare queue").click();
    await dialog().getByLabel("Name", { exact: true }).fill("made here");
    await dialog().getByRole("button", { name: "Declare", exact: true }).click();
    await dialog().getByText(/inequivalent arg/).waitFor();
    await page.keyboard.press("Escape");
    await closed();
    watch.expected.pop();
  },
  async "publish: a text with headers, many, and a file"() {
    await visit(page, "/queues/%2F/made%20here");
    await head("Publish").click();
    await dialog().getByLabel("Body").fill('{"a": 1}');
    await dialog().getByLabel("Content type").fill("application/json");
    await dialog().getByLabel("Copies").fill("3");
    await dialog().getByRole("button", { name: "Properties and headers" }).click();
    await dialog().getByRole("button", { name: "Add header" }).click();
    await dialog().getByLabel("Headers: name").fill("tenant");
    await dialog().getByLabel("Headers: value").fill("t1");
    await dialog().getByRole("button", { name: "Publish", exact: true }).click();
    await dialog().getByText(/3 messages confirmed in .* All reached a queue/).waitFor();
    await dialog().locator("input[type=file]").setInputFiles({ name: "body.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0, 255, 1]) });
    await dialog().getByLabel("Copies").fill("1");
    await dialog().getByRole("button", { name: "Publish", exact: true }).click();
    await dialog().getByText(/1 message confirmed/).waitFor();
    await page.keyboard.press("Escape");
    await closed();
    const { json } = await api("POST", "queues/%2F/made%20here/get", { count: 4, ackmode: "ack_requeue_true", encoding: "base64" });
    check(json.length === 4 && json[0].properties.headers.tenant === "t1" && json[3].payload === "AP8B", JSON.stringify(json));
  },
  async "publish to where nothing is bound"() {
    await visit(page, "/exchanges/%2F/orders");
    await head("Publish").click();
    await dialog().getByLabel("Routing key").fill("nowhere");
    await dialog().getByRole("button", { name: "Publish", exact: true }).click();
    await dialog().getByText(/No queue is bound for it/).waitFor();
    await page.keyboard.press("Escape");
    await closed();
  },
  async "get takes and puts back"() {
    await visit(page, "/queues/%2F/made%20here");
    await menu("Get messages");
    await dialog().getByRole("button", { name: "Get", exact: true }).click();
    await dialog().getByText("tenant").waitFor();
    await page.keyboard.press("Escape");
    await closed();
  },
  async "bind and unbind a queue"() {
    await visit(page, "/queues/%2F/made%20here");
    await card("Bindings").getByRole("button", { name: "Bind" }).click();
    await dialog().getByLabel("From exchange").fill("events");
    await dialog().getByLabel("Routing key").fill("k");
    await submit("Bind");
    const bound = card("Bindings").locator("tr", { hasText: "events" });
    await bound.waitFor();
    check((await api("GET", "bindings/%2F/e/events/q/made%20here")).json.length === 1, "not bound");
    await bound.getByRole("button", { name: "Unbind" }).click();
    await submit("Unbind");
    await bound.waitFor({ state: "detached" });
  },
  async "purge and delete a queue"() {
    await visit(page, "/queues/%2F/made%20here");
    await menu("Purge");
    await submit("Purge");
    await until("empty", async () => (await api("GET", "queues/%2F/made%20here")).json.messages === 0);
    await until("the page knows", async () => (await page.locator(".stat", { hasText: "Ready" }).first().innerText()).includes("0"));
    await menu("Delete");
    await submit("Delete queue");
    check(!(await exists("queues/%2F/made%20here")), "it is there");
  },
  async "purge and delete several"() {
    for (const name of ["many-1", "many-2"]) await api("PUT", `queues/%2F/${name}`, {});
    await visit(page, "/queues?q=many-");
    await until("both rows", async () => (await rows("many-").count()) === 2);
    await page.getByRole("button", { name: "Select", exact: true }).click();
    for (const box of await page.locator(".vbody input[type=checkbox]").all()) await box.check();
    await page.locator(".selbar").getByRole("button", { name: "Delete" }).click();
    await dialog().getByLabel(/Type/).fill("2");
    await submit("Delete");
    await until("both gone", async () => !(await exists("queues/%2F/many-1")) && !(await exists("queues/%2F/many-2")));
    await until("no row", async () => (await rows("many-").count()) === 0);
  },
  async "what somebody else declares appears, and goes"() {
    await visit(page, "/queues?q=elsewhere");
    await api("PUT", "queues/%2F/elsewhere", {});
    await rows("elsewhere").waitFor();
    await api("DELETE", "queues/%2F/elsewhere");
    await rows("elsewhere").waitFor({ state: "detached" });
  },
  async "a queue that is deleted while it is looked at"() {
    await api("PUT", "queues/%2F/passing", {});
    await visit(page, "/queues/%2F/passing");
    await api("DELETE", "queues/%2F/passing");
    await page.getByText("There is no queue passing").waitFor();
  },
  async "filter, order and columns are in the address"() {
    await visit(page, "/queues");
    await page.keyboard.press("/");
    await page.keyboard.type("messages>0 -held");
    await page.getByRole("columnheader", { name: "Total" }).getByRole("button").click();
    await until("the address", () => page.evaluate(() => /q=messages/.test(location.hash) && /sort=-messages/.test(location.hash)));
    const first = await page.locator(".vbody .vrow a").first().innerText();
    check(first === "orders.eu", first);
    await page.reload();
    await until("the same after a reload", async () => (await page.locator(".vbody .vrow a").first().innerText()) === "orders.eu");
    await page.getByRole("button", { name: "Columns and export" }).click();
    await page.locator(".menu").getByLabel("Bytes").check();
    await page.getByRole("columnheader", { name: "Bytes" }).waitFor();
    const saved = page.waitForEvent("download");
    await page.getByRole("button", { name: "Save as CSV" }).click();
    check((await saved).suggestedFilename() === "queues.csv", "no file");
    await page.getByRole("button", { name: "Columns and export" }).click();
    await page.getByRole("button", { name: "As many as fit" }).click();
  },
  async "the keyboard leads everywhere"() {
    await visit(page, "/overview");
    for (const [keys, address] of [["g q", "#/queues"], ["g e", "#/exchanges"], ["g c", "#/connections"], ["g n", "#/node"], ["g q", "#/queues"]]) {
      for (const key of keys.split(" ")) await page.keyboard.press(key);
      await until(address, () => page.evaluate((wanted) => location.hash === wanted, address));
    }
    await settled(page);
    await page.locator(".vbody .vrow").first().waitFor();
    const names = await page.locator(".vbody .vrow a").allInnerTexts();
    for (const key of ["j", "j", "k", "j"]) await page.keyboard.press(key);
    await page.locator(".vrow.cursor").waitFor();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: names[1], exact: true }).waitFor();
  },
  async "the palette goes to a queue"() {
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox").fill("dead.ord");
    await page.getByRole("option", { name: "dead.orders" }).waitFor();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "dead.orders" }).waitFor();
  },
  async "the theme is kept"() {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await page.getByRole("button", { name: "Theme" }).click();
    await page.locator(".menu").getByRole("button", { name: "Dark" }).click();
    check((await ground()) !== light, "the ground is the same");
    await page.reload();
    await page.locator(".shell").waitFor();
    check((await ground()) !== light, "it is forgotten");
    await page.getByRole("button", { name: "Theme" }).click();
    await page.locator(".menu").getByRole("button", { name: "As the system" }).click();
  },
  async "declare, bind, ask the way, delete an exchange"() {
    await visit(page, "/exchanges");
    await head("Declare exchange").click();
    await dialog().getByLabel("Name", { exact: true }).fill("way");
    await dialog().getByLabel("Type", { exact: true }).selectOption("topic");
    await submit("Declare");
    await page.getByRole("heading", { name: "way", exact: true }).waitFor();
    await card("Bindings from here").getByRole("button", { name: "Bind" }).click();
    await dialog().getByLabel("Name", { exact: true }).fill("target");
    await dialog().getByLabel("Routing key").fill("a.*");
    await submit("Bind");
    await card("Bindings from here").getByText("a.*").waitFor();
    await card("Where would this message go?").getByLabel("Routing key").fill("a.b");
    await page.getByRole("button", { name: "Show the way" }).click();
    await page.getByText(/It reaches 1 queue/).waitFor();
    await card("Where would this message go?").getByLabel("Routing key").fill("b");
    await page.getByRole("button", { name: "Show the way" }).click();
    await page.getByText(/It reaches no queue/).waitFor();
    await menu("Delete");
    await submit("Delete exchange");
    check(!(await exists("exchanges/%2F/way")), "it is there");
  },
  async "the topology is drawn, and leads to a queue"() {
    await visit(page, "/topology");
    await page.locator(".topo svg g.node").first().waitFor();
    check((await page.locator(".topo .edge.dlx").count()) > 0, "no edge of dead letters");
    await page.locator(".topo g.queue a[href$='/orders.eu']").click();
    await page.getByRole("heading", { name: "orders.eu" }).waitFor();
    await menu("Show in the topology");
    await page.locator(".topo svg g.node").first().waitFor();
  },
  async "a vhost: add, change, protect, delete"() {
    await visit(page, "/vhosts");
    await head("Add virtual host").click();
    await dialog().getByLabel("Name", { exact: true }).fill("shop");
    await submit("Add");
    await page.getByRole("link", { name: "shop" }).click();
    await page.getByRole("heading", { name: "shop" }).waitFor();
    await head("Change").click();
    await dialog().getByLabel("Description").fill("where things are sold");
    await submit("Change");
    await page.getByText("where things are sold").waitFor();
    await menu("Protect from deletion");
    await page.getByText("protected", { exact: true }).waitFor();
    await menu("Allow its deletion");
    await page.getByText("protected", { exact: true }).waitFor({ state: "detached" });
    await menu("Switch tracing on");
    await page.getByText("tracing", { exact: true }).waitFor();
    await card("Permissions").getByRole("button", { name: "Set" }).click();
    await dialog().getByLabel("User").selectOption("reader");
    await submit("Set");
    await card("Permissions").getByRole("link", { name: "reader" }).waitFor();
    await menu("Delete");
    await dialog().getByLabel(/Type/).fill("shop");
    await submit("Delete virtual host");
    check(!(await exists("vhosts/shop")), "it is there");
  },
  async "a user: add, permissions, tester, tags, delete"() {
    await visit(page, "/users");
    await head("Add user").click();
    await dialog().getByLabel("Name", { exact: true }).fill("ada");
    await dialog().getByLabel("Password").fill("secret");
    await dialog().getByLabel(/monitoring/).check();
    await submit("Add");
    await page.getByRole("link", { name: "ada" }).click();
    await page.getByRole("heading", { name: "ada", exact: true }).waitFor();
    await card("Permissions").first().getByRole("button", { name: "Set" }).click();
    await dialog().getByLabel("Virtual host").selectOption("/");
    await dialog().getByLabel("write").fill("^orders");
    await submit("Set");
    await card("May ada").getByLabel("Virtual host").selectOption("/");
    await card("May ada").getByLabel("Name").fill("orders.eu");
    await card("May ada").getByText("may write", { exact: true }).waitFor();
    await card("May ada").getByLabel("Name").fill("mail");
    await card("May ada").getByText("may not write", { exact: true }).waitFor();
    await card("Topic permissions").getByRole("button", { name: "Set" }).click();
    await submit("Set");
    await card("Topic permissions").getByText("amq.topic").waitFor();
    await card("Topic permissions").getByRole("button", { name: "Take away" }).click();
    await submit("Take away");
    await card("Topic permissions").getByText("amq.topic").waitFor({ state: "detached" });
    await head("Change").click();
    await dialog().getByLabel(/policymaker/).check();
    await submit("Change");
    await page.locator(".page-head").getByText("policymaker").waitFor();
    const { json } = await api("GET", "users/ada");
    check(json.tags.includes("policymaker") && json.tags.includes("monitoring") && json.password_hash, JSON.stringify(json));
    await head("Delete").click();
    await dialog().getByLabel(/Type/).fill("ada");
    await submit("Delete user");
    check(!(await exists("users/ada")), "it is there");
  },
  async "a policy: preview, set, change, delete"() {
    await visit(page, "/policies");
    await head("Add policy").click();
    await dialog().getByLabel("Virtual host").selectOption("/");
    await dialog().getByLabel("Name", { exact: true }).fill("short");
    await dialog().getByLabel("Pattern").fill("^orders\\.");
    await dialog().getByRole("button", { name: "Max length" }).click();
    await dialog().getByLabel("Definition: value").fill("5000");
    await dialog().getByText(/1 would change/).waitFor();
    await dialog().locator("td", { hasText: "orders.eu" }).first().waitFor();
    await submit("Set");
    const row = page.locator("tr", { hasText: "short" });
    await row.waitFor();
    await row.getByRole("button", { name: "Change" }).click();
    await dialog().getByLabel("Priority").fill("5");
    await submit("Set");
    check((await api("GET", "policies/%2F/short")).json.priority === 5, "not changed");
    await row.getByRole("button", { name: "Delete" }).click();
    await dialog().getByText(/would change/).waitFor();
    await submit("Delete");
    await row.waitFor({ state: "detached" });
  },
  async "limits of a vhost and of a user"() {
    for (const [title, path] of [["Virtual hosts", "vhost-limits/%2F"], ["Users", "user-limits/guest"]]) {
      await visit(page, "/limits");
      await card(title).getByRole("button", { name: "Set a limit" }).click();
      await dialog().getByLabel(title === "Users" ? "User" : "Virtual host").selectOption(title === "Users" ? "guest" : "/");
      await dialog().getByLabel("At most").fill("1234");
      await submit("Set");
      const row = card(title).locator("tr", { hasText: "1,234" });
      await row.waitFor();
      check((await api("GET", path)).json[0].value["max-connections"] === 1234, "not set");
      await row.getByRole("button", { name: "Delete" }).click();
      await submit("Delete");
      await row.waitFor({ state: "detached" });
    }
  },
  async "definitions: save, compare, apply"() {
    await visit(page, "/definitions");
    const saving = page.waitForEvent("download");
    await page.getByRole("button", { name: "Save definitions" }).click();
    check((await saving).suggestedFilename() === "definitions.json", "no file");
    const file = { queues: [{ vhost: "/", name: "from a file", durable: true, auto_delete: false, arguments: {} }], policies: [{ vhost: "/", name: "filed", pattern: "^x", "apply-to": "queues", definition: { "max-length": 7 }, priority: 0 }] };
    await page.locator("input[type=file]").setInputFiles({ name: "d.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(file)) });
    await until("the file is read", async () => (await page.getByLabel("Definitions as JSON").inputValue()).includes("from a file"));
    await page.getByRole("button", { name: "Compare" }).click();
    await page.locator("td", { hasText: "from a file" }).first().waitFor();
    check(!(await exists("queues/%2F/from%20a%20file")), "comparing has changed something");
    await page.getByRole("button", { name: /Apply 2 changes/ }).click();
    await submit(/Apply 2/);
    await until("applied", () => exists("queues/%2F/from%20a%20file"));
    await page.getByRole("button", { name: /Apply 0/ }).waitFor();
    await api("DELETE", "queues/%2F/from%20a%20file");
    await api("DELETE", "policies/%2F/filed");
    await page.getByLabel("Definitions as JSON").fill("{");
    await page.getByRole("button", { name: "Compare" }).click();
    await page.getByText(/is no JSON/).waitFor();
  },
  async "statistics are forgotten"() {
    await visit(page, "/node");
    await menu("Forget the statistics");
    await submit("Forget");
  },
  async "the audit knows who did what, and the log is told as it comes"() {
    await visit(page, "/audit");
    await page.locator("td", { hasText: "reset" }).first().waitFor();
    await visit(page, "/audit?tab=log");
    await page.locator(".log li").first().waitFor();
    await api("PUT", "users/logged", { password: "x", tags: "" });
    await api("DELETE", "users/logged");
  },
  async "a view is kept under a name, is there after a reload, and goes as a link"() {
    await visit(page, "/queues?q=messages>0&sort=-messages");
    await page.getByRole("button", { name: "Columns and export" }).click();
    await page.locator(".menu").getByLabel("Bytes").check();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Views" }).click();
    await page.getByRole("button", { name: "Keep this view…" }).click();
    await dialog().getByLabel("Name").fill("full ones");
    await submit("Keep");
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.getByRole("button", { name: "full ones" }).click();
    await page.getByRole("button", { name: "Copy a link to it" }).click();
    const link = await until("copied", () => page.evaluate(() => navigator.clipboard.readText()));
    await page.getByRole("button", { name: "full ones" }).click();
    await page.getByRole("button", { name: "Back to the plain table" }).click();
    await rows("empty").waitFor();
    check((await page.locator(".vhead", { hasText: "Bytes" }).count()) === 0, "the columns are still there");
    await page.reload();
    await page.getByRole("button", { name: "Views" }).click();
    await page.getByRole("button", { name: "full ones", exact: true }).click();
    const shown = async () => {
      await until("filtered", async () => (await rows("empty").count()) === 0 && (await page.locator(".vhead", { hasText: "Bytes" }).count()) === 1);
      check((await page.getByLabel("Filter", { exact: true }).inputValue()) === "messages>0", "no filter");
      check((await page.locator(".vhead [aria-sort=descending]").innerText()).includes("Total"), "no order");
    };
    await shown();
    await page.evaluate(() => localStorage.clear());
    await page.evaluate(() => localStorage.setItem("rabbitpy.session", "1"));
    await page.goto("about:blank");
    await page.goto(link);
    await page.locator(".vbody .vrow").first().waitFor();
    await shown();
    check((await page.getByRole("button", { name: "Views" }).innerText()) === "", "a view is kept that nobody has kept here");
  },
  async "cancel a consumer"() {
    await visit(page, "/consumers?q=held");
    await rows("held").getByRole("button", { name: "Cancel the consumer" }).click();
    await dialog().getByText("gets nothing more of held").waitFor();
    await submit("Cancel consumer");
    await until("cancelled", async () => !(await api("GET", "consumers")).json.some((one) => one.queue.name === "held"));
    check((await api("GET", "queues/%2F/held")).json.messages_unacknowledged === 3, "what it held has gone back");
  },
  async "close a connection with a reason"() {
    await visit(page, "/connections?q=spare");
    await rows("spare").locator("a").click();
    await page.getByRole("heading", { name: "spare" }).waitFor();
    await head("Close").click();
    await dialog().getByLabel("Reason").fill("out of here");
    await submit("Close");
    await until("closed", async () => !(await api("GET", "connections")).json.some((one) => one.client_properties.connection_name === "spare"));
  },
  async "who only monitors has no page that it may not use"() {
    await page.getByRole("button", { name: "Account" }).click();
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Password").waitFor();
    await login(page, "reader");
    check((await page.getByRole("link", { name: "Users" }).count()) === 0, "Users is shown");
    for (const address of ["/overview", "/queues", "/queues/%2F/orders.eu", "/queues/%2F/orders.eu?tab=messages", "/exchanges/%2F/orders", "/node", "/policies", "/limits", "/vhosts/%2F", "/attention", "/topology"]) await visit(page, address);
    await visit(page, "/users");
    await page.getByText("Your tags do not allow this page").waitFor();
  },
  async "a session that ends leads to the login"() {
    watch.expected.push(/401 \(Unauthorized\)/);
    await visit(page, "/overview");
    await api("PUT", "users/reader", { password: "other", tags: "monitoring" });
    await page.getByLabel("Password").waitFor();
    await api("PUT", "users/reader", { password: "reader", tags: "monitoring" });
  },
};
await run(cases, { watch, browser, after: async (name) => { if (settings.shots) await page.screenshot({ path: `${settings.shots}/${name.replaceAll(/\W+/g, "_")}.png` }); await page.keyboard.press("Escape"); } });
