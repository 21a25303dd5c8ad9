// @ts-check
/**
 * A list of rows of unknown heights, of which only those near the screen are in the document. Rows keep their place
 * on the screen when others above them change; at the end of the list, the end stays in view.
 */

import { h } from "../dom.js";

const GUESS = 96; // the height of a row that was never measured
const AHEAD = 900; // pixels above and below the screen that are in the document, too
const NEAR_END = 40;

/**
 * @typedef {{ element: HTMLElement, update: () => void, leave?: () => void }} Row
 * @typedef {{ keys: () => string[], make: (key: string) => Row, top?: () => void, label: string }} Source
 */

export class RowList extends HTMLElement {
  /** @type {Map<string, number>} */ #heights = new Map();
  /** @type {Map<string, Row>} */ #rows = new Map();
  /** @type {string[]} */ #keys = [];
  /** Whether the end stays in view. */ following = true;
  /** The key of a row to show, until the person scrolls. */ #wanted = "";
  #above = h("div.spacer");
  #inside = h("div.rows");
  #below = h("div.spacer");
  #drawing = false;
  #last = 0;
  #sizes = new ResizeObserver((entries) => this.#measured(entries));

  /** @param {Source} source */
  constructor(source) {
    super();
    this.source = source;
    this.tabIndex = 0;
    this.setAttribute("role", "feed");
    this.setAttribute("aria-label", source.label);
    this.append(this.#above, this.#inside, this.#below);
    this.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    for (const name of ["wheel", "touchmove", "keydown"]) this.addEventListener(name, () => (this.#wanted = ""), { passive: true });
    this.addEventListener("click", (event) => {
      if (/** @type {Element} */ (event.target).closest("summary")) this.following = false; // what is opened stays where it is
    });
    this.#sizes.observe(this);
  }

  leave() {
    this.#sizes.disconnect();
    for (const row of this.#rows.values()) row.leave?.();
  }

  /** How many rows are in the document. */
  get drawn() {
    return this.#rows.size;
  }

  /** The content changed. */
  update() {
    this.#draw();
  }

  toEnd() {
    this.following = true;
    this.#wanted = "";
    this.#draw();
  }

  /** Bring a row into view. @param {string} key */
  show(key) {
    this.following = false;
    this.#wanted = key;
    this.#draw();
  }

  /** The key of the first row on the screen, and how far its top is from the top of the list. */
  #anchor() {
    const top = this.getBoundingClientRect().top;
    for (const [key, row] of this.#rows) {
      const box = row.element.getBoundingClientRect();
      if (box.bottom > top + 1) return { key, at: box.top - top };
    }
    return null;
  }

  #height(/** @type {string} */ key) {
    return this.#heights.get(key) ?? GUESS;
  }

  #scrolled() {
    const fromEnd = this.scrollHeight - this.scrollTop - this.clientHeight;
    if (!this.#drawing) {
      if (fromEnd < NEAR_END) this.following = true;
      else if (this.scrollTop < this.#last - 1) this.following = false; // a person has scrolled back
    }
    this.#last = this.scrollTop;
    if (this.scrollTop < AHEAD) this.source.top?.();
    this.#draw(false);
    this.dispatchEvent(new CustomEvent("moved"));
  }

  /** @param {ResizeObserverEntry[]} entries */
  #measured(entries) {
    let changed = false;
    for (const { target } of entries) {
      const key = /** @type {HTMLElement} */ (target).dataset.key;
      const height = target.getBoundingClientRect().height;
      if (key === undefined) changed = true; // the list itself
      else if (height && this.#heights.get(key) !== height) {
        this.#heights.set(key, height);
        changed = true;
      }
    }
    if (changed) this.#draw(false);
  }

  /** @param {boolean} [fresh] whether rows may look different */
  #draw(fresh = true) {
    if (this.#drawing || !this.isConnected) return;
    this.#drawing = true;
    try {
      this.#drawn(fresh);
    } finally {
      this.#drawing = false;
    }
  }

  /** @param {boolean} fresh */
  #drawn(fresh) {
    const box = /** @type {HTMLElement} */ (this);
    const anchor = this.following || this.#wanted ? null : this.#anchor();
    if (fresh) this.#keys = this.source.keys();
    const keys = this.#keys;
    const offsets = new Float64Array(keys.length + 1);
    for (let at = 0; at < keys.length; at += 1) offsets[at + 1] = offsets[at] + this.#height(keys[at]);
    const total = offsets[keys.length];
    let top = box.scrollTop;
    if (this.following) top = total;
    else if (this.#wanted) top = offsets[Math.max(0, keys.indexOf(this.#wanted))] - 16;
    else if (anchor && keys.includes(anchor.key)) top = offsets[keys.indexOf(anchor.key)] - anchor.at;
    const seen = this.clientHeight;
    top = Math.max(0, Math.min(top, total - seen));
    const first = Math.max(0, below(offsets, top - AHEAD));
    const last = Math.min(keys.length, below(offsets, top + seen + AHEAD) + 1);
    this.#place(keys.slice(first, last), first, fresh);
    this.#above.style.height = `${offsets[first]}px`;
    this.#below.style.height = `${total - offsets[last]}px`;
    if (this.following) box.scrollTop = box.scrollHeight;
    else if (this.#wanted || anchor) {
      const row = this.#rows.get(this.#wanted || /** @type {any} */ (anchor).key);
      const goal = this.#wanted ? 16 : /** @type {any} */ (anchor).at;
      if (row) {
        const off = row.element.getBoundingClientRect().top - this.getBoundingClientRect().top - goal;
        if (Math.abs(off) > 0.5) box.scrollTop += off;
      }
    }
  }

  /** Put exactly these rows into the document. @param {string[]} keys @param {number} first @param {boolean} fresh */
  #place(keys, first, fresh) {
    /** @type {Map<string, Row>} */ const rows = new Map();
    let before = this.#inside.firstElementChild;
    keys.forEach((key, at) => {
      let row = this.#rows.get(key);
      if (!row) {
        row = this.source.make(key);
        row.element.dataset.key = key;
        this.#sizes.observe(row.element);
      } else if (fresh) row.update();
      row.element.setAttribute("aria-posinset", String(first + at + 1));
      row.element.setAttribute("aria-setsize", String(this.#keys.length));
      rows.set(key, row);
      if (row.element === before) before = before.nextElementSibling;
      else this.#inside.insertBefore(row.element, before);
    });
    for (const [key, row] of this.#rows) {
      if (rows.has(key)) continue;
      if (row.element.contains(document.activeElement)) this.focus({ preventScroll: true });
      this.#sizes.unobserve(row.element);
      row.leave?.();
      row.element.remove();
    }
    this.#rows = rows;
  }
}

/** The index of the row at *position*. @param {Float64Array} offsets @param {number} position */
function below(offsets, position) {
  let [low, high] = [0, offsets.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= position) low = middle;
    else high = middle - 1;
  }
  return low;
}

customElements.define("row-list", RowList);
