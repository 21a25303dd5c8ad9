// @ts-check
/** The run of a sub-agent inside the row of the call that started it. */

import { fill, h } from "../dom.js";
import { plural } from "../format.js";
import { MessageRow } from "./message.js";

const SHOWN = 40;

/** @type {WeakMap<Element, { rows: Map<string, MessageRow>, list: Element, note: Element, answer: Element }>} */
const drawn = new WeakMap();

/**
 * Draw the transcript of a sub-agent; called again whenever something changed.
 * @param {import("./message.js").Context} context @param {Element} body @param {string} session
 * @param {any} part @param {any} input @param {any} result
 */
export function subAgent(context, body, session, part, input, result) {
  if (context.depth > 4) return fill(body, h("p.soft", {}, "More levels are not shown here."));
  const transcript = context.store.under(session);
  let known = drawn.get(body);
  if (!known) {
    known = { rows: new Map(), list: h("div.nested", { role: "group", "aria-label": "Sub-agent" }), note: h("p.soft"), answer: h("div") };
    drawn.set(body, known);
    fill(body, h("p.task", {}, String(input?.prompt ?? part.input)), known.note, known.list, known.answer);
  }
  const keys = transcript.order.slice(-SHOWN);
  const hidden = transcript.order.length - keys.length;
  known.note.textContent = hidden ? `${plural(hidden, "earlier message")} not shown` : transcript.loaded ? "" : "Reading…";
  const inner = { ...context, transcript, depth: context.depth + 1 };
  for (const [id, row] of known.rows) {
    if (keys.includes(id)) continue;
    row.element.remove();
    known.rows.delete(id);
  }
  for (const id of keys) {
    const row = known.rows.get(id);
    if (row) row.update();
    else if (transcript.messages.get(id)?.role !== "user") {
      const fresh = new MessageRow(id, inner);
      known.rows.set(id, fresh);
      known.list.append(fresh.element);
    }
  }
  const failed = result?.is_error && h("pre.output.bad", { tabindex: 0 }, String(result.content));
  fill(known.answer, failed || null);
}
