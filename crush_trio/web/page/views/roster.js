// @ts-check
/** All sessions of the server: who needs you, what is at work, what is idle. */

import { arrange, fill, h, icon } from "../dom.js";
import { ago, baseName, dollars, elapsed } from "../format.js";
import { sessionAddress } from "../router.js";

const GROUPS = /** @type {const} */ ([
  ["needs_you", "Needs you"],
  ["working", "Working"],
  ["idle", "Idle"],
]);
const NEEDS = /** @type {Record<string, string>} */ ({ permission: "Permission", question: "Question", error: "Failed" });
const IDLE_SHOWN = 60;

export class SessionRoster extends HTMLElement {
  /** @type {Map<string, { key: string, element: HTMLElement }>} */ #rows = new Map();
  /** @type {Map<string, Record<"section" | "count" | "list" | "more", HTMLElement>>} */ #groups = new Map();
  #all = false;
  /** @type {Element | undefined} */ #fresh;
  #empty = h("p.empty", { hidden: true }, "No sessions yet. What you send begins one.");
  #places = h("section.group", { "aria-label": "Directories" });
  #placesKey = "";

  /** @param {import("../state/store.js").Store} store @param {import("../router.js").Router} router */
  setUp(store, router) {
    this.store = store;
    this.router = router;
    this.setAttribute("role", "navigation");
    this.setAttribute("aria-label", "Sessions");
    store.on("roster place", () => this.#show());
    setInterval(() => document.hidden || this.#show(), 1000);
  }

  connectedCallback() {
    this.#show();
  }

  /** The sessions in the order in which they are shown. */
  get listed() {
    const { sessions, leaving } = this.#store;
    const all = [...sessions.values()].filter(({ id }) => !leaving.has(id));
    const newest = all.sort((a, b) => b.updated_at - a.updated_at || (a.id < b.id ? -1 : 1));
    return GROUPS.flatMap(([group]) => newest.filter((session) => session.group === group));
  }

  get #store() {
    return /** @type {import("../state/store.js").Store} */ (this.store);
  }

  /** Go to the next session, or the one before. @param {number} by */
  step(by) {
    const listed = this.listed;
    const at = listed.findIndex(({ id }) => id === this.#store.place.session);
    const next = listed[at < 0 ? 0 : Math.min(listed.length - 1, Math.max(0, at + by))];
    if (next) this.router?.go(sessionAddress(next.workspace_id, next.id));
  }

  stepToNeeds() {
    const needs = this.listed.filter(({ group }) => group === "needs_you");
    const at = needs.findIndex(({ id }) => id === this.#store.place.session);
    const next = needs[(at + 1) % needs.length];
    if (next) this.router?.go(sessionAddress(next.workspace_id, next.id));
  }

  #show() {
    const store = this.#store;
    const listed = this.listed;
    const groups = GROUPS.map(([group, name]) => this.#group(group, name, listed.filter((session) => session.group === group)));
    this.#empty.hidden = listed.length > 0 || !store.roster.known;
    if (store.mayAct) this.#fresh ??= h("a.new-session", { href: "/" }, icon("add"), "New session", h("kbd", {}, "n"));
    arrange(this, [this.#fresh, ...groups, this.#empty, store.mayManage && this.#directories()].filter((each) => each instanceof Element));
    for (const id of this.#rows.keys()) if (!store.sessions.has(id)) this.#rows.delete(id);
  }

  /** @param {string} group @param {string} name @param {import("../state/store.js").RosterSession[]} members */
  #group(group, name, members) {
    if (!members.length) return null;
    let known = this.#groups.get(group);
    if (!known) {
      const count = h("span.count");
      const list = h("ul");
      const more = h("button.quiet", { type: "button", onclick: () => this.#showAll() });
      const section = h("section", { class: `group ${group}`, "aria-label": name }, h("h2", {}, name, count), list, more);
      known = { section, count, list, more };
      this.#groups.set(group, known);
    }
    const shown = group === "idle" && !this.#all ? members.slice(0, IDLE_SHOWN) : members;
    const rest = members.length - shown.length;
    write(known.count, String(members.length));
    known.more.hidden = !rest;
    write(known.more, `${rest} more`);
    arrange(known.list, shown.map((session) => this.#row(session)));
    return known.section;
  }

  #showAll() {
    this.#all = true;
    this.#show();
  }

  /** The row of a session; it is made again only if it looks different. @param {import("../state/store.js").RosterSession} session */
  #row(session) {
    const store = this.#store;
    const here = session.id === store.place.session;
    const where = store.workspaces.get(session.workspace_id)?.name ?? "";
    const time = session.run?.started_at ? elapsed(session.run.started_at) : ago(session.updated_at);
    const needs = session.needs.map((need) => NEEDS[need] ?? need).join(", ");
    const facts = [where, session.model?.model, time, dollars(session.cost), session.queue && `${session.queue} queued`];
    const key = JSON.stringify([session.title, session.group, needs, facts, here]);
    const known = this.#rows.get(session.id);
    if (known?.key === key) return known.element;
    const link = h(
      "a",
      { href: sessionAddress(session.workspace_id, session.id), "aria-current": here && "page", title: session.title },
      h("span.dot", { "aria-hidden": "true" }),
      h("span.title", {}, session.title || "Untitled"),
      needs && h("span.needs", {}, needs),
      h("span.facts", {}, facts.filter(Boolean).join(" · ")),
    );
    if (known) {
      // The link stays the same element, so that the focus does not move.
      const former = /** @type {HTMLElement} */ (known.element.firstElementChild);
      former.replaceChildren(...link.childNodes);
      for (const name of ["href", "title"]) former.setAttribute(name, link.getAttribute(name) ?? "");
      if (here) former.setAttribute("aria-current", "page");
      else former.removeAttribute("aria-current");
      known.key = key;
      known.element.className = `row ${session.group}`;
      return known.element;
    }
    const element = h("li", { class: `row ${session.group}` }, link);
    this.#rows.set(session.id, { key, element });
    return element;
  }

  #directories() {
    const store = this.#store;
    const hosted = new Set([...store.workspaces.values()].map(({ path }) => path));
    const own = store.roster.directory && !hosted.has(store.roster.directory) ? [{ path: store.roster.directory }] : [];
    const others = store.roster.recent.filter(({ path }) => !hosted.has(path) && path !== store.roster.directory);
    const offered = [...own, ...others].map(({ path }) => path);
    const key = JSON.stringify(offered);
    if (key !== this.#placesKey) {
      this.#placesKey = key;
      const rows = offered.map((path) => {
        const link = h("a", { href: `/?dir=${encodeURIComponent(path)}`, title: path }, icon("folder"), h("span.title", {}, baseName(path)), h("span.facts", {}, path));
        return h("li.row.directory", {}, link);
      });
      fill(this.#places, h("h2", {}, "Directories", h("span.count", {}, String(offered.length))), h("ul", {}, ...rows));
    }
    return offered.length ? this.#places : null;
  }
}

/** Change a text only if it differs. @param {Element} element @param {string} text */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

customElements.define("session-roster", SessionRoster);
