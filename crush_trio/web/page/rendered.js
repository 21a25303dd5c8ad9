// @ts-check
/**
 * The only place of the page that parses HTML: what the server's render routes answered. They escape what a model
 * wrote; this is a second wall. The browser refuses to parse text that did not pass `policy` (Trusted Types), and
 * elements and attributes that the routes never write are left out.
 */

const TAGS = new Set(
  ("A B BLOCKQUOTE BR CODE COL COLGROUP DD DEL DIV DL DT EM H1 H2 H3 H4 H5 H6 HR I INS LI OL P PRE S SPAN STRONG SUB SUP " +
    "TABLE TBODY TD TFOOT TH THEAD TR UL").split(" "),
);
const ATTRIBUTES = new Set(["class", "href", "rel", "title", "start", "colspan", "rowspan", "scope", "aria-hidden", "aria-label", "data-line"]);
const LINKS = /^(https?:|mailto:)/i;

const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("rendered", {
  createHTML: (/** @type {string} */ html) => html,
}) ?? { createHTML: (/** @type {string} */ html) => html };

/** Return the nodes of *html*, which a render route answered. @param {string} html @returns {DocumentFragment} */
export function rendered(html) {
  const parsed = new DOMParser().parseFromString(policy.createHTML(html), "text/html");
  for (const element of [...parsed.body.querySelectorAll("*")]) clean(element);
  const fragment = document.createDocumentFragment();
  fragment.append(...parsed.body.childNodes);
  return fragment;
}

/** @param {Element} element */
function clean(element) {
  if (!TAGS.has(element.tagName)) return element.remove();
  for (const { name, value } of [...element.attributes]) {
    if (!ATTRIBUTES.has(name) || (name === "href" && !LINKS.test(value))) element.removeAttribute(name);
  }
  if (element.tagName === "A") {
    element.setAttribute("rel", "noopener noreferrer nofollow");
    element.setAttribute("target", "_blank");
  }
}
