"""The files of the page: which are served, with which headers, and that nothing else is."""

import pytest

from crush_trio.server.page.files import CSP, INDEX, WEB, PageFiles
from crush_trio.server.routes import page
from crush_trio.server.settings import GuardSettings
from crush_trio.testing.server.server import open_test_server

LOCKED = GuardSettings(token="a-token-of-the-server")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder like the packaged one, and beside it a file that nobody may get."""
    web = tmp_path / "web"
    (web / "page" / "parts").mkdir(parents=True)
    (web / "page" / "index.html").write_text("<!doctype html>the page")
    (web / "page" / "app.js").write_text("export {}")
    (web / "page" / "style.css").write_text("a {}")
    (web / "page" / "manifest.webmanifest").write_text("{}")
    (web / "page" / "icon.svg").write_text("<svg/>")
    (web / "page" / "parts" / "roster.js").write_text("export {}")
    (web / "page" / "program.py").write_text("secret")
    (web / "page" / ".hidden.js").write_text("secret")
    (web / "client.js").write_text("export {}")
    (web / "package.json").write_text("{}")
    (tmp_path / "secret.js").write_text("secret")
    (web / "page" / "link.js").symlink_to(tmp_path / "secret.js")
    files = PageFiles(web)
    monkeypatch.setattr(page, "_files", lambda: files)
    return web


async def get(target, method="GET", headers=(), guard=LOCKED):
    async with open_test_server(guard=guard) as server:
        return await server.driver.request(method, target, headers=headers)


@pytest.mark.parametrize(
    ("target", "media"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/w/1/s/2", "text/html; charset=utf-8"),
        ("/w/1/s/2/m/3", "text/html; charset=utf-8"),
        ("/w/1/s/2/r/3", "text/html; charset=utf-8"),
        ("/page/app.js", "text/javascript; charset=utf-8"),
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/manifest.webmanifest", "application/manifest+json"),
        ("/page/icon.svg", "image/svg+xml"),
        ("/page/parts/roster.js", "text/javascript; charset=utf-8"),
        ("/web/client.js", "text/javascript; charset=utf-8"),
    ],
)
async def test_a_file_is_served_without_a_token_and_with_its_headers(root, target, media):
    answer = await get(target)
    assert (answer.status, answer.headers["content-type"]) == (200, media)
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-length"] == str(len(answer.body))


@pytest.mark.parametrize(
    "target",
    [
        "/page/none.js",
        "/page/program.py",
        "/page/.hidden.js",
        "/page/link.js",
        "/page/parts",
        "/page/../client.js",
        "/page/..",
        "/page/../../secret.js",
        "/page/%2e%2e/client.js",
        "/page/%2e%2e%2fclient.js",
        "/page/..%5cclient.js",
        "/page/parts/../../client.js",
        "/web/package.json",
        "/web/../secret.js",
        "/web/%2e%2e/secret.js",
        "/web/%2e%2e%2fsecret.js",
        "/page/app.js%00.js",
        "/page//app.js",
        "//page/app.js",
        "/page/a/b/c.js",
        "/page/" + "x" * 5000 + ".js",
    ],
)
async def test_nothing_else_is_served(root, target):
    for guard in (LOCKED, GuardSettings()):
        answer = await get(target, guard=guard)
        assert answer.status in {400, 401, 404}
        assert b"secret" not in answer.body
        assert b"export" not in answer.body


async def test_a_page_that_has_the_file_is_told_that_it_is_the_same(root):
    first = await get("/page/app.js")
    tag = first.headers["etag"]
    for given in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        again = await get("/page/app.js", headers=[("if-none-match", given)])
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert "content-length" not in again.headers
    assert (await get("/page/app.js", headers=[("if-none-match", '"x"')])).status == 200
    (root / "page" / "app.js").write_text("export { changed }")
    changed = await get("/page/app.js", headers=[("if-none-match", tag)])
    assert (changed.status, changed.body) == (200, b"export { changed }")


async def test_the_head_of_a_file_can_be_asked_for(root):
    whole, head = await get("/page/app.js"), await get("/page/app.js", "HEAD")
    assert head.status == 200  # the connection leaves the body out
    assert head.headers["etag"] == whole.headers["etag"]
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert (await get("/page/none.js", "HEAD")).status == 404


async def test_a_file_cannot_be_changed(root):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (await get("/page/app.js", method)).status == 401
        assert (await get("/page/app.js", method, guard=GuardSettings())).status == 405


@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "https://evil.example")],
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
    ],
)
async def test_a_page_of_another_site_gets_nothing(root, headers):
    for target in ("/", "/page/app.js", "/web/client.js", "/v1/page"):
        assert (await get(target, headers=headers)).status == 403


async def test_nothing_is_read_before_a_page_is_opened(root, monkeypatch):
    read = []
    monkeypatch.setattr(PageFiles, "_read", lambda _self, name, _media: read.append(name))
    await get("/v1/health", guard=GuardSettings())
    assert read == []


def test_the_packaged_module_is_found():
    assert PageFiles().find("client.js") is not None
    assert (WEB / INDEX).parent.name == "page"
