"""A section of a file is read without the rest of the file."""

import io

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.tools.base import ToolError
from crush_trio.tools.files import view
from crush_trio.tools.files.text import BOM
from crush_trio.tools.files.view import (
    LINE_LIMIT,
    SECTION_LIMIT,
    ViewedImage,
    picture_type,
    read_view,
)

CHECKS = settings(derandomize=True, deadline=None, database=None)

pytestmark = pytest.mark.real_clock

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


async def section(path, offset=0, limit=10):
    return await trio.to_thread.run_sync(read_view, path, offset, limit)


async def lines_in(tmp_path, content, offset=0, limit=10):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    found = await section(path, offset, limit)
    return found.lines, found.more


# ── Lines ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_final_line_feed_begins_no_further_line(tmp_path):
    assert await lines_in(tmp_path, b"a\nb\n") == (("a", "b"), False)
    assert await lines_in(tmp_path, b"a\nb") == (("a", "b"), False)
    assert await lines_in(tmp_path, b"a\n\n") == (("a", ""), False)
    assert await lines_in(tmp_path, b"") == ((), False)


async def test_the_limit_is_a_number_of_lines_and_the_offset_is_too(tmp_path):
    content = b"0\n1\n2\n3\n"
    assert await lines_in(tmp_path, content, 0, 2) == (("0", "1"), True)
    assert await lines_in(tmp_path, content, 2, 2) == (("2", "3"), False)
    assert await lines_in(tmp_path, content, 3, 2) == (("3",), False)


@pytest.mark.parametrize(("content", "total"), [(b"0\n1\n2\n", 3), (b"0\n1\n2", 3), (b"", 0)])
@pytest.mark.parametrize("offset", [3, 4, 99])
async def test_an_offset_behind_the_end_is_told_with_the_number_of_lines(
    tmp_path, content, total, offset
):
    with pytest.raises(ToolError, match=rf"offset {offset} .*has {total} lines"):
        await lines_in(tmp_path, content, offset)


async def test_other_line_endings_and_the_byte_order_mark_are_not_shown(tmp_path):
    content = b"\xef\xbb\xbfa\r\nb\rc\r\n"
    assert await lines_in(tmp_path, content) == (("a", "b\rc"), False)
    assert await lines_in(tmp_path, content, 1) == (("b\rc",), False)


async def test_only_a_line_feed_ends_a_line(tmp_path):
    text = "a\x0cb\u2028c\x85d"
    assert await lines_in(tmp_path, text.encode()) == ((text,), False)


async def test_a_line_at_the_limit_is_whole_and_a_longer_one_is_cut(tmp_path):
    for ending in (b"\n", b"\r\n", b""):
        whole = b"x" * LINE_LIMIT
        assert await lines_in(tmp_path, whole + ending) == ((whole.decode(),), False)
        for extra in (1, 2, 3, 5000):
            longer = whole + b"y" * extra + ending
            assert await lines_in(tmp_path, longer) == ((whole.decode() + "...",), False)


async def test_a_line_that_goes_on_after_a_carriage_return_is_cut_too(tmp_path):
    whole = b"x" * LINE_LIMIT
    assert await lines_in(tmp_path, whole + b"\rmore\n") == ((whole.decode() + "...",), False)


@pytest.mark.parametrize("character", ["ü", "€", "😀"])
@pytest.mark.parametrize("shift", range(4))
async def test_a_line_is_cut_between_characters(tmp_path, character, shift):
    line = "x" * shift + character * LINE_LIMIT
    [shown, _], _ = await lines_in(tmp_path, line.encode() + b"\nnext")
    kept = shown.removesuffix("...")
    assert line.startswith(kept)
    width = len(character.encode())
    assert LINE_LIMIT - width < len(kept.encode()) <= LINE_LIMIT


async def test_the_line_after_a_cut_one_is_found(tmp_path):
    content = b"x" * 3_000_000 + b"\nnext\n"
    lines, more = await lines_in(tmp_path, content, 0, 1)
    assert (len(lines[0]), more) == (LINE_LIMIT + 3, True)
    assert await lines_in(tmp_path, content, 1) == (("next",), False)


