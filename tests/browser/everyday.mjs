// What people meet while they use the page: scenarios about focus, links, notices, and many pages at once.
import assert from "node:assert/strict";
import { idle } from "./browser.mjs";

const allow = (page) => page.locator("[data-answer=once]");

/** @returns the scenarios of this file by their names */
export const everyday = (browser, about) => ({
  async nothing_moves_under_the_hands() {
    const page = await browser.open();
    await browser.begin(page, "long 100000");
    await page.waitForFunction(() => document.querySelector(".session-head p")?.textContent);
    await page.getByRole("button", { name: "More", exact: true }).click();
    const box = await page.locator(".menu").boundingBox();
    assert.ok(box.width < 320, `the menu is ${box.width} wide`);
    await page.evaluate(() => {
      globalThis.moved = [];
      const see = (changes) => changes.forEach(({ removedNodes }) => globalThis.moved.push(...[...removedNodes].filter((node) => node.isConnected).map((node) => node.className)));
      new MutationObserver(see).observe(document.querySelector("session-roster"), { subtree: true, childList: true });
    });
    const other = await browser.open(new URL(page.url()).pathname);
    await other.locator("h1").first().click();
    await other.keyboard.press("e");
    await other.locator("dialog.rename input").fill("Another name");
    await other.keyboard.press("Enter");
    await page.locator("h1", { hasText: "Another name" }).waitFor();
    assert.ok(await page.locator(".menu").isVisible(), "the menu was closed");
    await page.keyboard.press("Escape");
    await page.locator("a.new-session").focus();
    const facts = await page.locator(".row.working .facts").innerText();
    await page.waitForFunction((before) => document.querySelector(".row.working .facts").innerText !== before, facts);
    assert.equal(await page.evaluate(() => document.activeElement?.className), "new-session");
    assert.deepEqual(await page.evaluate(() => globalThis.moved), []);
    browser.check();
  },

  async typed_ahead() {
    const page = await browser.open();
    await browser.begin(page, "hello");
    await idle(page);
    await page.getByLabel("Prompt", { exact: true }).press("Escape");
    // All in one task of the page, as from a person who is faster than a request.
    const seen = await page.evaluate(() => {
      const press = (key) => (document.activeElement ?? document.body).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      for (const key of "/e#") press(key);
      return [...document.querySelectorAll("dialog")].map((dialog) => dialog.className);
    });
    assert.deepEqual(seen, ["search"]);
    browser.check();
  },

  async notices() {
    const page = await browser.open();
    await browser.begin(page, "hello");
    await idle(page);
    const other = await browser.open();
    await browser.begin(other, "write good morning to greeting.txt");
    await page.locator(".notice", { hasText: "A permission is needed" }).getByRole("button", { name: "Show" }).click();
    await allow(page).waitFor();
    assert.match(await page.locator(".docks p[role=status]").textContent(), /Waiting for you: .*greeting\.txt/);
    await allow(page).click();
    await idle(other);
    // A phone: the constructor exists and throws.
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { get: () => true });
      globalThis.Notification = class {
        static permission = "granted";
        constructor() {
          globalThis.tried = true;
          throw new TypeError("Illegal constructor");
        }
      };
    });
    await browser.send(other, "write good morning to another.txt");
    await page.waitForFunction(() => globalThis.tried);
    await page.waitForFunction(() => document.title.startsWith("(1)"));
    browser.check();
  },

  async many_pages() {
    const first = await browser.open();
    const pages = [first];
    for (let count = 0; count < 8; count += 1) {
      const page = count ? await first.context().newPage() : first;
      if (count) {
        page.on("pageerror", (error) => browser.errors.push(String(error.stack)));
        await page.goto(about.url, { timeout: 10_000 });
        pages.push(page);
      }
      await browser.begin(page, `hello ${count}`);
      await page.waitForSelector("article.assistant .rendered");
    }
    await first.waitForSelector(".connection[data-state=paused]");
    await first.bringToFront();
    await first.locator("h1").first().click();
    await first.waitForSelector(".connection[data-state=connected]");
    await first.waitForFunction(() => document.querySelectorAll(".row.idle").length === 8);
    await pages[4].waitForSelector(".connection[data-state=paused]");
    for (const page of pages.slice(5)) await page.close();
    await pages[4].waitForSelector(".connection[data-state=connected]");
    browser.check();
  },

  async deleted_by_a_page_that_is_closed() {
    const page = await browser.open();
    await browser.begin(page, "hello");
    await idle(page);
    const other = await browser.open();
    await other.locator(".row").waitFor();
    await page.getByLabel("Prompt", { exact: true }).press("Escape");
    await page.keyboard.press("#");
    await page.getByText("will be deleted").waitFor();
    await page.goto("about:blank");
    await other.locator(".row").waitFor({ state: "detached" });
    browser.check();
  },

  async what_an_answer_covers() {
    const page = await browser.open();
    await browser.begin(page, "$ touch one");
    await allow(page).waitFor();
    assert.equal(await page.locator(".covers").innerText(), "For the session: touch <paths>");
    await page.locator("[data-answer=session]").click();
    await idle(page);
    await browser.send(page, "$ sh -c true");
    await allow(page).waitFor();
    assert.equal(await page.locator(".covers").innerText(), "For the session: exactly this command");
    await page.locator("[data-answer=once]").click();
    await idle(page);
    await browser.send(page, "$ rm a\u202e\u200btxt.exe");
    await allow(page).waitFor();
    assert.equal(await page.locator(".ask .command").innerText(), "$ rm a<U+202E><U+200B>txt.exe");
    await page.locator("[data-answer=deny]").click();
    await idle(page);
    await browser.send(page, "write a\u202eb to .git/config");
    await page.waitForSelector(".ask .diff");
    assert.match(await page.locator(".ask .diff .unified .add").first().innerText(), /a<U\+202E>b/);
    assert.match(await page.locator(".covers").innerText(), /only this/);
    browser.check();
  },

  async links() {
    const page = await browser.open();
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await browser.begin(page, "hello");
    await idle(page);
    await browser.send(page, "hello again");
    await page.waitForFunction(() => document.querySelectorAll("article.user").length === 2);
    await idle(page);
    await page.getByLabel("Prompt", { exact: true }).press("Escape");
    await page.keyboard.press("t");
    await page.waitForSelector(".timeline-drawing");
    await page.getByLabel("Run", { exact: true }).selectOption({ index: 2 });
    await page.getByRole("button", { name: "Copy a link to this run" }).click();
    await page.getByText("in the clipboard").waitFor();
    const link = await page.evaluate(() => navigator.clipboard.readText());
    const other = await browser.open(link);
    await other.waitForSelector("article.user.pointed");
    assert.match(await other.locator("article.pointed").innerText(), /hello$/);
    await other.waitForSelector(".timeline-drawing");
    // Without TLS, on another machine, there is no clipboard.
    await other.evaluate(() => Object.defineProperty(navigator, "clipboard", { value: undefined }));
    await other.getByRole("button", { name: "Copy a link to this run" }).click();
    assert.equal(await other.locator("dialog.copy textarea").inputValue(), link);
    browser.check();
  },

  async an_address_of_nothing() {
    const page = await browser.open();
    await browser.begin(page, "hello");
    await idle(page);
    await page.evaluate(() => localStorage.clear());
    await page.goto(new URL("/w/unknown/s/unknown", about.url).href);
    await page.getByText("This session is not here").waitFor();
    assert.equal(await page.locator("prompt-box").isVisible(), false);
    await page.waitForSelector(".connection[data-state=connected]");
    await page.locator(".row.idle a").click();
    await page.waitForSelector("article.assistant .rendered");
    browser.check("404");
  },

  async another_directory() {
    const page = await browser.open();
    await page.getByLabel("Directory").selectOption("");
    const field = page.locator("dialog.directory input");
    await field.fill(`${about.project}/below`);
    await field.press("Enter");
    await browser.begin(page, "hello");
    await idle(page);
    assert.match(await page.locator(".session-head p").innerText(), /^below/);
    await page.goto(about.url);
    await page.waitForFunction(() => document.querySelector("#directory")?.value.endsWith("/below"));
    browser.check();
  },
});
