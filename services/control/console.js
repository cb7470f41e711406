// What the console's pages do: figures that live, and buttons that ask REST. Without it pages show what was when they were loaded.
// Figures are asked for again and again, without a stream: each question is short, so no proxy holds it back or ends it, none waits in a tab
// that nobody sees, and rights count as they are now.
"use strict";
const at = (path) => location.origin + path; // without the name and password that the page's address may have
const said = document.getElementById("said");

// Makes a node like another of its kind and keeps the node, and with it focus, selection and what is unfolded. Rows are known by their first
// cell: one that comes or goes above does not push another processor's button, or another letter, under the cursor.
const keyOf = (node) => node.nodeName + (node.nodeName === "TR" ? node.firstChild?.textContent : "");
const patch = (old, now) => {
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== now.data) old.data = now.data; return; }
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (name !== "open" && !now.hasAttribute(name)) old.removeAttribute(name);
  let at = old.firstChild;
  const left = [...old.childNodes].map(keyOf);
  for (const child of now.childNodes) {
    const place = left.indexOf(keyOf(child));
    if (place < 0) { old.insertBefore(child.cloneNode(true), at); continue; }
    left.splice(0, place + 1);
    for (let i = 0; i < place; i += 1) { const gone = at; at = at.nextSibling; gone.remove(); }
    patch(at, child);
    at = at.nextSibling;
  }
  while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
};

const live = document.getElementById("live");
const notice = document.getElementById("notice");
const OLD_MS = 10000; // Of figures that come once a second: they are not those of now any more.
const PAUSE_MS = 3000; // Before a service that does not answer is asked again.
const ANSWER_MS = 20000; // Longer than a page takes of a busy service; a slow network is given more and more, up to
const ANSWER_MS_MAX = 160000;
const times = () => [performance.now(), Date.now()]; // The first stands still while a laptop sleeps, the other is set now and then.
const since = (then) => Math.max(...times().map((now, i) => now - then[i]));
let heard = times();
let why = "";
let logged_out = false;
const say = () => {
  if (!notice || !live) return;
  const age = since(heard);
  const every = Number(live.dataset.every);
  const old = why || (every && age > OLD_MS + every);
  const minutes = Math.floor(age / 60000); // In steps that nobody who is read to hears each second.
  const ago = minutes < 2 ? "" : minutes < 120 ? `, ${minutes} min ago` : `, ${Math.floor(minutes / 60)} h ago`;
  const text = old ? `These figures stand still since ${live.dataset.at}${ago}: ${why || "they are asked for again."}` : "";
  if (notice.dataset.text === text) return;
  notice.dataset.text = text;
  notice.className = text ? "trouble" : "";
  notice.replaceChildren(text);
  if (!logged_out || !text) return;
  // In another tab: what stands in fields here stays, and can be sent behind the login.
  const link = { href: location.pathname + location.search, target: "_blank", rel: "noopener", textContent: "Log in again in another tab" };
  notice.append(" ", Object.assign(document.createElement("a"), link), ", and go on here.");
};

let under_way; // The question that waits for its answer.
let patience = ANSWER_MS;
const refresh = async () => {
  if (under_way || document.hidden) return;
  const mine = (under_way = new AbortController());
  const late = setTimeout(() => mine.abort(new Error("late")), patience);
  try {
    const asked = { cache: "no-store", redirect: "manual", signal: mine.signal, headers: { "Tidemark-Console": "1" } };
    const answer = await fetch(at(location.pathname + location.search), asked);
    logged_out = answer.type === "opaqueredirect" || answer.status === 401;
    const page = new DOMParser().parseFromString(logged_out ? "" : await answer.text(), "text/html");
    const now = page.getElementById("live");
    if (answer.ok && now) {
      patch(live, now); // With the time of its figures.
      patch(document.querySelector("header"), page.querySelector("header"));
      heard = times();
      patience = ANSWER_MS;
    }
    const other = page.documentElement.dataset.build !== document.documentElement.dataset.build;
    if (logged_out) why = "your session has ended, or your token counts no more.";
    else if (answer.ok && now) why = other ? "the service is of another release now: load the page again." : "";
    else why = page.querySelector("main .trouble")?.textContent ?? `what answers is not the service (status ${answer.status}).`;
  } catch (error) {
    const slow = mine.signal.reason?.message === "late";
    why = slow ? `the service has not answered to the end within ${patience / 1000} s.` : "the service does not answer.";
    if (slow) patience = Math.min(2 * patience, ANSWER_MS_MAX);
  } finally {
    clearTimeout(late);
    if (under_way === mine) under_way = undefined;
  }
  document.body.dataset.live = why ? "no" : "yes";
  say();
};
if (live) {
  let asked = times();
  let looked = times();
  const look = () => {
    const slept = since(looked) > OLD_MS; // The connection of before may be dead, and nobody would tell.
    looked = times();
    if (slept) under_way?.abort();
    say();
    const every = Number(live.dataset.every);
    if (!every || under_way || since(asked) < (why ? PAUSE_MS : every)) return;
    refresh().finally(() => { asked = times(); });
  };
  if (live.dataset.every) setInterval(look, Math.min(Number(live.dataset.every), 1000));
  const again = () => { say(); refresh(); };
  document.addEventListener("visibilitychange", again);
  addEventListener("pageshow", (event) => { if (event.persisted) again(); });
}

