"""A client of the scripted model that does everything by hand, so that nothing hides a mistake."""

import h11
import orjson
import trio

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"


def asking(text="hi", model="m1", **more):
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        **more,
    }


class Heard:
    """A response as it comes: status, headers and the pieces of its body, with their times."""

    def __init__(self):
        self.status, self.headers, self.pieces, self.complete = 0, {}, [], False

    @property
    def body(self):
        return b"".join(piece for _, piece in self.pieces)

    @property
    def json(self):
        return orjson.loads(self.body)


async def ask(stream, path=OPENAI, body=None, method="POST", headers=(), heard=None, http=None):
    """Send a request on a connection and read the response, by hand."""
    heard, http = heard or Heard(), http or h11.Connection(h11.CLIENT)
    content = b"" if method == "GET" else orjson.dumps(body or asking())
    names = [("host", "model.test"), ("content-length", str(len(content))), *headers]
    await stream.send_all(http.send(h11.Request(method=method, target=path, headers=names)))
    await stream.send_all(
        (http.send(h11.Data(data=content)) or b"") + http.send(h11.EndOfMessage())
    )
    while not heard.complete:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some())
        elif isinstance(event, h11.Response):
            heard.status = event.status_code
            heard.headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            heard.pieces.append((trio.current_time(), bytes(event.data)))
        else:
            heard.complete = isinstance(event, h11.EndOfMessage)
    return heard
