// @ts-check
/** What waits for a person: permissions with what would be done, questions as forms. */

import { fill, h } from "../dom.js";
import { shortPath, visible } from "../format.js";
import { diffView } from "../parts/diff.js";
import { callArguments, callTitle } from "../parts/tool.js";
import { questionForm } from "./questions.js";

export class AskDock extends HTMLElement {
  /** @type {Map<string, HTMLElement>} */ #cards = new Map();

  /** @param {import("../state/store.js").Store} store @param {import("../notices.js").Notices} notices */
  constructor(store, notices) {
    super();
    this.store = store;
    this.notices = notices;
    this.setAttribute("role", "region");
    this.setAttribute("aria-label", "Waiting for you");
    this.told = h("p.hidden", { role: "status" });
    this.stop = store.on("asks messages place", () => this.#show());
    this.#show();
  }

  leave() {
    this.stop();
  }

  /** @param {import("../keys.js").Keys} keys */
  bind(keys) {
    const press = (/** @type {string} */ name) => () => /** @type {HTMLElement | null} */ (this.querySelector(`button[data-answer="${name}"]`))?.click();
    return [
      keys.bind("a", "Allow once", press("once")),
      keys.bind("A", "Allow for the session", press("session")),
      keys.bind("d", "Deny", press("deny")),
    ];
  }

  #show() {
    const { store } = this;
    const asks = [
      ...[...store.picture.permissions.values()].map((ask) => ({ ask, make: () => this.#permission(ask) })),
      ...[...store.picture.questions.values()].map((ask) => ({ ask, make: () => questionForm(store, this.notices, ask) })),
    ].filter(({ ask }) => store.isHere(ask));
    const wanted = new Set(asks.map(({ ask }) => ask.id));
    for (const [id, card] of this.#cards) {
      if (wanted.has(id)) continue;
      card.remove();
      this.#cards.delete(id);
    }
    for (const { ask, make } of asks) {
      if (this.#cards.has(ask.id)) continue;
      const card = make();
      this.#cards.set(ask.id, card);
      this.append(card);
      this.told.textContent = `Waiting for you: ${card.querySelector("h2")?.textContent}`;
    }
    if (!asks.length) this.told.textContent = "";
    this.hidden = !asks.length;
    this.classList.toggle("several", asks.length > 1);
  }

  /** @param {import("/web/stream.js").PermissionRequest} ask */
  #permission(ask) {
    const { store } = this;
    const params = /** @type {any} */ (ask.params) ?? {};
    const { verb, subject } = callTitle(ask.tool_name, params, store.directory);
    const from = ask.session_id !== store.place.session && h("p.soft", {}, "Asked by a sub-agent");
    const title = h("h2", { id: `ask-${ask.id}` }, ask.tool_name === "bash" ? "Run this command?" : `${visible(ask.description) || `${verb} ${subject}`}?`);
    const card = h("section.ask", { "aria-labelledby": title.id, tabindex: -1 }, title, from, this.#content(ask, params));
    if (store.mayAct) card.append(this.#answers(ask));
    return card;
  }

  /** What would be done. @param {import("/web/stream.js").PermissionRequest} ask @param {any} params */
  #content(ask, params) {
    const body = h("div.ask-body", { tabindex: 0, role: "group", "aria-label": "What would be done" });
    if (typeof params.new_content === "string") {
      const path = String(params.file_path ?? ask.path);
      const short = shortPath(path, this.store.directory);
      const where = !ask.description.includes(short) && h("p.path", {}, visible(short));
      fill(body, where, h("pre.output", {}, visible(params.new_content)));
      const what = { path, old: String(params.old_content ?? ""), new: params.new_content };
      this.store.api.renderDiff(what).then(
        ({ html }) => fill(body, where, diffView(html)),
        () => {}, // the text is shown
      );
    } else fill(body, callArguments(ask.tool_name, params), ask.path && ask.path !== this.store.directory && h("p.soft", {}, `In ${visible(ask.path)}`));
    return body;
  }

  /** @param {import("/web/stream.js").PermissionRequest} ask */
  #answers(ask) {
    const reason = h("input", { type: "text", placeholder: "Reason (optional)", "aria-label": "Reason for the refusal", maxlength: 2000 });
    const button = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ kind, /** @type {object} */ answer, /** @type {string} */ key) =>
      h("button", { type: "button", class: kind, "data-answer": name, onclick: () => this.#answer(ask, answer) }, label, h("kbd", { "aria-hidden": "true" }, key));
    const deny = () => ({ action: "deny", ...(reason.value.trim() && { reason: reason.value.trim() }) });
    const denyButton = h("button.bad", { type: "button", "data-answer": "deny", onclick: () => this.#answer(ask, deny()) }, "Deny", h("kbd", { "aria-hidden": "true" }, "d"));
    reason.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && this.#answer(ask, deny()));
    return h(
      "div.answers",
      {},
      h("div.buttons", {}, button("once", "Allow once", "primary", { action: "allow", scope: "once" }, "a"), button("session", "Allow for the session", "", { action: "allow", scope: "session" }, "A")),
      h("p.covers.soft", {}, ...covers(ask.covers ?? [])),
      h("div.deny", {}, reason, denyButton),
    );
  }

  /** @param {import("/web/stream.js").PermissionRequest} ask @param {object} answer */
  async #answer(ask, answer) {
    const card = this.#cards.get(ask.id);
    const buttons = [...(card?.querySelectorAll("button") ?? [])];
    for (const each of buttons) each.disabled = true;
    try {
      const { resolved } = await this.store.at.grant({ id: ask.id }, answer);
      if (!resolved) this.notices.say("Somebody else has answered already.");
    } catch (error) {
      this.notices.fail(error);
      for (const each of buttons) each.disabled = false;
    }
  }
}

/** What an answer for the session covers: the patterns of the server, in words where they have some. @param {readonly string[]} covered */
function covers(covered) {
  if (!covered.length) return ["For the session: only this; it is asked each time."];
  return ["For the session: ", ...covered.flatMap((text, at) => [at ? ", " : "", ...inWords(visible(text))])];
}

/** @param {string} pattern */
function inWords(pattern) {
  if (pattern.startsWith("= ")) return ["exactly this command"];
  if (pattern === "> *") return ["output to files of the workspace"];
  if (pattern.endsWith("/**")) return ["anything below ", h("code", {}, pattern.slice(0, -3) || "/")];
  return [h("code", {}, pattern)];
}

customElements.define("ask-dock", AskDock);
