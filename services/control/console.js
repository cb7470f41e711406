// What the console's pages do: figures that live, and buttons that ask REST. Without it pages show what was when they were loaded.
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

// The session has ended: what stands in fields stays until one goes to the login oneself.
const ended = () => {
  const next = encodeURIComponent(location.pathname + location.search);
  const link = Object.assign(document.createElement("a"), { href: `/console/login?next=${next}`, textContent: "Log in again" });
  const text = Object.assign(document.createElement("p"), { className: "trouble", textContent: "Your session has ended. " });
  text.append(link);
  said.replaceChildren(text);
};

const live = document.getElementById("live");
const notice = document.getElementById("notice");
const notLive = (why) => {
  const text = why && `These figures stand still: ${why}`;
  if (!notice || notice.textContent === text) return;
  notice.textContent = text;
  notice.className = text ? "trouble" : "";
};
const ANSWER_MS = 20000; // Longer than a page takes of a busy service.
let under_way = false;
let refused = false; // Asking again would make the browser ask for a token, again and again.
const refresh = async () => {
  if (under_way || document.hidden) return;
  under_way = true;
  try {
    const asked = { cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(ANSWER_MS) };
    const answer = await fetch(at(location.pathname + location.search), asked);
    if (answer.type === "opaqueredirect") { refused = true; return ended(); }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const now = page.getElementById("live");
    refused = answer.status === 401;
    if (answer.ok && now) patch(live, now);
    notLive(answer.ok ? "" : page.querySelector("main .trouble")?.textContent ?? `the service answers ${answer.status}`);
  } catch { notLive("the service does not answer; they are asked for again."); } finally { under_way = false; }
};
if (live?.dataset.stream) {
  const SILENT_MS = 10000; // Events come once a second: after so many the connection is dead, whatever the browser thinks.
  const PAUSE_MS = 3000; // As browsers wait where a stream breaks. One that is refused, by a service that begins, they give up.
  let stream;
  let heard;
  const listen = () => {
    heard = performance.now();
    stream = new EventSource(at(live.dataset.stream));
    stream.onmessage = () => { heard = performance.now(); document.body.dataset.live = "yes"; refresh(); };
    stream.onerror = () => { document.body.dataset.live = "no"; refresh(); };
  };
  listen();
  setInterval(() => {
    if (refused || (stream.readyState !== EventSource.CLOSED && performance.now() - heard < SILENT_MS)) return;
    stream.close();
    refresh();
    listen();
  }, PAUSE_MS);
  document.addEventListener("visibilitychange", refresh);
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
  try {
    // The header is what other sites' pages cannot send: with it a page's password may change things.
    const headers = { "Content-Type": "application/json", "Tidemark-Console": "1" };
    const answer = await fetch(at(path), { method, headers, body: JSON.stringify(asked) });
    const text = await answer.text();
    if (answer.headers.get("Content-Type")?.split(";")[0] !== "application/json") {
      return show(line("p", `The service does not answer: what lies before it says ${answer.status}`, "trouble"));
    }
    const found = JSON.parse(text, exact);
    tell(found);
    if (found.request && from) written.defaultValue = asked.document;
    if (answer.ok && next) location.assign(found.next ?? next);
  } catch (error) {
    show(line("p", `The service does not answer: ${error.message}`, "trouble"));
  } finally { busy.delete(button); button.removeAttribute("aria-disabled"); refresh(); }
});
