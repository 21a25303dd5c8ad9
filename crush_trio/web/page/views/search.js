// @ts-check
/** Search over the sessions and messages of the server. */

import { fill, h, showDialog } from "../dom.js";
import { ago } from "../format.js";
import { sessionAddress } from "../router.js";

const SHORT = "Two letters or more.";
const PAUSE = 180; // milliseconds after the last key

/** @param {import("../state/store.js").Store} store @param {import("../router.js").Router} router */
export function openSearch(store, router) {
  if (document.querySelector("dialog.search")) return;
  const field = h("input", { type: "text", role: "searchbox", placeholder: "Titles and messages", "aria-label": "Search", autocomplete: "off", "aria-controls": "hits" });
  const hits = h("ul.hits", { id: "hits" });
  const says = h("p.soft", { role: "status" }, SHORT);
  const dialog = showDialog("Search", [field, says, hits], { name: "search" });
  /** @type {AbortController | undefined} */ let asking;
  let timer = 0;
  const look = async () => {
    asking?.abort();
    const text = field.value.trim();
    if (text.length < 2) {
      says.textContent = SHORT;
      return fill(hits);
    }
    asking = new AbortController();
    try {
      const found = await store.api.search(text, asking.signal);
      says.textContent = found.length ? "" : "Nothing found.";
      fill(hits, ...found.map((/** @type {any} */ hit) => row(hit, store, text)));
    } catch (error) {
      if (!asking.signal.aborted) says.textContent = /** @type {Error} */ (error).message;
    }
  };
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(look, PAUSE);
  });
  dialog.addEventListener("keydown", (event) => {
    const links = /** @type {HTMLElement[]} */ ([...hits.querySelectorAll("a")]);
    const at = links.indexOf(/** @type {any} */ (document.activeElement));
    const to = event.key === "ArrowDown" ? at + 1 : event.key === "ArrowUp" ? at - 1 : NaN;
    if (Number.isNaN(to)) return;
    event.preventDefault();
    (links[to] ?? (to < 0 ? field : links.at(-1)))?.focus();
  });
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") /** @type {HTMLElement | null} */ (hits.querySelector("a"))?.click();
  });
  dialog.addEventListener("click", (event) => /** @type {Element} */ (event.target).closest("a") && dialog.close());
  field.focus();
}

/** @param {any} hit @param {import("../state/store.js").Store} store @param {string} text */
function row(hit, store, text) {
  const address = sessionAddress(hit.workspace_id, hit.session_id) + (hit.message_id ? `/m/${encodeURIComponent(hit.message_id)}` : "");
  const where = store.workspaces.get(hit.workspace_id)?.name ?? "";
  const facts = [where, hit.role, hit.at && ago(hit.at)].filter(Boolean).join(" · ");
  return h("li", {}, h("a", { href: address }, h("b", {}, hit.title || "Untitled"), h("span.soft", {}, facts), h("span.snippet", {}, ...marked(String(hit.snippet ?? ""), text))));
}

/** @param {string} snippet @param {string} text */
function marked(snippet, text) {
  const at = snippet.toLowerCase().indexOf(text.toLowerCase());
  if (at < 0) return [snippet];
  return [snippet.slice(0, at), h("mark", {}, snippet.slice(at, at + text.length)), snippet.slice(at + text.length)];
}
