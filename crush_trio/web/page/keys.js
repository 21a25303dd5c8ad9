// @ts-check
/** Keys that work wherever no field has the focus, and the sheet that lists them. */

import { h, showDialog } from "./dom.js";

export class Keys {
  /** @type {Map<string, { says: string, act: (event: KeyboardEvent) => void }>} */ #bound = new Map();

  constructor() {
    document.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** Bind a key; returns how to release it. @param {string} key @param {string} says @param {(event: KeyboardEvent) => void} act */
  bind(key, says, act) {
    const entry = { says, act };
    this.#bound.set(key, entry);
    return () => this.#bound.get(key) === entry && this.#bound.delete(key);
  }

  get list() {
    return [...this.#bound].map(([key, { says }]) => ({ key, says }));
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey) {
      if (event.key.toLowerCase() !== "k") return;
      event.preventDefault();
      return this.#bound.get("/")?.act(event);
    }
    if (event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
    if (target.closest?.("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const entry = this.#bound.get(event.key);
    if (!entry) return;
    event.preventDefault();
    entry.act(event);
  }
}

const ALWAYS = [
  { key: "Enter", says: "Send the prompt (Shift+Enter: a new line)" },
  { key: "Ctrl+K", says: "Search, also from a field" },
  { key: "Tab", says: "To the next button or link" },
  { key: "Esc", says: "Leave a field, close a dialog" },
];

/** @param {Keys} keys */
export function showKeys(keys) {
  const rows = [...ALWAYS, ...keys.list].map(({ key, says }) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, says)));
  showDialog("Keys", [h("dl.keys", {}, ...rows)], { name: "keys-sheet" });
}
