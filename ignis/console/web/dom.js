// Makes elements, says what happened, and asks. Text is always set as text: nothing that a message holds is ever read as markup.

import { visible } from "./visible.js";

export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : name === "title" || name === "aria-label" ? visible(String(value)) : value);
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false)
    .map((one) => (typeof one === "string" ? visible(one) : one)));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Fills a box by what is known, and leaves it alone while that is the same: a button under somebody's finger stays there.
export function refill(box, known, make) {
  const now = JSON.stringify(known);
  if (box.known === now) return;
  box.known = now;
  const held = document.activeElement;
  const places = () => [...box.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];
  const place = box.contains(held) ? places().indexOf(held) : -1;
  box.replaceChildren(...[make()].flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  if (place >= 0) places()[place]?.focus({ preventScroll: true });
}

export function say(text, error = false) {
  const line = h("div", { class: error ? "error" : "" }, text);
  const said = document.getElementById("said");
  said.append(line);
  while (said.children.length > 4) said.firstChild.remove();
  setTimeout(() => line.remove(), error ? 12000 : 6000);
}

// A dialog. Without a label there is nothing to do in it but to close it. What goes wrong is said in it, above its buttons, and it
// stays with what was typed, as where done answers false. `then` is after it was closed: what fails there undoes nothing.
export function ask(title, content, label, kind, done, then) {
  const dialog = document.getElementById("ask");
  const note = h("div", { class: "ask-note" });
  const tell = (text, error = false) => note.replaceChildren(h("p", { class: error ? "error" : "", role: error ? "alert" : "status" }, text));
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      const button = event.submitter;
      if (button) button.disabled = true;
      note.replaceChildren();
      try {
        if ((await done(new FormData(form), tell)) === false) return;
      } catch (error) {
        tell(error.message, true);
        return;
      } finally {
        if (button) button.disabled = false;
      }
      if (form.isConnected) dialog.close();
      try {
        await then?.();
      } catch (error) {
        say(error.message, true);
      }
    },
  },
    h("h2", { id: "ask-title" }, title),
    h("div", { class: "ask-content" }, content),
    note,
    h("div", { class: "ask-end" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
      label ? h("button", { class: kind, type: "submit" }, label) : null));
  dialog.classList.toggle("large", !label);
  dialog.replaceChildren(form);
  dialog.showModal();
}
