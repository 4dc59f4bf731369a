// Parts of the page: elements made, drawn anew when they have changed, tables, and what the words for states mean.

import { count } from "./words.js";

export const STATES = {
  busy: "good", idle: "warn", waiting: "warn", silent: "bad", gone: "warn",
  running: "good", uploading: "good", proving: "good", complete: "good", paused: "warn", stalled: "bad", cancelled: "warn",
};

export const OVER = ["complete", "cancelled"];

export const byId = (id) => document.getElementById(id);
const shown = new Map();

export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  if (options.cls) element.className = options.cls;
  if (options.text !== undefined) element.textContent = options.text;
  for (const [name, value] of Object.entries(options.attrs ?? {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Draws a part anew only if what it shows has changed, so that focus and selections stay.
export function part(id, value, draw) {
  const key = JSON.stringify(value);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  draw(byId(id), value);
}

export function table(id, caption, head, rows) {
  part(id, [caption, head, rows], (element) => {
    const top = make("tr", {}, ...head.map((cell) => make("th", { text: cell, cls: cell === "waits for" ? "long" : "", attrs: { scope: "col" } })));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell) => (cell instanceof Object
      ? make("td", { cls: cell.cls }, ...(cell.chip ? [make("span", { cls: `chip ${cell.verdict}`, text: cell.chip })] : [cell.text]))
      : make("td", { text: cell })))));
    element.replaceChildren(make("caption", { text: caption }), make("thead", {}, top), make("tbody", {}, ...body));
  });
}

export function more(number) {
  return number ? `; and ${count(number)} more` : "";
}
