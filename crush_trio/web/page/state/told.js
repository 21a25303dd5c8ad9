// @ts-check
/** State whose readers are told when a part of it changed. */

export class Told {
  /** @type {Map<string, Set<() => void>>} */ #listeners = new Map();
  /** @type {Set<string>} */ #changed = new Set();

  /** Call *listener* after a part changed; returns how to stop. @param {string} parts @param {() => void} listener */
  on(parts, listener) {
    const names = parts.split(" ");
    for (const name of names) this.#listeners.set(name, (this.#listeners.get(name) ?? new Set()).add(listener));
    return () => names.forEach((name) => this.#listeners.get(name)?.delete(listener));
  }

  /** Tell the listeners, once for all that changes in a frame of the screen. @param {string} part */
  changed(part) {
    if (!this.#changed.size) {
      if (document.hidden) setTimeout(() => this.#flush(), 100);
      else requestAnimationFrame(() => this.#flush());
    }
    this.#changed.add(part);
  }

  #flush() {
    const called = new Set();
    const parts = [...this.#changed];
    this.#changed.clear();
    for (const part of parts) {
      for (const listener of this.#listeners.get(part) ?? []) {
        if (called.has(listener)) continue;
        called.add(listener);
        listener();
      }
    }
  }
}
