"""The tool `download`, against a server on a real socket."""

import gzip
import stat

import pytest
import trio

from crush_trio.tools.web.download import DownloadTool, open_partial
from tests.tools.search_bench import search_bench
from tests.tools.web_server import open_web_server, page, redirect, zipped

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

DATA = bytes(range(256)) * 1000


async def downloaded(bench, url, file_path, *, largest=10**9, **arguments):
    tool = DownloadTool(bench.bench, largest=largest)
    return await bench.run(tool, url=url, file_path=file_path, **arguments)


async def failed(bench, url, file_path, *, largest=10**9, **arguments):
    tool = DownloadTool(bench.bench, largest=largest)
    return await bench.error(tool, url=url, file_path=file_path, **arguments)


def everything(bench):
    return sorted(str(path.relative_to(bench.root)) for path in bench.root.rglob("*"))


async def test_file_is_saved_with_its_directories(tmp_path):
    bench = search_bench(tmp_path)
    pages = {"f": page(DATA, content_type="image/png"), "r": redirect("/f"), "z": zipped(DATA)}
    async with open_web_server(**pages) as server:
        result = await downloaded(bench, server.url("/r"), "a/b/f.png")
        await downloaded(bench, server.url("/z"), "z")
    assert result.content == f"Saved {len(DATA)} bytes (image/png) as a/b/f.png"
    assert (bench.root / "a/b/f.png").read_bytes() == DATA
    assert (bench.root / "z").read_bytes() == DATA
    assert everything(bench) == ["a", "a/b", "a/b/f.png", "z"]


async def test_person_sees_where_it_goes_before_anything_happens(tmp_path):
    bench = search_bench(tmp_path, refuses=True)
    (bench.root / "link").symlink_to(tmp_path)
    async with open_web_server(f=page(DATA)) as server:
        url = server.url("/f")
        assert await failed(bench, url, "link/x/f", timeout=9) == "User denied permission"
        assert server.requests == []
    [wanted] = bench.asked.wanted
    assert wanted.action == "download"
    assert wanted.path == tmp_path / "x/f"
    assert wanted.params == {"url": url, "file_path": str(tmp_path / "x/f"), "timeout": 9}
    link = bench.root / "link/x/f"
    assert wanted.description == (
        f"Download {url} to {tmp_path / 'x/f'}, to which the link {link} leads"
    )
    assert wanted.always
    assert not (tmp_path / "x").exists()


async def test_existing_file_is_mentioned_and_replaced_in_one_step(tmp_path):
    bench = search_bench(tmp_path)
    path = bench.put("f", "old")
    path.chmod(0o640)
    async with open_web_server(f=page(DATA)) as server:
        await downloaded(bench, server.url("/f"), "f")
    [wanted] = bench.asked.wanted
    assert wanted.description.endswith("replacing the file that is there")
    assert path.read_bytes() == DATA
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert everything(bench) == ["f"]


@pytest.mark.parametrize("largest", [10, len(DATA) - 1])
async def test_file_that_is_too_large_is_refused(tmp_path, largest):
    async def unannounced(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n" + DATA)

    bench = search_bench(tmp_path)
    bench.put("f", "old")
    bomb = page(gzip.compress(bytes(10_000_000)), content_encoding="gzip")
    async with open_web_server(f=page(DATA), u=unannounced, bomb=bomb) as server:
        for path in ("/f", "/u", "/bomb"):
            error = await failed(bench, server.url(path), "f", largest=largest)
            assert f"larger than the limit of {largest} bytes" in error
        await failed(bench, server.url("/u"), "new/dir/f", largest=largest)
    assert everything(bench) == ["f"]
    assert (bench.root / "f").read_text() == "old"


async def test_failed_download_leaves_nothing(tmp_path):
    async def short(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        await stream.aclose()

    bench = search_bench(tmp_path)
    async with open_web_server(short=short, gone=page(status=404)) as server:
        assert "cannot fetch" in await failed(bench, server.url("/short"), "a/f")
        assert "status 404" in await failed(bench, server.url("/gone"), "a/f")
    assert everything(bench) == []


async def test_download_that_takes_too_long_leaves_nothing(tmp_path):
    async def slow(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")

    bench = search_bench(tmp_path)
    async with open_web_server(slow=slow) as server:
        assert "within 1 seconds" in await failed(bench, server.url("/slow"), "a/f", timeout=1)
        await server.gone.wait()
    assert everything(bench) == []


async def test_cancelled_download_leaves_nothing_and_hangs_up(tmp_path):
    sent = trio.Event()

    async def slow(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        sent.set()

    bench = search_bench(tmp_path)
    bench.put("f", "old")
    async with open_web_server(slow=slow) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failed, bench, server.url("/slow"), "f")
            await sent.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await server.gone.wait()
    assert everything(bench) == ["f"]
    assert (bench.root / "f").read_text() == "old"


async def test_unfinished_file_is_removed_when_its_block_is_left(tmp_path):
    target = tmp_path / "a/b/f"
    with trio.CancelScope() as scope:
        async with open_partial(target) as partial:
            await partial.write(b"abc")
            [there] = target.parent.iterdir()
            assert there.suffix == ".part"
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"url": "http://h/"}, "file_path is required"),
        ({"file_path": "x"}, "url is required"),
        ({"url": "ftp://h/", "file_path": "x"}, "must begin with http"),
        ({"url": "http://h/", "file_path": ""}, "file_path is required"),
        ({"url": "http://h/", "file_path": "."}, "is a directory"),
    ],
)
async def test_mistakes_are_told_without_asking(tmp_path, arguments, part):
    bench = search_bench(tmp_path)
    assert part in await bench.error(DownloadTool(bench.bench), arguments)
    assert bench.asked.wanted == []


async def test_place_that_cannot_be_written_to_is_told(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("file")
    async with open_web_server(f=page(DATA)) as server:
        assert "cannot write" in await failed(bench, server.url("/f"), "file/below/f")
    assert everything(bench) == ["file"]
