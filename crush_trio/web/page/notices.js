// @ts-check
/** What the page tells a person who may look elsewhere: short notices, the title, a badge, notifications. */

import { h, showDialog } from "./dom.js";

const SHOWN = 6_000; // milliseconds

export class Notices {
  element = h("div.notices", { role: "status", "aria-live": "polite" });
  /** Sessions that wanted a person when this was last looked at. */ #waiting = new Set();
  #first = true;

  /** @param {import("./state/store.js").Store} store */
  constructor(store) {
    this.store = store;
    store.on("roster place", () => this.#look());
  }

  /**
   * Say something for a moment. @param {string} text
   * @param {{ action?: string, onaction?: () => void, ms?: number, bad?: boolean }} [options] @returns {() => void} how to end it
   */
  say(text, { action, onaction, ms = SHOWN, bad = false } = {}) {
    const end = () => notice.remove();
    const act = () => {
      end();
      onaction?.();
    };
    const button = action && h("button", { type: "button", onclick: act }, action);
    const notice = h("div.notice", { class: bad ? "notice bad" : "notice" }, h("span", {}, text), button);
    this.element.append(notice);
    setTimeout(end, ms);
    return end;
  }

  /** Say what went wrong. @param {unknown} error */
  fail(error) {
    this.say(String(/** @type {any} */ (error)?.message ?? error), { bad: true, ms: 10_000 });
  }

  /** Ask the browser for notifications. */
  async allow() {
    const answer = await globalThis.Notification?.requestPermission();
    this.say(answer === "granted" ? "You will be told when a session needs you." : "The browser does not allow notifications.");
  }

  #look() {
    const { sessions, place, workspaces } = this.store;
    const waiting = [...sessions.values()].filter(({ group }) => group === "needs_you");
    const open = sessions.get(place.session);
    const name = open ? `${open.title || "Untitled"} · crush_trio` : "crush_trio";
    document.title = waiting.length ? `(${waiting.length}) ${name}` : name;
    const badge = waiting.length ? /** @type {any} */ (navigator).setAppBadge?.(waiting.length) : /** @type {any} */ (navigator).clearAppBadge?.();
    badge?.catch?.(() => {});
    for (const session of waiting) {
      const fresh = !this.#waiting.has(session.id) && !this.#first;
      if (!fresh || (session.id === place.session && !document.hidden)) continue;
      this.#tell(session, workspaces.get(session.workspace_id)?.name ?? "");
    }
    this.#waiting = new Set(waiting.map(({ id }) => id));
    if (this.store.roster.known) this.#first = false;
  }

  /** @param {import("./state/store.js").RosterSession} session @param {string} where */
  #tell(session, where) {
    const what = session.needs.includes("error") ? "A run has failed" : `A ${session.needs[0] ?? "person"} is needed`;
    const title = session.title || "Untitled";
    const show = () => this.onshow(session);
    if (!document.hidden) return this.say(`${what}: ${title}`, { action: "Show", onaction: show });
    if (globalThis.Notification?.permission !== "granted") return;
    try {
      const shown = new Notification(`${what}: ${title}`, { body: where, tag: session.id, icon: "/page/icon.svg" });
      shown.onclick = () => (focus(), show(), shown.close());
    } catch {} // browsers of phones have the name only; the title and the badge tell it
  }

  /** Copy a text; where the browser does not let the page, show it. @param {string} text @param {string} done what to say */
  async copy(text, done) {
    try {
      await navigator.clipboard.writeText(text); // without TLS only a page of this machine has a clipboard
      this.say(done);
    } catch {
      const field = h("textarea", { rows: 4, readonly: true, "aria-label": "Text to copy", value: text });
      showDialog("Copy this", [field], { name: "copy" });
      field.select();
    }
  }

  /** Show a session; the page sets it. @param {import("./state/store.js").RosterSession} _session */
  onshow(_session) {}
}
