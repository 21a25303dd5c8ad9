// @ts-check
/** The first view: begin something, in a directory. */

import { fill, h, showDialog } from "../dom.js";
import { baseName } from "../format.js";
import { sessionAddress } from "../router.js";
import { PromptBox } from "./prompt.js";
import { UsageChart } from "./usage.js";

/** What the offline demo understands; a person without a key sees an answer, a permission and a stop. */
const SUGGESTIONS = [
  ["Say hello", "Hello! What can you do?"],
  ["Write a file, and ask me first", `write good morning to greeting-${Date.now().toString(36).slice(-4)}.txt`],
  ["A long answer, to stop half-way", "long 4000"],
];

export class HomeView extends HTMLElement {
  /**
   * @param {import("../state/store.js").Store} store @param {import("../router.js").Router} router
   * @param {import("../keys.js").Keys} keys @param {import("../notices.js").Notices} notices
   */
  constructor(store, router, keys, notices) {
    super();
    this.key = "";
    /** The directory that the person chose. */ this.chosen = "";
    this.store = store;
    this.router = router;
    this.notices = notices;
    this.select = h("select", { id: "directory", "aria-label": "Directory", onchange: () => this.#chosen() });
    this.prompt = new PromptBox(store, notices, { send: (text, more) => this.#begin(text, more), draft: "new" });
    this.usage = new UsageChart(store);
    this.suggestions = h("div.suggestions", { role: "group", "aria-label": "Suggestions" });
    this.leaving = [store.on("roster place", () => this.#show()), keys.bind("i", "Write a prompt", () => this.prompt.focus())];
    const heading = h("h1", {}, store.mayAct ? "What should be done?" : "Sessions");
    const watching = h("p.soft", {}, "Your token may watch. Choose a session to follow it.");
    const where = h("div.where", {}, h("label", { for: "directory" }, "In"), this.select);
    const begin = store.mayAct ? [this.prompt, where, this.suggestions] : [watching];
    fill(this, h("div.home", {}, heading, ...begin, this.usage));
    this.#show();
  }

  leave() {
    for (const stop of this.leaving) stop();
    this.prompt.leave();
  }

  /** What is typed now is for the prompt; on a phone the keyboard would cover the page. */
  shown() {
    if (matchMedia("(pointer: fine)").matches) this.prompt.focus();
  }

  point() {
    this.#show();
    void this.usage.load();
  }

  #show() {
    const { store } = this;
    const asked = this.router.target.directory;
    const open = store.workspaces.get(store.place.workspace)?.path;
    const hosted = [...store.workspaces.values()].map(({ path }) => path);
    const recent = store.roster.recent.map(({ path }) => path);
    const own = store.page.directory || store.roster.directory;
    const all = store.mayManage ? [this.chosen || asked || open || own, ...hosted, own, ...recent] : hosted;
    const paths = [...new Set(all)].filter(Boolean);
    const key = paths.join("\n");
    if (key !== this.key) {
      this.key = key;
      const options = paths.map((path) => h("option", { value: path }, `${baseName(path)} — ${path}`));
      fill(this.select, ...options, store.mayManage && h("option", { value: "" }, "Another directory…"));
      this.select.value = paths[0] ?? "";
    }
    const demo = [...store.sessions.values()].every(({ model }) => !model || model.provider === "demo");
    const chips = SUGGESTIONS.map(([name, text]) => h("button.chip", { type: "button", onclick: () => this.#begin(text, {}) }, name));
    if (this.suggestions.childElementCount !== (demo ? chips.length : 0)) fill(this.suggestions, ...(demo ? chips : []));
  }

  #chosen() {
    this.chosen = this.select.value || this.chosen;
    if (this.select.value) return;
    this.select.selectedIndex = 0; // unless the person names one
    const field = h("input", { type: "text", id: "path", required: true, pattern: "\\s*/.*", title: "A path that begins with /", placeholder: "/", autocapitalize: "off", spellcheck: "false", value: this.select.value });
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      const path = (this.chosen = field.value.trim());
      this.select.prepend(h("option", { value: path }, `${baseName(path)} — ${path}`));
      this.select.value = path;
      dialog.close();
      this.prompt.focus();
    };
    const label = h("label", { for: "path" }, "Its absolute path on the server's machine");
    const dialog = showDialog("Another directory", [h("form", { onsubmit: submit }, h("div.field", {}, label, field), h("div.buttons", {}, h("button.primary", {}, "Choose")))], { name: "directory" });
    field.select();
  }

  /** @param {string} text @param {object} more */
  async #begin(text, more) {
    try {
      const workspace = await this.store.open(this.select.value);
      const at = this.store.api.at(workspace);
      const session = await at.createSession("");
      await at.submit(session.id, text, more);
      this.router.go(sessionAddress(workspace, session.id));
    } catch (error) {
      this.notices.fail(error);
      throw error;
    }
  }
}

customElements.define("home-view", HomeView);
