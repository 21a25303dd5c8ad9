// @ts-check
/** How the page is connected, in a word: at the top, and on a phone above the session. */

import { h } from "../dom.js";

const CONNECTION = {
  connecting: "Connecting…",
  connected: "Connected",
  reconnecting: "Reconnecting…",
  paused: "Paused",
  resynchronised: "Resynchronised",
  closed: "Disconnected",
};

/** @param {import("../state/store.js").Store} store */
export function connectionLabel(store) {
  const label = h("span.words");
  const state = h("span.connection", { role: "status" }, h("span.dot"), label);
  const show = () => {
    state.dataset.state = store.connection;
    state.title = store.reason;
    label.textContent = CONNECTION[store.connection];
  };
  show();
  state.leave = store.on("connection", show);
  return state;
}
