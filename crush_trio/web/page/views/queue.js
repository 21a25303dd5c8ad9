// @ts-check
/** The prompts that wait for the present run: edit, move, remove, send now. */

import { fill, h, iconButton } from "../dom.js";
import { firstLine, plural } from "../format.js";

export class QueueDock extends HTMLElement {
  #editing = "";

  /** @param {import("../state/store.js").Store} store @param {import("../notices.js").Notices} notices */
  constructor(store, notices) {
    super();
    this.store = store;
    this.notices = notices;
    this.setAttribute("role", "region");
    this.setAttribute("aria-label", "Queue");
    this.stop = store.on("queue place", () => this.#show());
    this.#show();
  }

  leave() {
    this.stop();
  }

  #show() {
    const { queue } = this.store;
    this.hidden = !queue.length;
    if (this.#editing && !queue.some(({ id }) => id === this.#editing)) this.#editing = "";
    if (this.#editing && this.querySelector("textarea")) return; // not under a person's hands
    const focus = /** @type {HTMLElement | null} */ (this.contains(document.activeElement) ? document.activeElement : null)?.dataset.focus;
    fill(this, h("h2", {}, plural(queue.length, "prompt"), " in the queue"), h("ol", {}, ...queue.map((item, at) => this.#item(item, at))));
    if (focus) /** @type {HTMLElement | null} */ (this.querySelector(`[data-focus="${CSS.escape(focus)}"]`))?.focus();
  }

  /** @param {any} item @param {number} at */
  #item(item, at) {
    if (item.id === this.#editing) return this.#form(item);
    const last = this.store.queue.length - 1;
    const named = (/** @type {string} */ name) => ({ "data-focus": `${item.id}/${name}` });
    const buttons = [
      at > 0 && iconButton("up", "Move up", () => this.#change(item, { index: at - 1 }), named("up")),
      at < last && iconButton("down", "Move down", () => this.#change(item, { index: at + 1 }), named("down")),
      iconButton("edit", "Edit", () => this.#edit(item), named("edit")),
      iconButton("now", "Send now: stops the present run", () => this.#sendNow(item), named("now")),
      iconButton("trash", "Remove", () => this.#ask(() => this.store.at.removeQueued(this.store.place.session, item.id)), named("remove")),
    ];
    return h("li", {}, h("span.queued", { title: item.prompt }, firstLine(item.prompt, 300)), h("span.buttons", {}, ...buttons));
  }

  /** @param {any} item */
  #form(item) {
    const text = h("textarea", { rows: 2, "aria-label": "Queued prompt", value: item.prompt });
    const end = () => {
      this.#editing = "";
      this.replaceChildren();
      this.#show();
    };
    const save = (/** @type {Event} */ event) => {
      event.preventDefault();
      const prompt = text.value.trim();
      end();
      if (prompt && prompt !== item.prompt) void this.#change(item, { prompt });
    };
    text.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey) save(event);
      if (event.key === "Escape") end();
    });
    return h("li", {}, h("form", { onsubmit: save }, text, h("span.buttons", {}, h("button.primary", {}, "Save"), h("button", { type: "button", onclick: end }, "Cancel"))));
  }

  /** @param {any} item */
  #edit(item) {
    this.#editing = item.id;
    this.#show();
    this.querySelector("textarea")?.focus();
  }

  /** @param {any} item @param {object} change */
  #change(item, change) {
    return this.#ask(() => this.store.at.changeQueued(this.store.place.session, item.id, change));
  }

  /** First in line, and the present run is stopped. @param {any} item */
  #sendNow(item) {
    return this.#ask(() => this.store.at.sendNow(this.store.place.session, item.id));
  }

  /** @param {() => Promise<any>} ask */
  async #ask(ask) {
    await ask().catch((error) => this.notices.fail(error));
    await this.store.readQueue();
  }
}

customElements.define("queue-dock", QueueDock);
