// @ts-check
/**
 * The pages of this server that are open in this browser. A browser opens six connections to a server, and a stream
 * needs one as long as it lasts: with six streams nothing else would be answered. So only the pages that were used
 * last have a stream; another one pauses until a person comes back to it.
 */

import { newId } from "/web/requests.js";

const STREAMING = 4;

class OpenPages {
  #id = newId();
  /** The pages that were used after this one. @type {Set<string>} */ #later = new Set();
  /** @type {Set<() => void>} */ #listeners = new Set();
  #channel = globalThis.BroadcastChannel ? new BroadcastChannel("crush_trio.pages") : null;

  constructor() {
    this.#channel?.addEventListener("message", ({ data }) => this.#heard(data));
    for (const name of ["focus", "pointerdown", "keydown", "pageshow"]) addEventListener(name, () => this.#use(), { capture: true });
    document.addEventListener("visibilitychange", () => document.hidden || this.#use());
    addEventListener("pagehide", () => this.#channel?.postMessage({ id: this.#id, closed: true }));
    this.#channel?.postMessage({ id: this.#id });
  }

  /** Whether this page has to wait. */
  get crowded() {
    return this.#later.size >= STREAMING;
  }

  /** Call *listener* when `crowded` may have changed; returns how to stop. @param {() => void} listener */
  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Wait until there is room, or until *signal*. @param {AbortSignal} signal @returns {Promise<void>} */
  async room(signal) {
    while (this.crowded && !signal.aborted) {
      await new Promise((resolve) => {
        const stop = this.on(() => (stop(), resolve(undefined)));
        signal.addEventListener("abort", () => (stop(), resolve(undefined)), { once: true });
      });
    }
  }

  /** This page is used now: it comes first. */
  #use() {
    if (!this.#later.size) return;
    this.#later.clear();
    this.#channel?.postMessage({ id: this.#id });
    this.#tell();
  }

  /** @param {{ id: string, closed?: boolean }} page */
  #heard({ id, closed }) {
    if (closed) this.#later.delete(id);
    else this.#later.add(id);
    this.#tell();
  }

  #tell() {
    for (const listener of [...this.#listeners]) listener();
  }
}

export const openPages = new OpenPages();
