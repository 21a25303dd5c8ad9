// @ts-check
/** The page: its frame, and which view is shown. */

import { fill, h, icon, iconButton } from "./dom.js";
import { Keys, showKeys } from "./keys.js";
import { Notices } from "./notices.js";
import { Router, sessionAddress } from "./router.js";
import { lastDirectory, remember } from "./state/directories.js";
import { Store } from "./state/store.js";
import { connectionLabel } from "./views/connection.js";
import "./views/roster.js";
import { openSearch } from "./views/search.js";

class App {
  store = new Store();
  notices = new Notices(this.store);
  router = new Router();
  keys = new Keys();
  main = h("main", { id: "main", tabindex: "-1" });
  /** @type {any} */ view = null;

  async start() {
    document.documentElement.dataset.theme = localStorage.getItem("crush_trio.theme") ?? "";
    this.store.onlogin = () => void this.login();
    const code = new URLSearchParams(location.hash.slice(1)).get("login");
    if (code) {
      history.replaceState(null, "", location.pathname + location.search);
      await this.store.api.login({ code }).catch(() => this.notices.say("That link has been used or is too old."));
    }
    try {
      this.store.page = await this.store.api.page();
    } catch (error) {
      fill(document.body, h("p.lone", {}, `The server does not answer: ${/** @type {Error} */ (error).message}`));
      setTimeout(() => location.reload(), 3000);
      return;
    }
    if (this.store.page.login && !this.store.page.right) await this.login();
    else this.show();
  }

  async login() {
    const { LoginView } = await import("./views/login.js");
    fill(document.body, new LoginView(this.store));
  }

  /** Opens at once: what is typed next is for its field. */
  search() {
    openSearch(this.store, this.router);
  }

  show() {
    const roster = /** @type {any} */ (document.createElement("session-roster"));
    roster.setUp(this.store, this.router);
    this.bindKeys(roster);
    this.notices.onshow = ({ workspace_id, id }) => this.router.go(sessionAddress(workspace_id, id));
    fill(
      document.body,
      h("a.skip", { href: "#main", onclick: (/** @type {Event} */ event) => this.skip(event) }, "Skip to the content"),
      h("div.frame", {}, this.header(), roster, this.main),
      this.notices.element,
    );
    document.body.classList.toggle("watching", !this.store.mayAct);
    this.router.listen(() => this.follow());
    addEventListener("online", () => this.store.hurry());
    document.addEventListener("visibilitychange", () => document.hidden || this.store.hurry());
    this.store.on("place", () => this.moved());
    void this.follow();
  }

  /** @param {Event} event */
  skip(event) {
    event.preventDefault();
    this.main.focus();
  }

  header() {
    const home = h("a.brand", { href: "/", "aria-label": "crush_trio, all sessions" }, h("img", { src: "/page/icon.svg", alt: "", width: 22, height: 22 }), h("span", {}, "crush_trio"));
    const state = connectionLabel(this.store);
    const search = h("button.search-button", { type: "button", onclick: () => this.search() }, icon("search"), h("span", {}, "Search"), h("kbd", {}, "/"));
    const buttons = [
      iconButton("theme", "Light or dark", () => this.switchTheme()),
      iconButton("help", "Keys", () => showKeys(this.keys), { class: "icon-button keys-button" }),
    ];
    const out = this.store.page.login && h("button.quiet", { type: "button", onclick: () => this.logout() }, "Log out");
    return h("header.bar", {}, home, state, h("span.gap"), search, ...buttons, out);
  }

  async logout() {
    await this.store.api.logout().catch(() => {});
    location.assign("/");
  }

  switchTheme() {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
    const theme = dark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("crush_trio.theme", theme);
  }

  /** Open the directory that this browser used last, so that its sessions are there; returns its workspace. */
  async #reopen() {
    const path = lastDirectory();
    return path && this.store.mayManage ? this.store.open(path).catch(() => "") : "";
  }

  /** Show what the address says. */
  async follow() {
    const target = this.router.target;
    const { place, connection } = this.store;
    let { workspace } = target;
    if (!workspace && !target.directory) workspace = place.workspace || (await this.#reopen());
    if (target.directory) {
      if (workspace) remember(workspace, target.directory);
      else workspace = await this.store.open(target.directory).catch((error) => (this.notices.say(error.message), ""));
    }
    const same = this.view && place.workspace === workspace && place.session === target.session;
    const wanted = target.session ? (await import("./views/session.js")).SessionView : (await import("./views/home.js")).HomeView;
    if (this.router.target.session !== target.session) return; // the person was faster
    if (!same || !(this.view instanceof wanted)) {
      this.view?.leave?.();
      document.body.dataset.view = target.session ? "session" : "home";
      this.view = new wanted(this.store, this.router, this.keys, this.notices);
      fill(this.main, this.view);
      this.view.shown?.();
    }
    if (!same || connection === "closed") await this.store.go({ workspace, session: target.session });
    this.view.point?.(target);
  }

  /** The workspace got another id: the server was restarted. */
  moved() {
    const { workspace, session } = this.store.place;
    if (session && this.router.target.session === session) this.router.correct(workspace);
  }

  /** @param {any} roster */
  bindKeys(roster) {
    const { keys, router } = this;
    keys.bind("?", "This list", () => showKeys(keys));
    keys.bind("/", "Search sessions and messages", () => this.search());
    keys.bind("n", "New session", () => router.go("/"));
    keys.bind("j", "Next session", () => roster.step(1));
    keys.bind("k", "Session before", () => roster.step(-1));
    keys.bind("w", "Next session that needs you", () => roster.stepToNeeds());
  }
}

void new App().start();
