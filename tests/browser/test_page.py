"""The page in Chromium, against a server process with the offline demo model."""

import pytest

from tests.browser.driving import MARKS, free_port, page_server, play

pytestmark = MARKS


@pytest.mark.parametrize(
    "name",
    [
        "first_answer",
        "two_pages_in_step",
        "permission_from_the_other_page",
        "denial_with_a_reason",
        "question",
        "cancel",
        "queue_edit",
        "restart",
        "attachments",
        "steer_and_interrupt",
        "slow_network",
        "keyboard_only",
        "phone",
        "accessible",
        "weight",
        "nothing_moves_under_the_hands",
        "typed_ahead",
        "notices",
        "many_pages",
        "deleted_by_a_page_that_is_closed",
        "what_an_answer_covers",
        "links",
        "an_address_of_nothing",
    ],
)
def test_scenario(name, tmp_path):
    with page_server(tmp_path) as server:
        play(name, server)


def test_an_answer_over_a_connection_that_is_cut_and_mended(tmp_path):
    public = f"http://127.0.0.1:{free_port()}"
    with page_server(tmp_path, "--public-url", public) as server:
        play("cut", server, port=server.port)


def test_a_token_that_may_watch_sees_no_buttons(tmp_path):
    with page_server(tmp_path) as server:
        server.kill()
        token = server.run("token", "add", "guest", "--rights", "watch").split()[-1]
        server.start()
        play("watcher", server, url=server.link.partition("#")[0], link=server.link, watch=token)


def test_the_printed_link_logs_one_browser_in(tmp_path):
    with page_server(tmp_path) as server:
        server.kill()
        server.run("token", "add", "me", "--rights", "admin")
        server.start()
        play("one_time_link", server)


def test_a_directory_that_the_person_names(tmp_path):
    with page_server(tmp_path) as server:
        (server.project / "below").mkdir()
        play("another_directory", server, project=str(server.project))
