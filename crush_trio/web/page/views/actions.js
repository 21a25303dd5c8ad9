// @ts-check
/** What a person can do with a session: stop, summarise, rename, delete, copy its link. */

import { h, iconButton, showDialog } from "../dom.js";
import { duration } from "../format.js";
import { lastingLink } from "../router.js";

const UNDO = 10_000; // milliseconds

export class SessionActions {
  /** @param {import("../state/store.js").Store} store @param {import("../router.js").Router} router @param {import("../notices.js").Notices} notices */
  constructor(store, router, notices) {
    this.store = store;
    this.router = router;
    this.notices = notices;
  }

  /** A button that opens the list of actions. */
  menu() {
    const id = "session-menu";
    const act = (/** @type {() => void} */ action) => () => (list.hidePopover(), action());
    const entry = (/** @type {string} */ name, /** @type {() => void} */ action, key = "") => h("button", { type: "button", onclick: act(action) }, h("span", {}, name), key && h("kbd", {}, key));
    const { mayAct, mayManage } = this.store;
    const acting = [
      mayAct && entry("Summarise", () => this.summarize(), "c"),
      mayManage && entry("Rename", () => this.rename(), "e"),
      mayManage && entry("Delete", () => this.remove(), "#"),
    ];
    const list = h("div.menu", { id, popover: "auto" }, entry("Copy link", () => this.copyLink()), entry("Notify me", () => this.notices.allow()), ...acting);
    const button = iconButton("more", "More", () => this.#place(list, button), { popovertarget: id });
    return h("span.menu-holder", {}, button, list);
  }

  /** @param {HTMLElement} list @param {HTMLElement} button */
  #place(list, button) {
    const box = button.getBoundingClientRect();
    list.style.top = `${box.bottom + 4}px`;
    list.style.right = `${Math.max(8, document.documentElement.clientWidth - box.right)}px`;
  }

  /** Copy a link to the session, or to a run or a message of it. @param {{ run?: string, message?: string }} [what] */
  copyLink(what) {
    const { workspace, session } = this.store.place;
    void this.notices.copy(lastingLink(workspace, session, this.store.directory, what), "The link is in the clipboard.");
  }

  /** Stop the run; the queue stays. The receipt says what was stopped. */
  async stop() {
    const { store } = this;
    const active = store.activeRun;
    const queued = store.queue.length;
    if (!active && !queued) return;
    try {
      const receipt = await store.at.cancel(store.place.session, Boolean(active && queued));
      const seconds = Math.max(0, ...receipt.hits.map((/** @type {any} */ hit) => hit.seconds ?? 0));
      const killed = receipt.hits.flatMap((/** @type {any} */ hit) => hit.processes ?? []).length;
      const left = receipt.hits.flatMap((/** @type {any} */ hit) => hit.left ?? []).length;
      const parts = [`Stopped after ${duration(seconds)}`, killed && `${killed} ${killed === 1 ? "process" : "processes"} ended`];
      const trouble = !receipt.complete || left;
      const says = receipt.hits.length ? `${parts.filter(Boolean).join(", ")}${trouble ? "; something is still running" : "; nothing is left running"}.` : "The run had already ended.";
      this.notices.say(says, { bad: Boolean(trouble) });
    } catch (error) {
      this.notices.fail(error);
    }
  }

  async summarize() {
    const end = this.notices.say("Summarising…", { ms: 120_000 });
    try {
      await this.store.at.summarize(this.store.place.session);
    } catch (error) {
      this.notices.fail(error);
    }
    end();
  }

  rename() {
    const title = this.store.session?.title ?? "";
    const field = h("input", { type: "text", name: "title", value: title, "aria-label": "Title", required: true, maxlength: 200 });
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      dialog.close();
      await this.store.at.rename(this.store.place.session, field.value.trim()).catch((error) => this.notices.fail(error));
    };
    const dialog = showDialog("Rename the session", [h("form", { onsubmit: submit }, field, h("div.buttons", {}, h("button.primary", {}, "Rename")))], { name: "rename" });
    field.select();
  }

  /** Delete the session in ten seconds, unless the person takes it back. */
  remove() {
    const { store, notices } = this;
    const { workspace, session } = store.place;
    const title = store.session?.title || "Untitled";
    const address = location.pathname;
    const at = store.at;
    store.leaving.add(session);
    const later = setTimeout(() => gone(), UNDO);
    const gone = () => {
      removeEventListener("pagehide", gone);
      clearTimeout(later);
      at.deleteSession(session).catch((error) => {
        store.leaving.delete(session);
        notices.fail(error);
      });
    };
    addEventListener("pagehide", gone);
    const undo = () => {
      clearTimeout(later);
      removeEventListener("pagehide", gone);
      store.leaving.delete(session);
      store.changed("roster");
      this.router.go(address);
    };
    notices.say(`“${title}” will be deleted.`, { action: "Undo", onaction: undo, ms: UNDO });
    this.router.go(`/?dir=${encodeURIComponent(store.pathOf(workspace))}`);
  }
}