async def test_a_section_ends_before_it_gets_too_large(tmp_path):
    line = "x" * 999
    lines, more = await lines_in(tmp_path, f"{line}\n".encode() * 1000, 0, 1000)
    assert more
    assert len(lines) * 1000 <= SECTION_LIMIT < (len(lines) + 1) * 1000


async def test_the_next_section_begins_where_one_ended(tmp_path):
    content = "".join(f"{n} {'x' * 1500}\n" for n in range(400)).encode()
    first, _ = await lines_in(tmp_path, content, 0, 400)
    second, _ = await lines_in(tmp_path, content, len(first), 400)
    assert second[0].startswith(f"{len(first)} ")


@CHECKS
@given(
    st.lists(st.sampled_from(["", "a", "bb", "ccc", "dddd"]), max_size=12),
    st.booleans(),
    st.integers(0, 12),
    st.integers(1, 12),
)
async def test_sections_are_slices_of_the_lines(lines, closed, offset, limit):
    """With chunks so small that everything there is straddles their ends."""
    content = "\n".join(lines) + "\n" * (closed and bool(lines))
    expected = content.removesuffix("\n").split("\n") if content else []
    file = io.BufferedReader(io.BytesIO(content.encode()), 3)

    def read():
        view._skip_lines("file", file, offset)
        return view._read_lines(file, limit, SECTION_LIMIT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "_CHUNK", 2)
        if offset and offset >= len(expected):
            with pytest.raises(ToolError, match=f"has {len(expected)} lines"):
                await trio.to_thread.run_sync(read)
        else:
            found = await trio.to_thread.run_sync(read)
            wanted = expected[offset : offset + limit]
            assert found == (wanted, offset + limit < len(expected))


async def test_a_cancel_ends_the_reading_of_a_large_file(tmp_path, monkeypatch):
    path = tmp_path / "large"
    path.write_bytes(b"x" * 5_000_000)
    monkeypatch.setattr(view, "_CHUNK", 1)
    with trio.CancelScope() as scope:
        monkeypatch.setattr(
            view,
            "_read_lines",
            lambda *_: pytest.fail("it read to the end"),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(section, path)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught


# ── Not text ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "cp1252", "latin-1"])
async def test_text_in_other_encodings_is_shown(tmp_path, encoding):
    mark = BOM if encoding.startswith("utf") else ""
    text = "grüße\r\n" + ("\x81\n" if encoding == "latin-1" else "€x\n")
    data = (mark + text).encode(encoding)
    first, second = text.split()
    assert await lines_in(tmp_path, data) == ((first, second), False)
    assert await lines_in(tmp_path, data, 1) == ((second,), False)


async def test_what_is_no_text_in_any_encoding_is_refused(tmp_path):
    for data in (b"\xff\x01" + b"x" * 5000, b"\xff\xfe\x00\xd8", "x\0".encode("utf-16")):
        with pytest.raises(ToolError, match="binary"):
            await lines_in(tmp_path, data)


async def test_a_file_with_zero_bytes_is_binary(tmp_path):
    with pytest.raises(ToolError, match="binary"):
        await lines_in(tmp_path, b"MZ\0\0 and so on")


@pytest.mark.parametrize(
    ("head", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
        (b"GIF87a\1\0\1\0", "image/gif"),
        (b"GIF89a\1\0\1\0", "image/gif"),
        (b"RIFF\x24\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\x24\0\0\0WAVEfmt ", None),
        (b"BM\x36\0", None),
        (b"plain text", None),
        (b"", None),
    ],
)
def test_a_picture_is_known_by_how_it_begins(head, mime_type):
    assert picture_type(head) == mime_type


async def test_a_picture_is_returned_whole_whatever_it_is_called(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(PNG)
    found = await section(path)
    assert isinstance(found, ViewedImage)
    assert (found.media.data, found.media.mime_type) == (PNG, "image/png")


async def test_a_picture_may_have_200_kilobytes_and_no_more(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG.ljust(200 * 1024))
    assert len((await section(path)).media.data) == 200 * 1024
    path.write_bytes(PNG.ljust(200 * 1024 + 1))
    with pytest.raises(ToolError, match="too large"):
        await section(path)


async def test_text_called_a_picture_is_text(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("version https://git-lfs.example/spec/v1\n")
    assert (await section(path)).lines == ("version https://git-lfs.example/spec/v1",)
