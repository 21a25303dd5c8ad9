// @ts-check
/** All sessions of the server: who needs you, what is at work, what is idle. */

import { fill, h, icon } from "../dom.js";
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
  #all = false;

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
    /** @type {Element[]} */ const sections = [];
    for (const [group, name] of GROUPS) {
      const members = listed.filter((session) => session.group === group);
      if (!members.length) continue;
      const shown = group === "idle" && !this.#all ? members.slice(0, IDLE_SHOWN) : members;
      const more = shown.length < members.length && h("button.quiet", { type: "button", onclick: () => this.#showAll() }, `${members.length - shown.length} more`);
      const heading = h("h2", {}, name, h("span.count", {}, String(members.length)));
      sections.push(h("section", { class: `group ${group}`, "aria-label": name }, heading, h("ul", {}, ...shown.map((session) => this.#row(session))), more));
    }
    if (!listed.length && store.roster.known) sections.push(h("p.empty", {}, store.workspaces.size ? "No sessions yet." : "No directory is open."));
    if (store.mayManage) sections.push(...this.#directories());
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const inside = focused && this.contains(focused) ? focused : null;
    fill(this, store.mayAct && h("a.new-session", { href: "/" }, icon("add"), "New session", h("kbd", {}, "n")), ...sections);
    if (inside && this.contains(inside)) inside.focus({ preventScroll: true });
    for (const id of this.#rows.keys()) if (!store.sessions.has(id)) this.#rows.delete(id);
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
    const offered = [...own, ...others];
    if (!offered.length) return [];
    const rows = offered.map(({ path }) => {
      const link = h("a", { href: `/?dir=${encodeURIComponent(path)}`, title: path }, icon("folder"), h("span.title", {}, baseName(path)), h("span.facts", {}, path));
      return h("li.row.directory", {}, link);
    });
    const name = "Directories";
    return [h("section.group", { "aria-label": name }, h("h2", {}, name, h("span.count", {}, String(offered.length))), h("ul", {}, ...rows))];
  }
}

customElements.define("session-roster", SessionRoster);
