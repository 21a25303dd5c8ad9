// @ts-check
/** Making elements. Everything given as a child becomes text; only `rendered.js` parses HTML. */

/** @typedef {Node | string | number | false | null | undefined} Child */

/**
 * Make an element: `h("button.primary", { type: "button", onclick }, "Send")`. A property whose name begins with
 * "on" is a listener; true is an attribute without a value; false, null and undefined leave it out.
 * @param {string} what the tag, and its classes after dots
 * @param {Record<string, any>} [attributes] @param {...(Child | Child[])} children @returns {any}
 */
export function h(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") /** @type {any} */ (element).value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  put(element, ...children);
  return element;
}

/** Append children; text stays text. @param {Element} element @param {...(Child | Child[])} children */
export function put(element, ...children) {
  for (const child of children.flat()) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replace the children. @param {Element} element @param {...(Child | Child[])} children */
export function fill(element, ...children) {
  element.replaceChildren();
  put(element, ...children);
}

/**
 * Make *wanted* the children. Those that stay are not taken out, so they keep the focus, a click that has begun,
 * and their animations. @param {Element} element @param {Element[]} wanted
 */
export function arrange(element, wanted) {
  const kept = new Set(wanted);
  for (const child of [...element.children]) if (!kept.has(child)) child.remove();
  let next = element.firstElementChild;
  for (const child of wanted) {
    if (child === next) next = child.nextElementSibling;
    else element.insertBefore(child, next);
  }
}

const SVG = "http://www.w3.org/2000/svg";

/** Make an SVG element. @param {string} tag @param {Record<string, any>} attributes @param {...Child} children @returns {any} */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined) element.setAttribute(name, String(value));
  }
  put(element, ...children);
  return element;
}

/** The strokes of each icon, on a field of 16 by 16. */
const ICONS = {
  back: "M10 3 5 8l5 5",
  close: "m4 4 8 8m0-8-8 8",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Zm3.5-1.5L14 14",
  add: "M8 3v10M3 8h10",
  send: "M8 13V3M4 7l4-4 4 4",
  stop: "M4.5 4.5h7v7h-7z",
  clip: "M13 7.5 8 12.5a3.2 3.2 0 0 1-4.5-4.5l5-5a2.1 2.1 0 0 1 3 3l-5 5a1 1 0 0 1-1.5-1.5L9.500 5",
  more: "M3 7.500v1M8 7.500v1M13 7.500v1",
  up: "m4 9 4-4 4 4",
  down: "m4 7 4 4 4-4",
  edit: "m3 13 .8-3L11 2.800 13.200 5 6 12.200 3 13Z",
  trash: "M3 4.500h10M6.500 4V2.500h3V4M4.500 4.500l.6 9h5.800l.6-9",
  link: "M7 9a3 3 0 0 0 4.200.3l2-2A3 3 0 0 0 9 3l-1 1M9 7a3 3 0 0 0-4.200-.3l-2 2A3 3 0 0 0 7 13l1-1",
  chart: "M3 13V8M8 13V3M13 13V6",
  help: "M6 6a2 2 0 1 1 2.800 1.900c-.6.3-.8.7-.8 1.600M8 12.500h.01",
  folder: "M2 4.500v8h12v-7H8L6.500 3.500H2Z",
  check: "m3 8.500 3.500 3.500L13 4.500",
  theme: "M8 2a6 6 0 1 0 6 6A4.500 4.500 0 0 1 8 2Z",
  now: "m3 3 5 5-5 5m5-10 5 5-5 5",
};

/** An icon; it has no name of its own, so its button needs one. @param {keyof typeof ICONS} name */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}

/**
 * A button with an icon and a name for everybody. @param {keyof typeof ICONS} name @param {string} label
 * @param {(event: any) => void} onclick @param {Record<string, any>} [more]
 */
export function iconButton(name, label, onclick, more = {}) {
  return h("button.icon-button", { type: "button", "aria-label": label, title: label, onclick, ...more }, icon(name));
}

/**
 * Show a dialog and return it; it leaves the document when it closes.
 * @param {string} title @param {Child[]} children @param {{ name?: string }} [options] @returns {HTMLDialogElement}
 */
export function showDialog(title, children, { name = "" } = {}) {
  const heading = h("h2", { id: `dialog-${name || "title"}` }, title);
  const close = iconButton("close", "Close", () => dialog.close());
  const dialog = h("dialog", { class: name, "aria-labelledby": heading.id }, h("header", {}, heading, close), ...children);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
