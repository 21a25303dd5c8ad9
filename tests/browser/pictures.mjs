// The pictures of docs/page.md: `node pictures.mjs JSON`; see test_page_pictures.py.
import { Browser, idle } from "./browser.mjs";

const about = JSON.parse(process.argv[2]);
const browser = new Browser(about);
const shot = async (page, name) => {
  await page.waitForTimeout(400);
  await page.screenshot({ path: `${about.pictures}/${name}.png`, animations: "disabled", caret: "hide" });
};
const allow = (page) => page.locator("[data-answer=once]").click();

await browser.start();
try {
  const size = { viewport: { width: 1180, height: 760 } };
  const page = await browser.open("", size);
  await page.waitForSelector("home-view");
  await browser.begin(page, "write import this to zen.py");
  await allow(page);
  await idle(page);
  await browser.send(page, "replace import this with from this import s in zen.py");
  await page.waitForSelector(".ask .diff");
  await shot(page, "page-permission");
  await allow(page);
  await idle(page);
  await browser.send(page, "remember read the code, write a test, mend the bug");
  await page.waitForSelector(".todos");
  await idle(page);
  await browser.send(page, "delegate view zen.py");
  await page.waitForSelector(".tool.done:last-of-type");
  await idle(page);
  await page.locator(".tool summary", { hasText: "Delegate" }).click();
  await shot(page, "page-session");

  await page.goto(about.url);
  await page.waitForSelector("home-view");
  await browser.begin(page, "$ git init . && git add zen.py");
  await page.waitForSelector("[data-answer=once]");
  await page.goto(about.url);
  await page.waitForSelector("home-view");
  await browser.begin(page, "long 100000");
  await browser.send(page, "think about the long answer");
  await browser.send(page, "$ make test");
  await page.waitForFunction(() => document.querySelectorAll("queue-dock li").length === 2);
  await page.getByLabel("Prompt", { exact: true }).press("Escape");
  await page.keyboard.press("t");
  await page.waitForSelector(".timeline-drawing");
  await shot(page, "page-working");
  await page.keyboard.press("t");
  await page.goto(about.url);
  await page.waitForSelector(".row.working");
  await shot(page, "page-home");

  const dark = await browser.open("", { ...size, colorScheme: "dark" });
  await dark.waitForSelector(".row.working");
  await dark.locator(".row", { hasText: "write import" }).locator("a").click();
  await dark.waitForSelector(".todos");
  await dark.keyboard.press("Escape");
  await dark.keyboard.press("t");
  await dark.waitForSelector(".timeline-drawing");
  await shot(dark, "page-dark");

  const small = { viewport: { width: 360, height: 720 }, isMobile: true, hasTouch: true, deviceScaleFactor: 1.5 };
  const phone = await browser.open("", small);
  await phone.waitForSelector(".row.needs_you");
  await shot(phone, "page-phone-roster");
  await phone.locator(".row.needs_you a").tap();
  await phone.waitForSelector("[data-answer=once]");
  await shot(phone, "page-phone-permission");
  console.log("passed");
} catch (error) {
  console.log(error.stack, browser.errors);
}
process.exit();
