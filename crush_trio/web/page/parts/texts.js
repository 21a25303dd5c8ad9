// @ts-check
/** Rendered texts of finished messages: asked for once, when a message is first seen, and kept. */

import { NoAnswer } from "../state/api.js";
import { isFinished } from "../state/transcript.js";

const KEPT = 400;
const AT_ONCE = 4;
const AGAIN = 2_000; // milliseconds after an answer that did not come

/** @typedef {import("/web/stream.js").Message} Message */

export class Texts {
  /** The HTML of each part, by message. @type {Map<string, { at: number, parts: Map<number, string>, fresh: boolean }>} */ #known = new Map();
  /** @type {Map<string, Message>} */ #waiting = new Map();
  /** @type {Map<string, number>} */ #failed = new Map();
  #asking = 0;

  /** @param {import("../state/store.js").Store} store @param {() => void} changed */
  constructor(store, changed) {
    this.store = store;
    this.changed = changed;
  }

  /** The HTML of a part; undefined if it is not there yet, which asks for it. @param {Message} message @param {number} index */
  of(message, index) {
    const known = this.#known.get(message.id);
    if (known && known.at === message.updated_at) {
      known.fresh = false;
      this.#known.delete(message.id); // the newest last
      this.#known.set(message.id, known);
      return known.parts.get(index);
    }
    const failed = this.#failed.get(message.id);
    if (isFinished(message) && failed !== message.updated_at) {
      this.#waiting.set(message.id, message);
      this.#next();
    }
    return undefined;
  }

  /** Whether a rendered text of a message has come that was not shown. @param {Message} message */
  isFresh(message) {
    const ids = [message.id, ...message.parts.filter(({ type }) => type === "tool_call").map(({ data }) => data.id)];
    return ids.some((id) => this.#known.get(id)?.fresh || this.#results.has(id));
  }

  /** Tool calls whose results have been rendered since they were shown. */
  #results = new Set();

  /** @param {string} call */
  shown(call) {
    this.#results.delete(call);
  }

  #next() {
    for (const [id, message] of this.#waiting) {
      if (this.#asking >= AT_ONCE) return;
      this.#waiting.delete(id);
      this.#asking += 1;
      void this.#ask(message);
    }
  }

  /** @param {Message} message */
  async #ask(message) {
    try {
      const { parts } = await this.store.at.rendered(message.session_id, message.id);
      const html = new Map(parts.map((/** @type {any} */ part) => [part.index, part.html]));
      this.#known.set(message.id, { at: message.updated_at, parts: html, fresh: true });
      for (const part of message.parts) if (part.type === "tool_result") this.#results.add(part.data.tool_call_id);
      while (this.#known.size > KEPT) this.#known.delete(/** @type {string} */ (this.#known.keys().next().value));
      this.changed();
    } catch (error) {
      if (error instanceof NoAnswer) {
        this.#waiting.set(message.id, message); // the connection broke
        await new Promise((resolve) => setTimeout(resolve, AGAIN));
      } else this.#failed.set(message.id, message.updated_at); // it stays plain text
    }
    this.#asking -= 1;
    this.#next();
  }
}
