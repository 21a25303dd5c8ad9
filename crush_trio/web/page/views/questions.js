// @ts-check
/** A batch of questions as a form. */

import { h } from "../dom.js";

/** @param {any} question @param {string} name */
function field(question, name) {
  const choices = question.choices ?? [];
  const choice = (/** @type {string} */ type, /** @type {any} */ { id, label, description }) =>
    h("label.choice", {}, h("input", { type, name, value: id, required: question.type === "yes_no" }), h("span", {}, label, description && h("span.soft", {}, ` — ${description}`)));
  switch (question.type) {
    case "yes_no":
      return h("div.choices", {}, choice("radio", { id: "yes", label: "Yes" }), choice("radio", { id: "no", label: "No" }));
    case "single_choice":
      return h("div.choices", {}, ...choices.map((/** @type {any} */ each) => choice("radio", each)), h("input", { type: "text", name: `${name}-text`, placeholder: "Something else", "aria-label": "Something else" }));
    case "multi_choice":
      return h("div.choices", {}, ...choices.map((/** @type {any} */ each) => choice("checkbox", each)), h("input", { type: "text", name: `${name}-text`, placeholder: "Something else", "aria-label": "Something else" }));
    default:
      return h("textarea", { name: `${name}-text`, rows: 2, "aria-label": question.question });
  }
}

/** @param {any} question @param {string} name @param {FormData} data */
function response(question, name, data) {
  const text = String(data.get(`${name}-text`) ?? "").trim();
  const chosen = data.getAll(name).map(String);
  const answer = { request_id: question.id };
  if (question.type === "yes_no") return { ...answer, yes: chosen[0] === "yes" };
  if (question.type === "free_text") return { ...answer, fill_in_text: text };
  return { ...answer, selected_ids: chosen, ...(text && { fill_in_text: text }) };
}

/** @param {import("../state/store.js").Store} store @param {import("../notices.js").Notices} notices @param {any} batch @returns {HTMLElement} */
export function questionForm(store, notices, batch) {
  const named = batch.questions.map((/** @type {any} */ question, /** @type {number} */ at) => ({ question, name: `q${at}` }));
  const rows = named.map((/** @type {any} */ { question, name }) =>
    h("fieldset", {}, h("legend", {}, question.question), question.description && h("p.soft", {}, question.description), field(question, name)),
  );
  const done = (/** @type {Promise<any>} */ answer) => answer.catch((error) => notices.fail(error));
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const data = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    const responses = named.map((/** @type {any} */ { question, name }) => response(question, name, data));
    void done(store.at.answer(batch.id, responses));
  };
  const buttons = store.mayAct && h("div.buttons", {}, h("button.primary", {}, "Answer"), h("button", { type: "button", onclick: () => done(store.at.decline(batch.id)) }, "Do not answer"));
  const title = h("h2", { id: `ask-${batch.id}` }, batch.confirm_title || "A question for you");
  const form = h("form.ask.questions", { onsubmit: submit, "aria-labelledby": title.id }, title, batch.confirm_description && h("p.soft", {}, batch.confirm_description), ...rows, buttons);
  form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return form;
}