const line = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text, className: kind ?? "" });
const show = (...nodes) => { said.replaceChildren(...nodes); said.scrollIntoView({ block: "nearest" }); };
// Numbers stay as they are written: a script's own have 53 bits, and a record's 64.
const exact = (_key, value, context) =>
  typeof value === "number" && context?.source && JSON.rawJSON && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
const KINDS = { "+": "added", "-": "removed" };
const changed = (text) => line("div", text, /^([+]{3}|-{3}) /.test(text) ? "hint" : KINDS[text[0]]);
const tell = (found) => {
  if (found.error) {
    const { place, expectation, finding, remedy, errors } = found.error;
    const list = document.createElement("ul");
    for (const e of errors ?? []) list.append(line("li", `${e.place}${e.line ? ` (line ${e.line})` : ""}: ${e.message}`));
    return show(line("p", `${place}: expected ${expectation}; ${finding}${remedy ? `; ${remedy}` : ""}`, "trouble"), list);
  }
  const nodes = [line("p", found.answers ?? (found.valid ? "The document has no errors." : "Done."))];
  if (found.changes) {
    const diff = document.createElement("pre");
    diff.tabIndex = 0;
    diff.append(...(found.changes.length ? found.changes : ["It is what the processor has."]).map(changed));
    nodes.push(diff);
  }
  for (const [head, documents] of [["Output", found.documents], ["Dead letters", found.deadLetters]]) {
    if (!documents?.length) continue;
    const shown = line("pre", documents.map((each) => JSON.stringify(each)).join("\n"));
    shown.tabIndex = 0;
    nodes.push(line("h2", head), shown);
  }
  show(...nodes);
};

// What is written into the document, and neither created nor modified, is not lost without a question.
const written = document.getElementById("document");
addEventListener("beforeunload", (event) => { if (written && written.value !== written.defaultValue) event.preventDefault(); });

// What is asked has an id until an answer decides it: asked again, by hand or by what lies between, it is not done twice.
// Later the same words are a new wish: behind another decision on the same object, or minutes after nobody answered.
const undecided = new Map();
const REPEATED_MS = 5 * 60 * 1000;
const idOf = (deed, path) => {
  const known = undecided.get(deed);
  const id = known && Math.abs(Date.now() - known.at) < REPEATED_MS ? known.id : unique();
  undecided.set(deed, { id, at: Date.now(), of: objectOf(path) });
  return id;
};
const objectOf = (path) => path.split(/[/?]/).slice(0, 4).join("/"); // What creates is of the list.
const decided = (path) => {
  for (const [deed, { of }] of undecided) if (of === objectOf(path) || objectOf(path).startsWith(`${of}/`)) undecided.delete(deed);
};
const unique = () => [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");
const UNKNOWN = [502, 503, 504];
const unsure = (reason) => {
  const rest = "Whether it was done is not known. Press again: it is not done twice within five minutes.";
  show(line("p", `The service does not answer: ${reason}. ${rest}`, "trouble"));
};

const busy = new WeakSet();
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-path]");
  if (!button || busy.has(button)) return;
  const { method, path, body, confirm: question, document: from, name, rows, next } = button.dataset;
  if (question && !confirm(question)) return;
  const asked = JSON.parse(body || "{}");
  if (from) asked.document = document.getElementById(from).value;
  if (name) asked.name = document.getElementById(name).value;
  if (rows && document.getElementById(rows).value.trim()) {
    try { asked.rows = JSON.parse(document.getElementById(rows).value, exact); } catch (error) {
      return show(line("p", `records: expected a JSON list; ${error.message}`, "trouble"));
    }
  }
  show(line("p", "Asked…"));
  busy.add(button);
  button.setAttribute("aria-disabled", "true"); // Disabled, it would lose the focus.
  const sent = JSON.stringify(asked);
  const deed = `${method} ${path} ${sent}`;
  try {
    // The console's header is what other sites' pages cannot send: with it a page's password may change things.
    const headers = { "Content-Type": "application/json", "Tidemark-Console": "1", "Idempotency-Key": idOf(deed, path) };
    // Another one of the name is another's, or has begun anew: it is refused.
    if (live?.dataset.of) headers["Tidemark-Job"] = live.dataset.of;
    const answer = await fetch(at(path), { method, headers, body: sent });
    const text = await answer.text();
    const json = answer.headers.get("Content-Type")?.split(";")[0] === "application/json";
    if (!json) return unsure(`what lies before it says ${answer.status}`);
    if (!UNKNOWN.includes(answer.status)) decided(path);
    const found = JSON.parse(text, exact);
    tell(found);
    if (found.request && from) written.defaultValue = asked.document;
    if (answer.ok && next) location.assign(found.next ?? next);
  } catch (error) {
    unsure(error.message);
  } finally { busy.delete(button); button.removeAttribute("aria-disabled"); refresh(); }
});
