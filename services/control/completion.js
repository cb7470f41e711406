// Proposals for the document that is edited: REST gives them for the text around the cursor. Below the field, so that they fit a phone.
"use strict";
const editor = document.getElementById("document");
const list = document.getElementById("proposals");

const completing = () => {
  const heard = document.getElementById("heard");
  const SHOWN = 8; // As many as fit without a scroll bar, which keys would not reach.
  const PAUSE_MS = 120;
  let found = { before: "", after: "", proposals: [] };
  let active = -1;
  let asked = 0;
  let pause = 0;

  const close = () => {
    asked += 1; // What is still asked is of a place that was left.
    found = { ...found, proposals: [] };
    draw(-1);
  };

  const draw = (at) => {
    active = at;
    const first = Math.max(0, Math.min(at - SHOWN + 1, found.proposals.length - SHOWN));
    list.replaceChildren(...found.proposals.slice(first, first + SHOWN).map((each, i) => {
      const place = first + i;
      const option = line("div", "", "proposal");
      option.append(line("span", each.label), " ", line("span", each.detail, "hint"));
      option.id = `proposal-${place}`;
      option.dataset.place = place;
      const said = { role: "option", "aria-selected": place === at, "aria-posinset": place + 1, "aria-setsize": found.proposals.length };
      for (const [name, value] of Object.entries(said)) option.setAttribute(name, value);
      return option;
    }));
    list.hidden = found.proposals.length === 0;
    if (at >= 0) editor.setAttribute("aria-activedescendant", `proposal-${at}`);
    else editor.removeAttribute("aria-activedescendant");
  };

  const propose = async (aloud) => {
    const turn = (asked += 1);
    const cursor = editor.selectionStart;
    const body = JSON.stringify({ before: editor.value.slice(0, cursor), after: editor.value.slice(cursor) });
    const headers = { "Content-Type": "application/json", "Tidemark-Console": "1" };
    try {
      const answer = await fetch(at("/v1/complete"), { method: "POST", headers, body });
      const given = await answer.json();
      if (turn !== asked) return; // Written on meanwhile.
      found = answer.ok ? given : { before: "", after: "", proposals: [] };
      draw(-1);
      const count = found.proposals.length;
      if (aloud || count) heard.textContent = count ? `${count} proposals: ${found.proposals[0].label}` : "No proposals";
      if (!answer.ok) heard.textContent = given.error?.finding ?? "";
    } catch (error) {
      heard.textContent = `The service does not answer: ${error.message}`;
    }
  };

  const take = (place) => {
    const { insert, back } = found.proposals[place];
    const begin = editor.selectionStart - found.before.length;
    editor.focus();
    editor.setSelectionRange(begin, editor.selectionStart + found.after.length);
    // The one way that lets an undo take it back; where a browser has lost it, the text is set.
    if (!document.execCommand("insertText", false, insert)) editor.setRangeText(insert);
    const cursor = begin + insert.length - back;
    editor.setSelectionRange(cursor, cursor);
    close();
    clearTimeout(pause);
    if (back) propose(false); // Inside of what was opened.
  };

  editor.addEventListener("input", (event) => {
    close();
    clearTimeout(pause);
    if (event.inputType === "insertText" && /[\w$".]/.test(event.data ?? "")) pause = setTimeout(propose, PAUSE_MS, false);
  });
  editor.addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.code === "Space") {
      event.preventDefault();
      return propose(true);
    }
    const count = found.proposals.length;
    if (!count || event.isComposing) return;
    if (event.key === "ArrowDown") draw((active + 1) % count);
    else if (event.key === "ArrowUp" && active >= 0) draw((active + count - 1) % count);
    else if (event.key === "Enter" && active >= 0) take(active);
    else if (event.key === "Escape") close();
    else if (["ArrowLeft", "ArrowRight", "ArrowUp", "Home", "End"].includes(event.key)) return close();
    else return;
    event.preventDefault();
  });
  editor.addEventListener("blur", close);
  editor.addEventListener("click", close);
  // A press would take the focus, and with it the cursor.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[data-place]");
    if (option) take(Number(option.dataset.place));
  });
};

if (editor && list) completing();
