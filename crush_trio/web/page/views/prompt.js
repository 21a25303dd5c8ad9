// @ts-check
/** The prompt box: text, files by choosing, dropping or pasting, and what happens if a run is at work. */

import { fill, h, icon, iconButton } from "../dom.js";
import { count } from "../format.js";

const LARGEST = 10 * 1024 * 1024;
const MODES = /** @type {const} */ ([
  ["enqueue", "Queue", "Runs after the present run"],
  ["steer", "Steer", "Joins the present run at its next step"],
  ["interrupt", "Interrupt", "Stops the present run and takes its place"],
]);

/** @typedef {{ file_path: string, file_name: string, mime_type: string, content: string }} Attachment */
/**
 * @typedef {{ send: (text: string, more: { attachments?: Attachment[], when_busy?: string }) => Promise<any>,
 *   draft: string, stop?: () => void, tools?: Element[] }} PromptOptions
 */

export class PromptBox extends HTMLElement {
  /** @type {Attachment[]} */ #files = [];
  #busy = false;
  #sending = Promise.resolve();

  /** @param {import("../state/store.js").Store} store @param {import("../notices.js").Notices} notices @param {PromptOptions} options */
  constructor(store, notices, options) {
    super();
    this.store = store;
    this.notices = notices;
    this.options = options;
    this.draft = `crush_trio.draft.${options.draft}`;
    const text = (this.text = h("textarea", { rows: 1, placeholder: "Ask, or tell it what to do", "aria-label": "Prompt", enterkeyhint: "send" }));
    text.value = sessionStorage.getItem(this.draft) ?? "";
    text.addEventListener("input", () => this.#typed());
    text.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#pressed(event));
    text.addEventListener("paste", (/** @type {ClipboardEvent} */ event) => this.#pasted(event));
    this.picker = h("input", { type: "file", multiple: true, hidden: true, onchange: () => this.#attach([...this.picker.files]) });
    this.chips = h("ul.attachments", { "aria-label": "Attachments" });
    this.modes = h("fieldset.modes", { hidden: true }, h("legend.hidden", {}, "While a run is at work"), ...MODES.map((mode) => this.#mode(mode)));
    this.sendButton = h("button.send.primary", { type: "submit", "aria-label": "Send", title: "Send" }, icon("send"));
    this.stopButton = h("button.stop", { type: "button", title: "Stop the run", hidden: true, onclick: () => options.stop?.() }, icon("stop"), "Stop");
    const clip = iconButton("clip", "Attach files", () => this.picker.click());
    const row = h("div.prompt-row", {}, clip, this.picker, ...(options.tools ?? []), this.modes, h("span.last", {}, this.stopButton, this.sendButton));
    const form = h("form.prompt", { onsubmit: (/** @type {Event} */ event) => this.#submitted(event) }, this.chips, text, row);
    for (const name of ["dragover", "drop"]) form.addEventListener(name, (/** @type {any} */ event) => this.#dropped(event));
    form.addEventListener("dragleave", () => form.classList.remove("dropping"));
    fill(this, form);
    requestAnimationFrame(() => this.#grow());
  }

  leave() {}

  focus() {
    this.text.focus();
  }

  /** @param {readonly [string, string, string]} mode */
  #mode([value, name, says]) {
    const radio = h("input", { type: "radio", name: "when-busy", value, checked: value === "enqueue" });
    return h("label", { title: says }, radio, h("span", {}, name));
  }

  /** Whether a run of the session is at work. @param {boolean} busy */
  set busy(busy) {
    if (busy === this.#busy) return;
    this.#busy = busy;
    this.modes.hidden = !busy;
    this.stopButton.hidden = !busy;
  }

  get mode() {
    return this.modes.querySelector("input:checked")?.value ?? "enqueue";
  }

  #typed() {
    sessionStorage.setItem(this.draft, this.text.value);
    this.#grow();
  }

  #grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight + 2, innerHeight * 0.4)}px`;
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const touch = matchMedia("(pointer: coarse)").matches && !event.ctrlKey;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch) return;
    event.preventDefault();
    void this.send();
  }

  /** @param {Event} event */
  #submitted(event) {
    event.preventDefault();
    void this.send();
  }

  /** Send what is in the box; it is emptied when the server has it. */
  async send() {
    const prompt = this.text.value.trim();
    if (!prompt && !this.#files.length) return;
    const more = { ...(this.#files.length && { attachments: this.#files }), ...(this.#busy && { when_busy: this.mode }) };
    const [text, files] = [this.text.value, this.#files];
    this.#set("", []);
    this.modes.querySelector("input").checked = true; // the next one waits again
    const before = this.#sending;
    this.#sending = (async () => {
      await before; // prompts arrive in the order in which they were sent
      try {
        await this.options.send(prompt, more);
      } catch {
        this.#set([text, this.text.value].filter(Boolean).join("\n"), [...files, ...this.#files]); // the sender has said why
      }
    })();
    await this.#sending;
  }

  /** @param {string} text @param {Attachment[]} files */
  #set(text, files) {
    this.text.value = text;
    this.#files = files;
    this.#typed();
    this.#showFiles();
  }

  // ── Files ───────────────────────────────────────────────────────────────────────────────────

  /** @param {ClipboardEvent} event */
  #pasted(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    void this.#attach(files);
  }

  /** @param {DragEvent} event */
  #dropped(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    const form = /** @type {HTMLElement} */ (event.currentTarget);
    form.classList.toggle("dropping", event.type === "dragover");
    if (event.type === "drop") void this.#attach([...event.dataTransfer.files]);
  }

  /** @param {File[]} files */
  async #attach(files) {
    for (const file of files) {
      if (file.size > LARGEST) {
        this.notices.say(`${file.name} is larger than 10 MB.`, { bad: true });
        continue;
      }
      const name = file.name || "pasted.png";
      this.#files = [...this.#files, { file_path: name, file_name: name, mime_type: file.type || "text/plain", content: await base64(file) }];
    }
    this.picker.value = "";
    this.#showFiles();
  }

  #showFiles() {
    const chips = this.#files.map((file, at) => {
      const remove = () => {
        this.#files = this.#files.filter((_, index) => index !== at);
        this.#showFiles();
      };
      const image = file.mime_type.startsWith("image/") && h("img", { src: `data:${file.mime_type};base64,${file.content}`, alt: "" });
      const size = h("span.soft", {}, ` ${count(Math.round(file.content.length * 0.75))} B`);
      return h("li.chip", {}, image, file.file_name, size, iconButton("close", `Remove ${file.file_name}`, remove));
    });
    fill(this.chips, ...chips);
  }
}

/** @param {File} file @returns {Promise<string>} */
function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ""));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

customElements.define("prompt-box", PromptBox);
