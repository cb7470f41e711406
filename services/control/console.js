// What the console's pages do: figures that live, and buttons that ask REST. Without it pages show what was when they were loaded.
"use strict";
const at = (path) => location.origin + path; // without the name and password that the page's address may have
const said = document.getElementById("said");

// Makes a node like another of its kind and keeps the node, and with it focus, selection and what is unfolded.
const patch = (old, now) => {
  if (old.nodeName !== now.nodeName) return old.replaceWith(now.cloneNode(true));
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== now.data) old.data = now.data; return; }
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = [...now.childNodes];
  wanted.forEach((child, i) => (old.childNodes[i] ? patch(old.childNodes[i], child) : old.append(child.cloneNode(true))));
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
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
let under_way = false;
const refresh = async () => {
  if (under_way || document.hidden) return;
  under_way = true;
  try {
    const answer = await fetch(at(location.pathname + location.search), { cache: "no-store", redirect: "manual" });
    if (answer.type === "opaqueredirect") return ended();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const now = page.getElementById("live");
    if (answer.ok && now) patch(live, now);
  } catch { /* The stream says that the service is away. */ } finally { under_way = false; }
};
if (live?.dataset.stream) {
  const stream = new EventSource(at(live.dataset.stream));
  stream.onmessage = () => { document.body.dataset.live = "yes"; refresh(); };
  stream.onerror = () => { document.body.dataset.live = "no"; if (stream.readyState === EventSource.CLOSED) refresh(); };
}

const line = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text, className: kind ?? "" });
const show = (...nodes) => said.replaceChildren(...nodes);
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

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-path]");
  if (!button) return;
  const { method, path, body, confirm: question, document: from, name, rows, next } = button.dataset;
  if (question && !confirm(question)) return;
  const asked = JSON.parse(body || "{}");
  if (from) asked.document = document.getElementById(from).value;
  if (name) asked.name = document.getElementById(name).value;
  if (rows && document.getElementById(rows).value.trim()) {
    try { asked.rows = JSON.parse(document.getElementById(rows).value); } catch (error) {
      return show(line("p", `records: expected a JSON list; ${error.message}`, "trouble"));
    }
  }
  show(line("p", "Asked…"));
  button.disabled = true;
  try {
    // The header is what other sites' pages cannot send: with it a page's password may change things.
    const headers = { "Content-Type": "application/json", "Tidemark-Console": "1" };
    const answer = await fetch(at(path), { method, headers, body: JSON.stringify(asked) });
    const found = await answer.json();
    tell(found);
    if (answer.ok && next) location.assign(found.next ?? next);
  } catch (error) {
    show(line("p", `The service does not answer: ${error.message}`, "trouble"));
  } finally { button.disabled = false; refresh(); }
});
