// @ts-check
/** The form that asks for a token, if the server wants one. */

import { fill, h } from "../dom.js";

export class LoginView extends HTMLElement {
  /** @param {import("../state/store.js").Store} store */
  constructor(store) {
    super();
    this.store = store;
    const field = h("input", { type: "password", name: "token", id: "token", autocomplete: "current-password", required: true, autofocus: true, spellcheck: "false" });
    const wrong = h("p.problem", { role: "alert" });
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      try {
        await store.api.login({ token: field.value.trim() });
        location.reload();
      } catch (error) {
        wrong.textContent = /** @type {Error} */ (error).message;
        field.select();
      }
    };
    fill(
      this,
      h(
        "form.login",
        { onsubmit: submit },
        h("img", { src: "/page/icon.svg", alt: "", width: 48, height: 48 }),
        h("h1", {}, "crush_trio"),
        h("p", {}, "This server wants a token. ", h("code", {}, "crush-trio token add"), " makes one; the link that the server prints at its start needs none."),
        h("label", { for: "token" }, "Token"),
        field,
        wrong,
        h("button.primary", {}, "Log in"),
      ),
    );
  }
}

customElements.define("login-view", LoginView);
