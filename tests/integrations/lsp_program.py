"""A language server for a toy language, as a value and as a program. Uses the standard library only.

In the toy language `def name` at the beginning of a line begins a definition that goes on over the indented
lines after it. A line with BAD in it is an error, one with WARN a warning. Everything else are words.

As a program it speaks on standard input and output: `python lsp_program.py [--crash-on-open] [--mute] [--pid=FILE]`.
"""

import json
import os
import re
import sys
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

WORD = re.compile(r"\w+")
DEF = re.compile(r"^def (\w+)")
CAPABILITIES = {
    "textDocumentSync": {"openClose": True, "change": 1, "save": True},
    "definitionProvider": True,
    "referencesProvider": True,
    "renameProvider": {},
    "documentSymbolProvider": True,
    "callHierarchyProvider": True,
}


def utf16(text):
    return len(text.encode("utf-16-le")) // 2


def place(line, text, start, end):
    """Return the range of what is between two indices of a line."""
    sides = [{"line": line, "character": utf16(text[:index])} for index in (start, end)]
    return {"start": sides[0], "end": sides[1]}


def uri(path):
    return f"file://{quote(str(path))}"


def path(address):
    return Path(unquote(urlsplit(address).path))


class Toy:
    """The server: `handle` takes a message and returns what it says then."""

    def __init__(self, *flags):
        self.flags = flags
        self.documents = {}
        self.updates = []
        self.root = None
        self.ended = False

    def handle(self, message):
        method, params = message.get("method"), message.get("params")
        self.updates.append((method, params))
        if method is None:
            return []
        last = method.rpartition("/")[2]
        name = "on_" + re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), last)
        if "id" not in message:
            return getattr(self, name, lambda _: [])(params) or []
        if not hasattr(self, name):
            error = {"code": -32601, "message": f"no {method}"}
            return [{"jsonrpc": "2.0", "id": message["id"], "error": error}]
        result = getattr(self, name)(params)
        return [{"jsonrpc": "2.0", "id": message["id"], "result": result}]

    # ── Life ────────────────────────────────────────────────────────────────────────────────────

    def on_initialize(self, params):
        self.root = path(params["rootUri"])
        return {"capabilities": CAPABILITIES}

    def on_shutdown(self, _params):
        return None

    def on_exit(self, _params):
        self.ended = True

    # ── Documents ───────────────────────────────────────────────────────────────────────────────

    def on_did_open(self, params):
        document = params["textDocument"]
        return self._changed(document["uri"], document["version"], document["text"])

    def on_did_change(self, params):
        document = params["textDocument"]
        [change] = params["contentChanges"]
        return self._changed(document["uri"], document["version"], change["text"])

    def _changed(self, address, version, text):
        self.documents[address] = text
        if "--crash-on-open" in self.flags:
            self.ended = True
        if self.ended or "--mute" in self.flags:
            return []
        found = [
            {
                "range": place(number, line, *match.span()),
                "severity": 1 if match[0] == "BAD" else 2,
                "source": "toy",
                "message": f"{match[0]} is bad",
            }
            for number, line in enumerate(text.split("\n"))
            for match in re.finditer("BAD|WARN", line)
        ]
        said = {"uri": address, "version": version, "diagnostics": found}
        return [{"jsonrpc": "2.0", "method": "textDocument/publishDiagnostics", "params": said}]

    def texts(self):
        """Return every document: those that are open, and the others of the project."""
        files = sorted(self.root.rglob("*.toy")) if self.root.is_dir() else []
        found = {uri(file): file.read_bytes().decode().removeprefix("\ufeff") for file in files}
        return found | self.documents

    # ── Questions ───────────────────────────────────────────────────────────────────────────────

    def word_at(self, params):
        """Return the word at a place; comments have none."""
        text = self.texts()[params["textDocument"]["uri"]]
        line = text.split("\n")[params["position"]["line"]].removesuffix("\r")
        if line.lstrip().startswith("#"):
            return None
        for match in WORD.finditer(line):
            if utf16(line[: match.start()]) == params["position"]["character"]:
                return match[0]
        return None

    def uses(self, word):
        for address, text in self.texts().items():
            for number, line in enumerate(text.split("\n")):
                if not line.lstrip().startswith("#"):
                    for match in WORD.finditer(line):
                        if match[0] == word:
                            yield address, number, place(number, line, *match.span()), line

    def on_references(self, params):
        word = self.word_at(params)
        return [{"uri": address, "range": span} for address, _, span, _ in self.uses(word)]

    def on_definition(self, params):
        word = self.word_at(params)
        return [
            {"targetUri": address, "targetRange": span, "targetSelectionRange": span}
            for address, _, span, line in self.uses(word)
            if DEF.match(line) and DEF.match(line)[1] == word
        ]

    def on_rename(self, params):
        word = self.word_at(params)
        changes = {}
        for address, _, span, _ in self.uses(word):
            changes.setdefault(address, []).append({"range": span, "newText": params["newName"]})
        if not changes:
            return None
        return {
            "documentChanges": [
                {"textDocument": {"uri": address, "version": None}, "edits": edits}
                for address, edits in changes.items()
            ]
        }

    def definitions(self, address):
        """Yield name, range, name's range and the words within of each definition."""
        lines = self.texts()[address].split("\n")
        starts = [number for number, line in enumerate(lines) if DEF.match(line)]
        for start in starts:
            end = start
            while end + 1 < len(lines) and lines[end + 1].startswith(" "):
                end += 1
            name = DEF.match(lines[start])
            span = place(start, lines[start], 0, 0) | {
                "end": {"line": end, "character": utf16(lines[end])}
            }
            words = set(WORD.findall("\n".join(lines[start + 1 : end + 1])))
            yield name[1], span, place(start, lines[start], *name.span(1)), words

    def on_document_symbol(self, params):
        return [
            {"name": name, "kind": 12, "range": span, "selectionRange": named}
            for name, span, named, _ in self.definitions(params["textDocument"]["uri"])
        ]

    def on_prepare_call_hierarchy(self, params):
        word = self.word_at(params)
        return [item for item, _ in self.found() if item["name"] == word]

    def found(self):
        for address in self.texts():
            for name, span, named, words in self.definitions(address):
                item = {"name": name, "kind": 12, "uri": address}
                yield item | {"range": span, "selectionRange": named}, words

    def on_incoming_calls(self, params):
        name = params["item"]["name"]
        return [{"from": item, "fromRanges": []} for item, words in self.found() if name in words]

    def on_outgoing_calls(self, params):
        name = params["item"]["name"]
        [words] = [words for item, words in self.found() if item["name"] == name]
        return [{"to": item, "fromRanges": []} for item, _ in self.found() if item["name"] in words]


def main():
    """Serve standard input and output."""
    toy, stdin, stdout = Toy(*sys.argv[1:]), sys.stdin.buffer, sys.stdout.buffer
    for flag in toy.flags:
        if flag.startswith("--pid="):
            Path(flag.removeprefix("--pid=")).write_text(str(os.getpid()), "utf-8")
    while not toy.ended:
        length = 0
        while line := stdin.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        if not length:
            return
        for message in toy.handle(json.loads(stdin.read(length))):
            body = json.dumps(message).encode()
            stdout.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        stdout.flush()
    if "--crash-on-open" in toy.flags:
        sys.stderr.write("the toy broke\n")
        sys.exit(3)


if __name__ == "__main__":
    main()
