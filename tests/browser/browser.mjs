// The browser of a scenario, and what scenarios have in common.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { createInterface } from "node:readline";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export class Browser {
  pages = 0;
  /** What pages wrote to the console as an error, and what they threw. */ errors = [];
  /** What requests to other places there were. */ foreign = [];

  constructor(about) {
    this.about = about;
    this.lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  }

  async start() {
    const require = createRequire(`${this.about.library}/package.json`);
    this.axe = require.resolve("axe-core/axe.min.js");
    this.chromium = require("playwright-core").chromium;
  }

  /** Open a browser with a profile of its own, and the page in it. */
  async open(path = "", options = {}) {
    this.pages += 1;
    const context = await this.chromium.launchPersistentContext(`${this.about.profile}-${this.pages}`, {
      executablePath: this.about.chromium,
      headless: true,
      args: FLAGS,
      viewport: { width: 1200, height: 800 },
      ...options,
    });
    context.setDefaultTimeout(15_000);
    const page = context.pages()[0];
    page.on("pageerror", (error) => this.errors.push(String(error.stack)));
    page.on("console", (message) => message.type() === "error" && this.errors.push(`${message.text()} ${message.location().url}`));
    page.on("request", (request) => {
      const ours = request.url().startsWith(new URL(this.about.url).origin) || /^(data|blob):/.test(request.url());
      if (!ours) this.foreign.push(request.url());
    });
    page.on("dialog", (dialog) => {
      this.errors.push(`a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    await page.goto(new URL(path, this.about.url).href);
    return page;
  }

  /** Ask the test for something, such as `kill` or `start`. */
  async want(what) {
    console.log(`WANT ${what}`);
    await this.lines.next();
  }

  /** No page complained; *expected* are those that a scenario causes. */
  check(...expected) {
    const rest = this.errors.filter((error) => !expected.some((each) => error.includes(each)));
    assert.deepEqual(rest, []);
    assert.deepEqual(this.foreign, []);
  }

  /** Begin a session with a prompt, at the first view. */
  async begin(page, prompt) {
    await page.getByLabel("Prompt").fill(prompt);
    await page.getByLabel("Prompt").press("Enter");
    await page.waitForSelector("session-view article.user");
  }

  async send(page, prompt) {
    await page.getByLabel("Prompt", { exact: true }).fill(prompt);
    await page.getByLabel("Prompt", { exact: true }).press("Enter");
  }
}

/** The text of the transcript, as the reader sees it. */
export const transcript = (page) => page.locator("row-list").innerText();

/** Wait until no run of the session is at work. */
export const idle = (page) => page.waitForSelector("row-list[aria-busy=false]");

/** A way to the server that can be cut and mended. */
export async function openProxy(at, port) {
  const sockets = new Set();
  let open = true;
  const proxy = createServer((socket) => {
    if (!open) return socket.destroy();
    const other = connect(Number(port), "127.0.0.1");
    for (const each of [socket, other]) {
      sockets.add(each);
      each.on("error", () => {});
      each.on("close", () => [socket, other].forEach((one) => (sockets.delete(one), one.destroy())));
    }
    socket.pipe(other).pipe(socket);
  });
  await new Promise((resolve) => proxy.listen(Number(at), "127.0.0.1", resolve));
  const cut = () => {
    open = false;
    for (const socket of sockets) socket.destroy();
  };
  return { cut, mend: () => (open = true) };
}
