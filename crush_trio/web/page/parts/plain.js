// @ts-check
/** Parts that are texts or files: plain while they grow, rendered when the message is finished. */

import { fill, h } from "../dom.js";
import { duration } from "../format.js";
import { rendered } from "../rendered.js";

/** @typedef {import("./message.js").Context} Context */
/** @typedef {import("./message.js").PartView} PartView */

/** A text that grows by appending to one text node. */
export class GrowingText {
  #node = document.createTextNode("");

  /** @param {string} kind */
  constructor(kind = "growing-text") {
    this.element = h(`div.${kind}`, {}, this.#node);
  }

  /** @param {string} text */
  set(text) {
    const shown = this.#node.data;
    if (text === shown) return;
    if (text.length > shown.length && text.startsWith(shown)) this.#node.appendData(text.slice(shown.length));
    else this.#node.data = text;
  }
}

/** @param {Context} context @param {number} index @returns {PartView} */
export function textPart(context, index) {
  const element = h("div.text");
  const plain = new GrowingText();
  element.append(plain.element);
  let html = "";
  return {
    element,
    update(part, message, finished) {
      const found = finished && message.role !== "user" ? context.texts.of(message, index) : undefined;
      if (found !== undefined && found === html) return;
      if (found === undefined) {
        if (html) fill(element, plain.element);
        html = "";
        return plain.set(part.text);
      }
      html = found;
      fill(element, h("div.rendered", {}, rendered(found)));
      addCopyButtons(element, context);
    },
  };
}

/** Give each block of code a button that copies it. @param {Element} element @param {Context} context */
function addCopyButtons(element, context) {
  for (const block of element.querySelectorAll("pre")) {
    const copy = () => context.notices.copy(/** @type {HTMLElement} */ (block.querySelector("code") ?? block).innerText, "Copied.");
    const frame = h("div.code-frame");
    block.replaceWith(frame);
    block.tabIndex = 0;
    frame.append(block, h("button.copy.on-hover", { type: "button", onclick: copy, "aria-label": "Copy this code" }, "Copy"));
  }
}

/**
 * A part that can be folded; what a person chose stays when the row leaves the screen.
 * @param {Context} context @param {string} name @param {boolean} open @param {Element[]} summary @param {() => void} [opened]
 */
export function folded(context, name, open, summary, opened) {
  const body = h("div.fold-body");
  const element = h("details.fold", { open: context.open.get(name) ?? open }, h("summary", {}, ...summary), body);
  element.addEventListener("toggle", () => {
    context.open.set(name, element.open);
    if (element.open) opened?.();
  });
  return { element, body };
}

/** @param {Context} context @param {number} index @returns {PartView} */
export function reasoningPart(context, index) {
  const label = h("span", {}, "Thinking");
  const plain = new GrowingText("growing-text soft");
  /** @type {ReturnType<typeof folded> | undefined} */ let fold;
  const element = h("div.reasoning");
  return {
    element,
    update(part, message, finished) {
      fold ??= folded(context, `${message.id}/${index}`, false, [label]);
      if (!fold.element.isConnected && !element.childElementCount) element.append(fold.element);
      const took = part.finished_at && part.started_at ? ` for ${duration(Math.max(1, part.finished_at - part.started_at))}` : "";
      label.textContent = part.finished_at || finished ? `Thought${took}` : "Thinking…";
      element.classList.toggle("busy", !part.finished_at && !finished);
      const html = finished ? context.texts.of(message, index) : undefined;
      if (html === undefined) {
        if (!plain.element.parentElement) fill(fold.body, plain.element);
        return plain.set(part.thinking);
      }
      fill(fold.body, h("div.rendered.soft", {}, rendered(html)));
    },
  };
}

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;

/** An image of base64 text; other media are named. @param {string} mime @param {string} data @param {string} name */
export function media(mime, data, name) {
  if (!IMAGE.test(mime)) return h("span.chip", {}, name || mime);
  return h("img.picture", { src: `data:${mime};base64,${data}`, alt: name || "Image", loading: "lazy" });
}

/** @returns {PartView} */
export function filePart() {
  const element = h("div.file");
  return {
    element,
    update(part) {
      if (!element.childElementCount) fill(element, media(part.MIMEType, part.Data, part.Path), h("span.soft", {}, part.Path));
    },
  };
}

/** A picture somewhere else is not loaded: that would tell its host about the reader. @returns {PartView} */
export function imagePart() {
  const element = h("div.file");
  return {
    element,
    update(part) {
      const own = part.url.match(/^data:([\w/+.-]+);base64,(.*)$/s);
      fill(element, own ? media(own[1], own[2], "Image") : h("code", {}, part.url));
    },
  };
}

/** @returns {PartView} */
export function shellPart() {
  const element = h("div.shell");
  return {
    element,
    update(part) {
      fill(element, h("pre.command", {}, `$ ${part.command}`), h("pre.output", { tabindex: 0 }, part.output), part.exit_code ? h("p.problem", {}, `Exit code ${part.exit_code}`) : null);
    },
  };
}
