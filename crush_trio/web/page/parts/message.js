// @ts-check
/** One message as a row: who, when, and its parts. */

import { fill, h, iconButton } from "../dom.js";
import { clock, duration } from "../format.js";
import { isFinished } from "../state/transcript.js";
import { filePart, imagePart, reasoningPart, shellPart, textPart } from "./plain.js";
import { toolPart } from "./tool.js";

/** @typedef {import("/web/stream.js").Message} Message */
/**
 * @typedef {{ store: import("../state/store.js").Store, transcript: import("../state/transcript.js").Transcript,
 *   notices: import("../notices.js").Notices, texts: import("./texts.js").Texts, open: Map<string, boolean>,
 *   link: (message: string) => string, depth: number, changed: () => void }} Context
 * What a row needs of its surroundings. `open` has what a person folded or unfolded, by a name.
 */
/** @typedef {{ element: HTMLElement, update: (part: any, message: Message, finished: boolean) => void }} PartView */

/** @type {Record<string, (context: Context, index: number) => PartView>} */
const VIEWS = {
  text: textPart,
  reasoning: reasoningPart,
  tool_call: toolPart,
  binary: filePart,
  image_url: imagePart,
  shell_command: shellPart,
};
const NAMES = /** @type {Record<string, string>} */ ({ user: "You", assistant: "Assistant", system: "System" });
const ENDINGS = /** @type {Record<string, string>} */ ({
  canceled: "Stopped.",
  cancelled: "Stopped.",
  error: "The run has failed.",
  max_tokens: "The answer was cut: it reached the longest length.",
  content_filter: "The provider withheld the rest.",
});

export class MessageRow {
  /** @type {{ type: string, view: PartView }[]} */ #parts = [];
  /** @type {Message | undefined} */ #shown;
  #results = "";

  /** @param {string} id @param {Context} context */
  constructor(id, context) {
    this.id = id;
    this.context = context;
    const message = this.message;
    this.head = h("header.who");
    this.body = h("div.parts");
    this.foot = h("footer.ending");
    this.element = h("article", { class: `message ${message?.role ?? ""}`, id: context.depth ? undefined : `m-${id}` }, this.head, this.body, this.foot);
    this.update();
  }

  get message() {
    return this.context.transcript.messages.get(this.id);
  }

  update() {
    const message = this.message;
    if (!message) return;
    const { transcript, store } = this.context;
    const calls = message.parts.filter(({ type }) => type === "tool_call");
    const marks = calls.map(({ data }) => [transcript.results.get(data.id)?.message, store.below.has(`${message.id}$$${data.id}`) && performance.now(), data.finished && !transcript.results.has(data.id) && store.picture.permissions.size + store.picture.questions.size]);
    const results = JSON.stringify(marks);
    if (message === this.#shown && results === this.#results && !this.context.texts.isFresh(message)) return;
    this.#shown = message;
    this.#results = results;
    const finished = isFinished(message);
    this.element.classList.toggle("growing", !finished && message.role === "assistant");
    this.element.classList.toggle("summary", Boolean(/** @type {any} */ (message).is_summary_message));
    this.element.classList.toggle("continued", this.#continues(message));
    this.#showHead(message);
    this.#showParts(message, finished);
    this.#showEnding(message);
  }

  /** Whether the message goes on where another one of the same answer stopped. @param {Message} message */
  #continues(message) {
    const { order, messages } = this.context.transcript;
    const before = messages.get(order[order.lastIndexOf(this.id) - 1]);
    return message.role === "assistant" && before?.role === "assistant";
  }

  /** @param {Message} message */
  #showHead(message) {
    if (this.head.childElementCount) return;
    const name = /** @type {any} */ (message).is_summary_message ? "Summary" : (NAMES[message.role] ?? message.role);
    const when = message.created_at ? clock(message.created_at) : "";
    const copy = () => this.context.notices.copy(this.context.link(this.id), "The link is in the clipboard.");
    this.element.setAttribute("aria-label", `${name}, ${when}`);
    const model = message.role === "assistant" && message.model ? h("span.soft", {}, message.model) : null;
    const link = this.context.depth === 0 && iconButton("link", "Copy a link to this message", copy, { class: "icon-button on-hover" });
    fill(this.head, h("b", {}, name), model, h("time.soft", {}, when), link);
  }

  /** @param {Message} message @param {boolean} finished */
  #showParts(message, finished) {
    const parts = message.parts.map((part, index) => ({ part, index })).filter(({ part }) => VIEWS[part.type]);
    while (this.#parts.length > parts.length) this.#parts.pop()?.view.element.remove();
    parts.forEach(({ part, index }, at) => {
      const known = this.#parts[at];
      if (known?.type !== part.type) {
        const view = VIEWS[part.type](this.context, index);
        if (known) known.view.element.replaceWith(view.element);
        else this.body.append(view.element);
        this.#parts[at] = { type: part.type, view };
      }
      this.#parts[at].view.update(part.data, message, finished);
    });
  }

  /** @param {Message} message */
  #showEnding(message) {
    const finish = message.parts.find(({ type }) => type === "finish")?.data;
    const says = finish ? (ENDINGS[finish.reason] ?? "") : "";
    const detail = [finish?.message, finish?.details].filter((text, at, all) => text && all.indexOf(text) === at).join("\n");
    const run = this.context.store.ended.find(({ message_id }) => message_id === this.id);
    const took = run?.ended_at && run.started_at && message.role === "assistant" ? duration(Math.max(0, run.ended_at - run.started_at)) : "";
    const error = (says || detail) && finish?.reason !== "end_turn" && finish?.reason !== "tool_use";
    fill(this.foot, error && h("p.problem", {}, says || "", detail && h("span.detail", {}, detail === "run cancelled" ? "" : detail)), took && h("span.soft", {}, took));
  }
}
