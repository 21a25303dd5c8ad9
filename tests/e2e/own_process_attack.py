"""A command of the agent that tries to use the server it runs under: `own_process_attack.py PLAN RESULTS GO`.

It needs the standard library only. PLAN is a JSON file with addresses and requests. RESULTS gets the status
and the code of each answer, by the way the request was sent. At the end it waits for GO, and leaves with
requests whose answers it does not wait for.
"""

import ctypes
import json
import os
import pathlib
import socket
import sys
import traceback

PR_SET_DUMPABLE = 4


def connected(address):
    """Connect to a path, or to a port of this machine."""
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    sock = socket.socket(kind, socket.SOCK_STREAM)
    sock.connect(address if isinstance(address, str) else ("127.0.0.1", address))
    return sock


def sent(sock, plan, method, path, body):
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{plan['port']}\r\nConnection: close\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def answer(sock):
    """Return the status, and the code of an error."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    return [status, json.loads(body)["code"] if status >= 400 else ""]


def asked(sock, plan, request):
    sent(sock, plan, *request)
    return answer(sock)


def in_child(work):
    """Return what *work* returns in a child, which the parent waits for."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writable, json.dumps(work()).encode())
        os._exit(0)
    os.close(writable)
    os.waitpid(pid, 0)
    with os.fdopen(readable, "rb") as file:
        return json.loads(file.read())


def handed_over(address, plan, request):
    """Connect in a process that ends; a child of it sends the request."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        sock = connected(address)
        mine, parent = os.pipe()
        if os.fork() == 0:
            os.close(parent)
            os.read(mine, 1)  # ends with the parent
            os.write(writable, json.dumps(asked(sock, plan, request)).encode())
        os._exit(0)
    os.close(writable)
    os.waitpid(pid, 0)
    with os.fdopen(readable, "rb") as file:
        return json.loads(file.read())


def as_daemon(address, plan, request):
    """Send the request from a session of its own, whose parent has ended."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            program = [sys.executable, __file__, "daemon", json.dumps([address, plan, request])]
            os.dup2(writable, 1)
            os.execve(program[0], program, {})
        os._exit(0)
    os.close(writable)
    os.waitpid(pid, 0)
    with os.fdopen(readable, "rb") as file:
        return json.loads(file.read())


def hidden(address, plan, request):
    """Send the request from a process whose open files other processes of the user cannot see."""

    def work():
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        return asked(connected(address), plan, request)

    return in_child(work)


def herd(address, plan, request, size):
    """Send the request on many connections at once."""
    socks = [connected(address) for _ in range(size)]
    for sock in socks:
        sent(sock, plan, *request)
    return [answer(sock) for sock in socks]


def tried(plan):
    """Return what came of each way."""
    results = {}
    for kind, address in (("unix", plan["path"]), ("tcp", plan["port"])):
        found = results[kind] = {}
        found["plain"] = [asked(connected(address), plan, each) for each in plan["requests"]]
        found["reads"] = [asked(connected(address), plan, each) for each in plan["reads"]]
        change = plan["requests"][0]
        for way in (handed_over, as_daemon, hidden):
            found[way.__name__] = way(address, plan, change)
        found["herd"] = herd(address, plan, change, plan["herd"])
    return results


def main(plan_file, results_file, go_file):
    plan = json.loads(pathlib.Path(plan_file).read_text())
    try:
        results = tried(plan)
    except Exception:  # noqa: BLE001 - the test waits for a result
        results = traceback.format_exc()
    with pathlib.Path(results_file).open("w") as file:
        json.dump(results, file)
    with pathlib.Path(go_file).open() as file:
        file.read()
    for address in (plan["path"], plan["port"]) * 10:
        sent(connected(address), plan, *plan["requests"][0])  # and leave without the answer


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        address, plan, request = json.loads(sys.argv[2])
        print(json.dumps(asked(connected(address), plan, request)))  # noqa: T201
    elif sys.argv[1] == "herd":
        address, plan, request = json.loads(sys.argv[2])
        print(json.dumps(herd(address, plan, request, plan["herd"])))  # noqa: T201
    else:
        main(*sys.argv[1:])
