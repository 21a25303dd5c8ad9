// @ts-check
/** A diff that the server rendered, unified or side by side as the reader likes it. */

import { h } from "../dom.js";
import { rendered } from "../rendered.js";

const CHOICE = "crush_trio.diff";

/** Whether diffs are shown side by side: as chosen; on narrow screens never. */
const isSplit = () => (localStorage.getItem(CHOICE) ?? "unified") === "split";

/** @param {string} html @param {{ changed?: () => void }} [_context] */
export function diffView(html, _context) {
  const frame = h("div.diff-frame", { class: isSplit() ? "diff-frame split" : "diff-frame" });
  const choose = () => {
    localStorage.setItem(CHOICE, isSplit() ? "unified" : "split");
    for (const each of document.querySelectorAll(".diff-frame")) each.classList.toggle("split", isSplit());
    for (const each of document.querySelectorAll(".diff-choice")) name(each);
  };
  const name = (/** @type {Element} */ button) => (button.textContent = isSplit() ? "Unified" : "Side by side");
  const button = h("button.diff-choice.quiet", { type: "button", onclick: choose });
  name(button);
  frame.append(button, h("div.diff-scroll", { tabindex: 0, role: "region", "aria-label": "Changes" }, rendered(html)));
  return frame;
}
