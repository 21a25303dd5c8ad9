// @ts-check
/** The model and the effort for the prompts that this page sends to the session. */

import { h, showDialog } from "../dom.js";

export class ModelChoice extends HTMLElement {
  /** @type {{ provider: string, model: string, reasoning_effort?: string } | null} */ #chosen = null;

  /** @param {import("../state/store.js").Store} store @param {import("../notices.js").Notices} notices */
  constructor(store, notices) {
    super();
    this.store = store;
    this.notices = notices;
    this.button = h("button.model", { type: "button", title: "Model and effort (m)", onclick: () => this.open() }, "Model");
    this.append(this.button);
    this.leave = store.on("session", () => void this.#read());
  }

  /** What a submission says about the model: nothing, if the workspace's is used. */
  get choice() {
    return this.#chosen ? { model: this.#chosen } : {};
  }

  async #read() {
    if (this.known || !this.store.place.workspace) return;
    this.known = true;
    try {
      const { model } = await this.store.at.agent();
      this.own = model;
      this.#show();
    } catch {
      this.known = false;
    }
  }

  #show() {
    const name = this.#chosen?.model ?? this.own?.name ?? "Model";
    const effort = this.#chosen?.reasoning_effort;
    this.button.textContent = effort ? `${name} · ${effort}` : name;
  }

  async open() {
    try {
      const { providers } = await this.store.at.config();
      this.#ask(Object.entries(providers ?? {}).filter(([, { disable, models }]) => !disable && models?.length));
    } catch (error) {
      this.notices.fail(error);
    }
  }

  /** @param {[string, any][]} providers */
  #ask(providers) {
    const own = h("option", { value: "" }, `The workspace's${this.own ? `: ${this.own.name}` : ""}`);
    const groups = providers.map(([id, { name, models }]) => h("optgroup", { label: name || id }, ...models.map((/** @type {any} */ model) => h("option", { value: JSON.stringify([id, model.id]) }, model.name || model.id))));
    const select = h("select", { id: "model-select", onchange: () => levels() }, own, ...groups);
    const effort = h("select", { id: "effort-select" });
    const field = h("div.field", {}, h("label", { for: "effort-select" }, "Effort"), effort);
    const levels = () => {
      const [provider, id] = select.value ? JSON.parse(select.value) : [];
      const model = providers.find(([name]) => name === provider)?.[1].models.find((/** @type {any} */ each) => each.id === id);
      const known = model?.reasoning_levels ?? [];
      field.hidden = !known.length;
      effort.replaceChildren(...known.map((/** @type {string} */ level) => h("option", { value: level, selected: level === model.default_reasoning_effort }, level)));
    };
    if (this.#chosen) select.value = JSON.stringify([this.#chosen.provider, this.#chosen.model]);
    levels();
    if (this.#chosen?.reasoning_effort) effort.value = this.#chosen.reasoning_effort;
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      const [provider, model] = select.value ? JSON.parse(select.value) : [];
      this.#chosen = model ? { provider, model, ...(!field.hidden && { reasoning_effort: effort.value }) } : null;
      this.#show();
      dialog.close();
    };
    const note = h("p.soft", {}, "For the prompts that you send to this session from this page.");
    const dialog = showDialog("Model and effort", [h("form", { onsubmit: submit }, h("div.field", {}, h("label", { for: "model-select" }, "Model"), select), field, note, h("div.buttons", {}, h("button.primary", {}, "Use")))], { name: "models" });
    select.focus();
  }
}

customElements.define("model-choice", ModelChoice);
