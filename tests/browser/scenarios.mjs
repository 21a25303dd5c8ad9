// What pages do in a real browser. `node scenarios.mjs NAME JSON` plays one; see driving.py.
import assert from "node:assert/strict";
import { Browser, idle, openProxy, transcript } from "./browser.mjs";
import { everyday } from "./everyday.mjs";

const [, , name, json] = process.argv;
const about = JSON.parse(json);
const browser = new Browser(about);
const allow = (page) => page.locator("[data-answer=once]");

const scenarios = {
  ...everyday(browser, about),

  async first_answer() {
    const page = await browser.open();
    await page.getByRole("button", { name: "Say hello" }).click();
    await page.waitForSelector("article.assistant .rendered");
    await idle(page);
    assert.match(await transcript(page), /offline/i);
    await page.waitForSelector("session-roster .row.idle [aria-current=page]");
    browser.check();
  },

  async two_pages_in_step() {
    const one = await browser.open();
    await browser.begin(one, "long 300");
    const two = await browser.open(new URL(one.url()).pathname);
    await two.waitForSelector("article.assistant");
    await Promise.all([idle(one), idle(two)]);
    await one.waitForSelector("article.assistant .rendered");
    await two.waitForSelector("article.assistant .rendered");
    assert.equal(await transcript(two), await transcript(one));
    await browser.send(two, "hello");
    await one.waitForFunction(() => document.querySelectorAll("article.user").length === 2);
    browser.check();
  },

  async permission_from_the_other_page() {
    const one = await browser.open();
    const two = await browser.open();
    await browser.begin(one, "write good morning to greeting.txt");
    await allow(one).waitFor();
    await one.waitForSelector(".ask .diff tr");
    await two.waitForSelector(".row.needs_you");
    assert.match(await two.title(), /^\(1\)/);
    await two.locator(".row.needs_you a").click();
    await allow(two).click();
    await one.waitForSelector("ask-dock", { state: "hidden" });
    await idle(one);
    assert.match(await transcript(one), /greeting\.txt/);
    await two.waitForFunction(() => !document.title.startsWith("("));
    browser.check();
  },

  async denial_with_a_reason() {
    const page = await browser.open();
    await browser.begin(page, "write good morning to greeting.txt");
    await page.getByLabel("Reason for the refusal").fill("not in this folder");
    await page.getByRole("button", { name: "Deny" }).click();
    await page.waitForSelector(".tool.refused");
    await page.locator(".tool summary").click();
    await page.getByText("not in this folder").first().waitFor();
    browser.check();
  },

  async question() {
    const page = await browser.open();
    await browser.begin(page, "ask me which colour do you like?");
    await page.locator(".questions textarea").fill("green");
    await page.getByRole("button", { name: "Answer", exact: true }).click();
    await idle(page);
    await page.waitForSelector("ask-dock", { state: "hidden" });
    assert.match(await transcript(page), /green/);
    browser.check();
  },

  async cancel() {
    const page = await browser.open();
    await browser.begin(page, "long 100000");
    await page.waitForFunction(() => document.querySelector("article.assistant .growing-text")?.textContent.length > 50);
    await page.locator("button.stop").click();
    await page.getByText("nothing is left running").waitFor();
    await page.getByText("Stopped.").waitFor();
    assert.equal(await page.locator("button.stop").isVisible(), false);
    browser.check();
  },

  async queue_edit() {
    const page = await browser.open();
    await browser.begin(page, "long 100000");
    await page.waitForSelector("fieldset.modes:visible");
    for (const prompt of ["first", "second", "third"]) {
      await browser.send(page, prompt);
      await page.locator("queue-dock li", { hasText: prompt }).waitFor();
    }
    const row = (text) => page.locator("queue-dock li", { hasText: text });
    await row("third").getByRole("button", { name: "Move up" }).click();
    await page.waitForFunction(() => [...document.querySelectorAll(".queued")].map((e) => e.textContent).join() === "first,third,second");
    await row("first").getByRole("button", { name: "Edit" }).click();
    await page.getByLabel("Queued prompt").fill("hello again");
    await page.getByRole("button", { name: "Save" }).click();
    await row("hello again").waitFor();
    await row("third").getByRole("button", { name: "Remove" }).click();
    await page.waitForFunction(() => document.querySelectorAll("queue-dock li").length === 2);
    await row("second").getByRole("button", { name: "Send now" }).click();
    await page.waitForSelector("queue-dock", { state: "hidden" });
    await idle(page);
    const prompts = await page.locator("article.user .text").allInnerTexts();
    assert.deepEqual(prompts.slice(-2), ["second", "hello again"]);
    browser.check();
  },

  async restart() {
    const page = await browser.open();
    await browser.begin(page, "hello");
    await page.waitForSelector("article.assistant .rendered");
    await idle(page);
    await browser.send(page, "long 100000");
    await page.waitForFunction(() => document.querySelector("article.growing .growing-text")?.textContent.length > 100);
    await browser.want("kill");
    await page.waitForSelector(".connection[data-state=reconnecting]");
    await browser.want("start");
    await page.waitForSelector(".connection[data-state=resynchronised]");
    await page.waitForSelector(".connection[data-state=connected]");
    await idle(page);
    await page.locator(".status.bad").waitFor();
    await browser.send(page, "hello");
    await page.waitForFunction(() => document.querySelectorAll("article.assistant .rendered").length >= 3);
    const seen = await page.locator("article").evaluateAll((rows) => rows.map((row) => row.dataset.key));
    assert.equal(new Set(seen).size, seen.length);
    await page.reload();
    await page.waitForFunction((count) => document.querySelectorAll("article").length === count, seen.length);
    const again = await page.locator("article").evaluateAll((rows) => rows.map((row) => row.dataset.key));
    assert.deepEqual(again, seen);
    browser.check("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "404");
  },

  async slow_network() {
    const page = await browser.open();
    const session = await page.context().newCDPSession(page);
    await session.send("Network.enable");
    await session.send("Network.emulateNetworkConditions", { offline: false, latency: 200, downloadThroughput: 60_000, uploadThroughput: 20_000 });
    await browser.begin(page, "long 300");
    await page.waitForSelector("article.growing .growing-text");
    await idle(page);
    await browser.send(page, "hello");
    await page.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
    browser.check();
  },

  async attachments() {
    const page = await browser.open();
    await page.waitForSelector("prompt-box");
    await page.locator("input[type=file]").setInputFiles({ name: "a <b>.txt", mimeType: "text/plain", buffer: Buffer.from("good morning") });
    await page.getByText("a <b>.txt").waitFor();
    const drop = (type) =>
      page.evaluate((name) => {
        const pixel = Uint8Array.from(atob("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="), (c) => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([pixel], `${name}.png`, { type: "image/png" }));
        const event = name === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }) : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
        document.querySelector(name === "paste" ? "prompt-box textarea" : "form.prompt").dispatchEvent(event);
      }, type);
    await drop("paste");
    await drop("drop");
    await page.waitForFunction(() => document.querySelectorAll(".attachments li").length === 3);
    await page.getByRole("button", { name: "Remove drop.png" }).click();
    await browser.begin(page, "hello");
    await page.waitForSelector("article.user img.picture");
    await idle(page);
    assert.equal(await page.locator(".attachments li").count(), 0);
    browser.check();
  },

  async steer_and_interrupt() {
    const page = await browser.open();
    await browser.begin(page, "$ sleep 3; echo slept");
    await allow(page).click({ timeout: 4000 }).catch(() => {}); // it may need no permission
    await page.waitForSelector("fieldset.modes:visible");
    await page.getByLabel("Steer").check();
    await browser.send(page, "hello from the side");
    await page.locator("article.user", { hasText: "hello from the side" }).waitFor();
    await idle(page);
    await browser.send(page, "long 100000");
    await page.waitForSelector("article.growing");
    await page.getByLabel("Interrupt").check();
    await browser.send(page, "hello instead");
    await page.getByText("Stopped.").waitFor();
    await page.locator("article.user", { hasText: "hello instead" }).waitFor();
    await idle(page);
    browser.check();
  },

  async cut() {
    const proxy = await openProxy(new URL(about.url).port, about.port);
    const page = await browser.open();
    await page.evaluate(() => {
      globalThis.states = [];
      new MutationObserver(() => globalThis.states.push(document.querySelector(".connection").dataset.state)).observe(document.body, { subtree: true, attributeFilter: ["data-state"] });
    });
    await browser.begin(page, "long 350");
    for (let turn = 0; turn < 3; turn += 1) {
      await page.waitForFunction((least) => document.querySelector("article.growing .growing-text")?.textContent.length > least, 200 * (turn + 1));
      proxy.cut();
      await page.waitForSelector(".connection[data-state=reconnecting]");
      proxy.mend();
      await page.waitForSelector(".connection[data-state=connected]");
    }
    await idle(page);
    await page.waitForSelector("article.assistant .rendered");
    const text = await page.locator("article.assistant .rendered").innerText();
    assert.equal(text.trim().split(/\s+/).length, 350);
    assert.ok(!(await page.evaluate(() => globalThis.states)).includes("resynchronised"));
    browser.check("ERR_");
  },

  async hostile() {
    const page = await browser.open(about.path + about.query);
    await page.waitForSelector("article.assistant .text .rendered");
    for (let turn = 0; turn < 8; turn += 1) {
      await page.locator("details.fold:not([open]) > summary").evaluateAll((all) => all.forEach((each) => each.click()));
      await page.evaluate((part) => (document.querySelector("row-list").scrollTop *= part), 1 - turn / 8);
      await page.waitForTimeout(100);
    }
    assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
    assert.equal(await page.locator("main script, main iframe, main object, main style, main link, main form form").count(), 0);
    assert.equal(await page.locator("row-list img").count(), 0);
    const links = await page.locator("main a[href]").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
    assert.deepEqual(links.filter((href) => !/^(https?:|mailto:|\/)/.test(href)), []);
    const handlers = await page.evaluate(() => [...document.querySelectorAll("*")].flatMap((e) => [...e.attributes]).filter((a) => /^on/i.test(a.name)).length);
    assert.equal(handlers, 0);
    assert.match(await page.locator("h1").first().innerText(), /<script>/);
    const parsed = await page.evaluate(() => {
      try {
        document.createElement("div").innerHTML = "<b>x</b>";
        return "parsed";
      } catch {
        return "refused";
      }
    });
    assert.equal(parsed, "refused");
    browser.check("Trusted", "trusted");
  },

  async keyboard_only() {
    const page = await browser.open();
    const keys = page.keyboard;
    await page.waitForSelector("prompt-box");
    await page.waitForFunction(() => document.activeElement?.tagName === "TEXTAREA");
    await keys.type("write good morning to greeting.txt");
    await keys.press("Enter");
    await allow(page).waitFor();
    await keys.press("a");
    await page.waitForSelector("ask-dock", { state: "hidden" });
    await idle(page);
    await keys.press("i");
    await keys.type("long 100000");
    await keys.press("Enter");
    await page.waitForSelector("article.growing");
    await keys.press("Escape");
    await keys.press("s");
    await page.getByText("Stopped.").waitFor();
    await keys.press("?");
    await page.waitForSelector("dialog.keys-sheet");
    await keys.press("Escape");
    await keys.press("e");
    await page.waitForSelector("dialog.rename");
    await keys.type("A new name");
    await keys.press("Enter");
    await page.locator("h1", { hasText: "A new name" }).waitFor();
    await keys.press("/");
    await page.waitForSelector("dialog.search");
    await keys.type("good morning");
    await page.waitForSelector(".hits a");
    await keys.press("ArrowDown");
    await keys.press("Enter");
    await page.waitForSelector("article.pointed");
    await keys.press("]");
    assert.equal(await page.evaluate(() => document.activeElement?.tagName), "ARTICLE");
    await keys.press("t");
    await page.waitForSelector(".timeline-drawing");
    await keys.press("n");
    await page.waitForSelector("home-view");
    await page.evaluate(() => /** @type {any} */ (document.activeElement)?.blur());
    await keys.press("j");
    await page.waitForSelector("session-view");
    await keys.press("#");
    await page.getByText("will be deleted").waitFor();
    await page.getByRole("button", { name: "Undo" }).press("Enter");
    await page.locator("h1", { hasText: "A new name" }).waitFor();
    browser.check();
  },

  async phone() {
    const page = await browser.open("", { viewport: { width: 360, height: 700 }, hasTouch: true, isMobile: true, deviceScaleFactor: 1 });
    const fits = async (where) => {
      const wide = await page.evaluate(() =>
        [...document.querySelectorAll("body *")]
          .filter((e) => !e.closest("pre, table, .hidden, .skip, svg") && e.getBoundingClientRect().right > innerWidth + 1)
          .map((e) => `${e.tagName}.${e.className}`),
      );
      assert.deepEqual(wide, [], `${where} is too wide`);
    };
    await page.waitForSelector("home-view");
    await fits("the first view");
    await page.getByRole("button", { name: "Write a file" }).tap();
    await allow(page).waitFor();
    await fits("a permission");
    await allow(page).tap();
    await idle(page);
    await page.getByLabel("Prompt").fill("long 300");
    await page.locator("button.send").tap();
    await page.waitForSelector("article.growing");
    await fits("an answer");
    await browser.want("kill");
    await page.locator(".session-head .connection", { hasText: "Reconnecting" }).waitFor();
    await fits("a lost connection");
    await browser.want("start");
    await page.locator(".session-head .connection", { hasText: "Resynchronised" }).waitFor();
    await page.locator(".session-head .connection").waitFor({ state: "hidden" });
    await page.locator("a.back").tap();
    await page.waitForSelector(".row");
    await fits("the roster");
    browser.check("ERR_", "404");
  },

  async long_transcript() {
    const page = await browser.open(about.path + about.query);
    await page.waitForSelector("article");
    await page.waitForTimeout(300);
    const newest = await page.locator("article").last().getAttribute("data-key");
    assert.equal(newest, "m9999");
    for (let turn = 0; turn < 40; turn += 1) {
      await page.evaluate(() => (document.querySelector("row-list").scrollTop -= 3000));
      await page.waitForTimeout(30);
      assert.ok((await page.locator("article").count()) < 120);
    }
    await page.goto(new URL(`${about.path}/m/m5000${about.query}`, about.url).href);
    await page.waitForSelector("#m-m5000.pointed");
    assert.ok((await page.locator("article").count()) < 120);
    const box = await page.locator("#m-m5000").boundingBox();
    assert.ok(box && box.y > 0 && box.y < 700, JSON.stringify(box));
    browser.check();
  },

  async watcher() {
    const page = await browser.open();
    await page.getByLabel("Token").fill("ct_wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.locator(".problem:not(:empty)").waitFor();
    await page.getByLabel("Token").fill(about.watch);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.waitForSelector("home-view");
    assert.equal(await page.locator("prompt-box, .new-session, .chip").count(), 0);
    const other = await browser.open(about.link);
    await browser.begin(other, "write good morning to greeting.txt");
    await allow(other).waitFor();
    await page.locator(".row.needs_you a").click();
    await page.waitForSelector(".ask .diff");
    assert.equal(await page.locator("prompt-box, queue-dock, .answers, .stop").count(), 0);
    for (const key of ["a", "s", "i", "#", "e"]) await page.keyboard.press(key);
    await allow(other).click();
    await page.waitForSelector("article.assistant .text .rendered");
    browser.check("401");
  },

  async one_time_link() {
    const page = await browser.open(about.url);
    await page.waitForSelector("prompt-box");
    assert.equal(new URL(page.url()).hash, "");
    await browser.begin(page, "write good morning to greeting.txt");
    await allow(page).click();
    await idle(page);
    await page.reload();
    await page.waitForSelector("article.assistant");
    const late = await browser.open(about.url);
    await late.getByLabel("Token").waitFor();
    browser.check("401", "403");
  },

  async accessible() {
    for (const colorScheme of ["light", "dark"]) {
      const page = await browser.open("", { colorScheme });
      await page.waitForSelector("home-view");
      await accessible(page, "the first view");
      await browser.begin(page, `write good morning to ${colorScheme}.txt`);
      await page.waitForSelector(".ask .diff");
      await accessible(page, "a permission");
      await allow(page).click();
      await idle(page);
      await browser.send(page, "remember bread, milk");
      await page.waitForSelector(".todos");
      await idle(page);
      await browser.send(page, "long 100000");
      await page.waitForSelector("article.growing");
      await browser.send(page, "hello");
      await page.waitForSelector("queue-dock li");
      await accessible(page, "a queue");
      await page.locator("button.stop").click();
      await idle(page);
      await page.getByLabel("Prompt").press("Escape");
      await page.keyboard.press("t");
      await page.waitForSelector(".timeline-drawing");
      await accessible(page, "insight");
      await page.keyboard.press("?");
      await accessible(page, "the keys");
    }
  },

  async weight() {
    const files = [];
    const page = await browser.open("data:text/html,");
    page.on("response", (response) => /\/(page|web)\/|:\d+\/$/.test(response.url()) && files.push(response.body()));
    await page.goto(about.url);
    await page.waitForSelector("home-view");
    const total = (await Promise.all(files)).reduce((sum, { length }) => sum + length, 0);
    assert.ok(total > 10_000 && total < 150_000, `${total} bytes`);
  },
};

async function accessible(page, where) {
  await page.waitForTimeout(150);
  const source = (await import("node:fs")).readFileSync(browser.axe, "utf8");
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: source });
  const look = () => page.evaluate(async () => (await globalThis.axe.run(document, { resultTypes: ["violations"] })).violations);
  const found = await look().catch(look); // it fails if what it looks at is taken out of the document meanwhile
  const words = found.map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html.slice(0, 200)} ${failureSummary}`).join("; ")}`);
  assert.deepEqual(words, [], where);
}

await browser.start();
try {
  await scenarios[name]();
  console.log("passed");
} catch (error) {
  console.log(error.stack, browser.errors);
}
process.exit();
